"""Arguments and settings, checked: a ConfigurationError says what is wrong, and what is right."""

import os
import reprlib
from collections.abc import Iterable
from typing import Final

from kakoi.errors import ConfigurationError

_LONGEST_S: Final = 10.0 * 365 * 24 * 3600


def wrong(what: str, value: object, wanted: str, *, hint: str = "") -> ConfigurationError:
    """The error for a value that is not what it must be."""
    return ConfigurationError(f"{what} is {shown(value)}; it must be {wanted}", hint=hint)


def shown(value: object) -> str:
    """A value in an error message: never long, whatever it is."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = 80
    try:
        return short.repr(value).encode("utf-8", "backslashreplace").decode()
    except Exception:  # Its own repr failed: it is only to be named.
        return f"a {type(value).__name__}"


def text(what: str, value: object) -> str:
    """Text with something in it."""
    if not isinstance(value, str):
        hint = "decode it first" if isinstance(value, bytes | bytearray) else ""
        raise wrong(what, value, "text", hint=hint)
    if not value.strip():
        raise wrong(what, value, "text with something in it")
    return value


def texts(what: str, value: object) -> tuple[str, ...]:
    """A list of texts; one text alone is not taken for the list of its letters."""
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable):
        raise wrong(what, value, "a list of texts", hint="write [ls] and not ls")
    return tuple(text(f"{what}[{index}]", each) for index, each in enumerate(value))


def patterns(what: str, value: object) -> tuple[str, ...]:
    """A list of texts of which none is empty: the empty text is in every command."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) and each for each in value):
        return tuple(value)
    return texts(what, value)


def boolean(what: str, value: object) -> bool:
    """true or false."""
    if not isinstance(value, bool):
        raise wrong(what, value, "true or false")
    return value


def seconds(what: str, value: object) -> float:
    """A time that can pass."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(what, value, "a number of seconds")
    if not 0 < value < _LONGEST_S:
        raise wrong(what, value, "a number of seconds above zero")
    return float(value)


def path(what: str, value: object) -> str:
    """Something that can name a file."""
    named = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(named, str) and "\0" in named:
        raise wrong(what, named, "a path, which cannot hold a NUL")
    return text(what, named)


def command(value: object) -> str:
    """A command is text. Whether it may run, and if there is anything in it, is not asked here."""
    if not isinstance(value, str):
        hint = "decode it first" if isinstance(value, bytes | bytearray) else "give shell text"
        raise wrong("the command", value, "text", hint=hint)
    return value
