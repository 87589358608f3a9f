"""Arguments, checked: a ConfigurationError says what is wrong, and what would be right."""

import os
from collections.abc import Iterable

from kakoi.config.kinds import FLAG, NUMBER, TEXTS
from kakoi.sections import wrong


def text(what: str, value: object) -> str:
    """Text with something in it."""
    if not isinstance(value, str):
        hint = "decode it first" if isinstance(value, bytes | bytearray) else "write it in quotes"
        raise wrong(what, value, "text", hint=hint)
    if not value.strip():
        raise wrong(what, value, "text with something in it")
    return value


def texts(what: str, value: object) -> tuple[str, ...]:
    """Some texts, none of them empty."""
    found: tuple[str, ...] = TEXTS.read(listed(what, value, "a list of texts"), what)
    return found


def patterns(what: str, value: object) -> tuple[str, ...]:
    """Some texts; a line break is one, the empty text is none: it is in every command."""
    given = listed(what, value, "a list of texts")
    found = tuple(each for each in given if isinstance(each, str) and each)
    if len(found) < len(given):
        raise wrong(what, given, "a list of texts without an empty one")
    return found


def listed(what: str, value: object, wanted: str) -> list[object]:
    """A list of something. A text is not taken for the list of its letters."""
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable):
        raise wrong(what, value, wanted, hint="write [ls] and not ls")
    return list(value)


def boolean(what: str, value: object) -> bool:
    """True or false."""
    found: bool = FLAG.read(value, what)
    return found


def seconds(what: str, value: object) -> float:
    """A time that can pass."""
    return float(NUMBER.read(value, what))


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
