"""The terminal of the user: its size, raw mode, and command output that cannot control it.

A terminal obeys escape sequences: they retitle the window, hide earlier output, or type for the
user. Colors do no harm and stay; everything else is escaped, as `cat -v` does. Output to a pipe or
a file is passed on byte for byte.
"""

import codecs
import contextlib
import os
import re
import termios
import tty
from collections.abc import Iterator
from typing import Final

from kakoi._support.late import pattern
from kakoi.channel.api import TerminalSize
from kakoi.cli.io.streams import write_all

# Colors and weights; the length is bounded so that little is ever held back.
_COLOR: Final = r"\x1b\[[0-9;:]{0,40}m"
_UNSAFE: Final = pattern(_COLOR + r"|[^\t\n\r\x20-\x7e]")
_INCOMPLETE: Final = pattern(r"\x1b(\[[0-9;:]{0,40})?\Z")
# "Conceal" hides text from the eye, but not from copy and paste.
_CONCEALED: Final = pattern(r"[\[;:]0*8[;m]")
_RESET: Final = b"\x1b[0m"


def terminal_size() -> TerminalSize:
    """The size of the first standard stream that is a terminal."""
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(fd)
            # A serial line does not know its size, and reports 0.
            return TerminalSize(size.lines or 24, size.columns or 80)
    return TerminalSize()


@contextlib.contextmanager
def raw_terminal(fd: int) -> Iterator[None]:
    """Pass every key on unchanged until the block ends."""
    before = termios.tcgetattr(fd)
    tty.setraw(fd, termios.TCSANOW)
    try:
        yield
    finally:
        # TCSANOW: a terminal that nobody reads would never drain its output.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSANOW, before)


class Screen:
    """Stdout or stderr, for the output of commands. `raw`: write it unchanged to a terminal too."""

    def __init__(self, fd: int, *, raw: bool = False) -> None:
        self._fd = fd
        self._escapes = not raw and os.isatty(fd)
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._held = ""
        self._is_colored = False

    def write(self, data: bytes) -> None:
        """Write it, except for an incomplete sequence at its end, which waits for the next part."""
        if not self._escapes:
            write_all(self._fd, data)
            return
        text = self._held + self._decoder.decode(data)
        incomplete = _INCOMPLETE.search(text)
        self._held = incomplete.group() if incomplete else ""
        self._write_text(text[: incomplete.start()] if incomplete else text)

    def end(self) -> None:
        """Write what was held back, and reset the color."""
        if not self._escapes:
            return
        self._write_text(self._held + self._decoder.decode(b"", final=True))
        self._held = ""
        if self._is_colored:
            write_all(self._fd, _RESET)

    def _write_text(self, text: str) -> None:
        write_all(self._fd, _UNSAFE.sub(self._escape, text).encode())

    def _escape(self, found: "re.Match[str]") -> str:
        text = found.group()
        if len(text) > 1 and not _CONCEALED.search(text):
            self._is_colored = True
            return text
        return "".join(map(_caret, text))


def _caret(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x20 or code == 0x7F:
        return f"^{chr(code ^ 0x40)}"
    return f"\\u{code:04x}" if code > 0xFF else f"\\x{code:02x}"
