"""The built-ins by name: groups as in `@builtin.git`, and the functions in them."""

import difflib
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

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
    """The functions of a group: `@builtin.git`, or `git`."""
    group = str(name).removeprefix(PREFIX)
    if group not in GROUPS:
        close = difflib.get_close_matches(group, GROUPS, n=1)
        advice = f"; did you mean `{PREFIX}{close[0]}`?" if close else ""
        raise ConfigurationError(
            f"there is no built-in {name!r:.80}{advice}",
            hint=f"one of: {', '.join(PREFIX + each for each in GROUPS)}",
        )
    return GROUPS[group]
