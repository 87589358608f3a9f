"""What a model or a person gave as an argument, checked: anything may come."""

from collections.abc import Sequence

from kakoi.errors import ConfigurationError
from kakoi.sections import wrong


def text(what: str, given: object) -> str:
    """A text that is not empty and can be written down."""
    if not isinstance(given, str) or not given:
        raise wrong(what, given, "text")
    encoded(what, given)
    return given


def name(what: str, given: object) -> str:
    """A name that git cannot take for an option, or for a way to start programs (`ext::`)."""
    found = text(what, given)
    if found.startswith("-") or "::" in found:
        raise wrong(what, found, "the name of one")
    return found


def branch(what: str, given: object) -> str:
    """The name of one branch: to git, `+main` forces, `:main` deletes and `*` is all of them."""
    found = name(what, given)
    if found.startswith("+") or ":" in found or "*" in found:
        raise wrong(what, found, "the name of one branch", hint="`shell` runs any command of git")
    return found


def names(what: str, given: object) -> list[str]:
    """A list of texts; None is an empty one."""
    if given is None:
        return []
    if isinstance(given, str | bytes) or not isinstance(given, Sequence):
        raise wrong(what, given, "a list of names")
    return [text(f"a name in {what}", each) for each in given]


def encoded(what: str, given: object) -> bytes:
    """A text as bytes, for the input of a program."""
    if not isinstance(given, str):
        raise ConfigurationError(f"{what} is {type(given).__name__}; it must be text")
    if "\0" in given:
        raise ConfigurationError(f"{what} holds a NUL; no program can be given one")
    try:
        return given.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what} holds a lone surrogate; it is no text") from None
