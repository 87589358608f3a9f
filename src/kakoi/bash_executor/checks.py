"""Checks of arguments: each raises a ConfigurationError that says what is wrong and expected."""

import os
from collections.abc import Iterable

from kakoi._support.fields import FLAG, NUMBER, TEXTS
from kakoi._support.parsing import wrong


def text(what: str, value: object) -> str:
    """Check a string that is not blank."""
    if not isinstance(value, str):
        hint = "decode it first" if isinstance(value, bytes | bytearray) else "write it in quotes"
        raise wrong(what, value, "text", hint=hint)
    if not value.strip():
        raise wrong(what, value, "text that is not blank")
    return value


def texts(what: str, value: object) -> tuple[str, ...]:
    """Check a list of strings, none of them empty."""
    found: tuple[str, ...] = TEXTS.read(listed(what, value, "a list of texts"), what)
    return found


def patterns(what: str, value: object) -> tuple[str, ...]:
    """Check a list of strings. A line break is allowed; an empty string would match everything."""
    items = listed(what, value, "a list of texts")
    found = tuple(each for each in items if isinstance(each, str) and each)
    if len(found) < len(items):
        raise wrong(what, items, "a list of texts, none of them empty")
    return found


def listed(what: str, value: object, wanted: str) -> list[object]:
    """Check a list. A string is not taken for a list of its characters."""
    if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable):
        raise wrong(what, value, wanted, hint="write [ls] instead of ls")
    return list(value)


def boolean(what: str, value: object) -> bool:
    """Check a boolean."""
    found: bool = FLAG.read(value, what)
    return found


def seconds(what: str, value: object) -> float:
    """Check a positive number of seconds."""
    return float(NUMBER.read(value, what))


def path(what: str, value: object) -> str:
    """Check a path."""
    named = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(named, str) and "\0" in named:
        raise wrong(what, named, "a path without a NUL")
    return text(what, named)


def command(value: object) -> str:
    """Check that a command is a string. The policy checks if it is empty and if it can run."""
    if not isinstance(value, str):
        hint = "decode it first" if isinstance(value, bytes | bytearray) else "pass shell text"
        raise wrong("the command", value, "text", hint=hint)
    return value
