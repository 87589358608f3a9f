"""Text that is safe to show: printable, short, and without secrets."""

import reprlib
from typing import Final

MAX_REPR: Final = 80


def shown(text: str) -> str:
    """Return the text as one line, with every character that a terminal would obey escaped."""
    return "".join(_shown_character(char) for char in text)


def _shown_character(char: str) -> str:
    if char == "\t":
        return " "
    if char.isprintable():
        return char
    return f"\\u{ord(char):04x}" if ord(char) > 0xFF else f"\\x{ord(char):02x}"


def short_repr(value: object) -> str:
    """Return a value for an error message: at most MAX_REPR printable characters, no secrets."""
    from kakoi._support.redact import redact  # Only errors need it.

    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = MAX_REPR
    try:
        text = short.repr(value)
    except Exception:  # Its own `repr` failed.
        return f"a {type(value).__name__}"
    text = text if len(text) <= MAX_REPR else text[: MAX_REPR - 3] + "..."
    return redact(text.encode("utf-8", "backslashreplace").decode())
