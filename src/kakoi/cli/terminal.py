"""Our own terminal: its size, and raw mode that is undone on every way out."""

import contextlib
import os
import termios
import tty
from collections.abc import Iterator

from kakoi.runner.commands import TerminalSize


def terminal_size() -> TerminalSize:
    """How big our terminal is, by the first of our streams that is one."""
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(fd)
            # A serial line does not know, and says 0.
            return TerminalSize(size.lines or 24, size.columns or 80)
    return TerminalSize()


@contextlib.contextmanager
def raw_terminal(fd: int) -> Iterator[None]:
    """Every key goes through as it is, until the block is left."""
    before = termios.tcgetattr(fd)
    tty.setraw(fd, termios.TCSANOW)
    try:
        yield
    finally:
        # At once: a terminal that nobody reads any more would never be done with its output.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSANOW, before)
