"""`python -m kakoi` is `kakoi`."""

from kakoi.cli import main

if __name__ == "__main__":
    main()
