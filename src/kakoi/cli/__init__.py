"""The command line: a thin layer over the library, one module per command."""

import atexit
import gc
import os
import sys
import threading

from kakoi import __version__
from kakoi.cli.io.streams import run_and_exit
from kakoi.cli.late_modules import load_late


def main() -> None:
    """Entry point of `kakoi`."""
    # Nothing is garbage yet. It is collected again when a command begins.
    gc.disable()
    try:
        run_and_exit(_main)
    except SystemExit as end:
        _leave(end.code)
        raise
    _leave(0)


def _main() -> None:
    # Scripts ask this most often: answer before anything heavy is imported.
    if sys.argv[1:] in (["--version"], ["-V"]):
        print(f"kakoi {__version__}")
        return
    load_late()
    from kakoi.cli.plain_calls import answer

    if answer(sys.argv[1:]):
        return
    from kakoi.cli.app import app

    app(prog_name="kakoi")


def _leave(code: object) -> None:
    """End the process without destroying what was imported, which takes longer than judging.

    Returns if the interpreter has more to do: a text to print, threads to wait for, a profiler.
    """
    is_plain = code is None or isinstance(code, int)
    awaited = [each for each in threading.enumerate() if not each.daemon]  # This one, if no other.
    if not is_plain or len(awaited) > 1 or sys.gettrace() or sys.getprofile():
        return
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:  # The interpreter has its own way to say so.
            return
    os._exit((code or 0) & 0xFF)  # type: ignore[operator]
