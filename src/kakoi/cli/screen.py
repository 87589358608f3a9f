"""What a command wrote, on our own terminal: shown there, not obeyed.

A terminal does what escape sequences say: it retitles the window, hides what was written before,
types for the user. Colours do no harm and stay; the rest is written out as `cat -v` would. Where
nobody's terminal listens (a pipe, a file), bytes are passed on as they are.
"""

import codecs
import os
import re
from typing import Final

from kakoi.cli.output import write_all

# Colours and weights; the length is bounded so that little is ever held back.
_COLOUR: Final = r"\x1b\[[0-9;:]{0,40}m"
_UNSURE: Final = re.compile(_COLOUR + r"|[^\t\n\r\x20-\x7e]")
_BEGUN: Final = re.compile(r"\x1b(\[[0-9;:]{0,40})?\Z")
# Text nobody sees: what comes after "conceal" is read by whoever pastes it, not by who looks.
_CONCEALED: Final = re.compile(r"[\[;:]0*8[;m]")
_PLAIN: Final = b"\x1b[0m"


class Screen:
    """One of our streams, for the output of commands. `raw`: the user asked for it as it is."""

    def __init__(self, fd: int, *, raw: bool = False) -> None:
        self._fd = fd
        self._is_shown = not raw and os.isatty(fd)
        self._decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        self._held = ""
        self._is_coloured = False

    def write(self, data: bytes) -> None:
        """Write it, but for a beginning of something that its next part may complete."""
        if not self._is_shown:
            write_all(self._fd, data)
            return
        text = self._held + self._decoder.decode(data)
        begun = _BEGUN.search(text)
        self._held = begun.group() if begun else ""
        self._put(text[: begun.start()] if begun else text)

    def end(self) -> None:
        """Write what was held back, and leave no colour behind."""
        if not self._is_shown:
            return
        self._put(self._held + self._decoder.decode(b"", final=True))
        self._held = ""
        if self._is_coloured:
            write_all(self._fd, _PLAIN)

    def _put(self, text: str) -> None:
        write_all(self._fd, _UNSURE.sub(self._written_out, text).encode())

    def _written_out(self, found: "re.Match[str]") -> str:
        text = found.group()
        if len(text) > 1 and not _CONCEALED.search(text):
            self._is_coloured = True
            return text
        return "".join(map(_caret, text))


def _caret(char: str) -> str:
    if char.isprintable():
        return char
    code = ord(char)
    if code < 0x20 or code == 0x7F:
        return f"^{chr(code ^ 0x40)}"
    return f"\\u{code:04x}" if code > 0xFF else f"\\x{code:02x}"
