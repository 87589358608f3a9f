"""The command line: a thin layer over the library, one module per command."""

import sys

from kakoi import __version__
from kakoi.cli.io.streams import run_and_exit
from kakoi.cli.late_modules import load_late


def main() -> None:
    """Entry point of `kakoi`."""
    run_and_exit(_main)


def _main() -> None:
    # Scripts ask this most often: answer before anything heavy is imported.
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"kakoi {__version__}")
        return
    load_late()
    from kakoi.cli.app import app

    app(prog_name="kakoi")
