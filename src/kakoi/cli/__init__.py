"""The command line: a thin door over the library, one file per command."""

import sys

from kakoi import __version__
from kakoi.cli.output import run_to_an_exit


def main() -> None:
    """Entry point of `kakoi`."""
    run_to_an_exit(_main)


def _main() -> None:
    # The commonest question of scripts is answered before anything heavy is imported.
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"kakoi {__version__}")
        return
    from kakoi.cli.app import app

    app(prog_name="kakoi")
