"""The program that runs commands inside a sandbox. Standard library only, Python 3.8."""
