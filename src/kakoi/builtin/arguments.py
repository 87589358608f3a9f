"""Checks of the arguments of built-in tools, which models and people pass."""

from collections.abc import Sequence

from kakoi._support.parsing import wrong
from kakoi.errors import ConfigurationError


def check_text(what: str, value: object) -> str:
    """Check a string that is not empty and can be encoded."""
    if not isinstance(value, str) or not value:
        raise wrong(what, value, "text")
    encode(what, value)
    return value


def check_name(what: str, value: object) -> str:
    """Check a name that git cannot take for an option, or for a transport (`ext::`)."""
    name = check_text(what, value)
    if name.startswith("-") or "::" in name:
        raise wrong(what, name, "a plain name")
    return name


def check_branch(what: str, value: object) -> str:
    """Check the name of one branch: in git, `+main` forces, `:main` deletes, `*` means all."""
    branch = check_name(what, value)
    if branch.startswith("+") or ":" in branch or "*" in branch:
        raise wrong(what, branch, "the name of one branch", hint="`shell` runs any git command")
    return branch


def check_names(what: str, value: object) -> list[str]:
    """Check a list of non-empty strings; None is an empty list."""
    if value is None:
        return []
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        raise wrong(what, value, "a list of names")
    return [check_text(f"a name in {what}", each) for each in value]


def encode(what: str, value: object) -> bytes:
    """Encode a string as the input of a program."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} is {type(value).__name__}; it must be text")
    if "\0" in value:
        raise ConfigurationError(f"{what} contains a NUL, which no program accepts")
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what} contains a lone surrogate and is not text") from None
