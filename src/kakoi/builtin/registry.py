"""The built-in tools by name: groups such as `@builtin.git`, and their functions."""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from kakoi._support.parsing import nearest
from kakoi._support.text import short_repr
from kakoi.builtin.file import file_search, grep_content
from kakoi.builtin.git import git_commit, git_create_pr, git_push, git_status
from kakoi.builtin.shell import shell
from kakoi.errors import ConfigurationError

Tool = Callable[..., Awaitable[Any]]
PREFIX: Final = "@builtin."
GROUPS: Final[Mapping[str, Mapping[str, Tool]]] = MappingProxyType(
    {
        "shell": {"shell": shell},
        "git": {
            "git_commit": git_commit,
            "git_push": git_push,
            "git_status": git_status,
            "git_create_pr": git_create_pr,
        },
        "file": {"file_search": file_search, "grep_content": grep_content},
    }
)


def find(name: str) -> Mapping[str, Tool]:
    """Return the functions of a group, such as `@builtin.git` or `git`."""
    group = name.removeprefix(PREFIX) if isinstance(name, str) else ""  # type: ignore[redundant-expr]
    if group not in GROUPS:
        names = [PREFIX + each for each in GROUPS]
        raise ConfigurationError(
            f"unknown built-in {short_repr(name)}{nearest(PREFIX + group, names)}",
            hint=f"use one of: {', '.join(names)}",
        )
    return GROUPS[group]
