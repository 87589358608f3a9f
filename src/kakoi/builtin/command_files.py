"""Command files: a task in Markdown, with front matter that limits its tools.

---
name: auto-deploy
allowed_tools: [shell, git]
---
What to do, in words.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from kakoi._support.late import dataclass, pattern
from kakoi._support.parsing import (
    Section,
    begins_with_front_matter,
    front_matter,
    read_text,
    wrong,
)
from kakoi._support.text import short_repr
from kakoi.builtin.registry import GROUPS, PREFIX, Tool, find
from kakoi.errors import ConfigurationError, SecurityError

_NAME = pattern(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class CommandFile:
    """A task and its tools. `allowed_tools`: groups of tools; an empty list allows none."""

    name: str
    allowed_tools: tuple[str, ...]
    task: str
    description: str = ""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The functions that the task can use, by name."""
        return {name: tool for group in self.allowed_tools for name, tool in find(group).items()}

    def tool(self, name: str) -> Tool:
        """Return one of them by name; raise SecurityError if the task cannot use it."""
        found = self.tools.get(name)
        if found is None:
            known = any(name in group for group in GROUPS.values())
            why = "is not allowed here" if known else "is not a tool"
            raise SecurityError(
                f"`{name}` {why}: the command `{self.name}` is limited to its tools",
                details={"tool": name, "allowed_tools": list(self.allowed_tools)},
                hint=f"it has: {', '.join(self.tools) or 'none'}",
            )
        return found


def load_command_file(path: str | os.PathLike[str]) -> CommandFile:
    """Read a command file; raise a ConfigurationError that says what is wrong with it and where."""
    try:
        text = read_text(Path(path))
    except (TypeError, ValueError) as error:  # A NUL, or not a path at all.
        raise ConfigurationError(
            f"cannot read the command file {short_repr(path)}: {error}"
        ) from None
    if text is None:
        raise ConfigurationError(f"cannot read the command file {path}: not found")
    return parse_command_file(text, origin=str(path))


def is_command_file(path: str | os.PathLike[str]) -> bool:
    """Whether the front matter of a file names tools or a command, and not a task's repository.

    Broken front matter is an error: nobody knows what was meant.
    """
    try:
        text = read_text(Path(path)) or ""
    except ConfigurationError:
        return False
    if not begins_with_front_matter(text):
        return False
    front, _ = front_matter(text, origin=str(path))
    return "repository" not in front and not {"name", "allowed_tools"}.isdisjoint(front)


def parse_command_file(text: str, *, origin: str) -> CommandFile:
    """Parse the content of a command file."""
    front, task = front_matter(text, origin=origin)
    section = Section(front, origin, "name allowed_tools description")
    name = section.text("name")
    if not _NAME.fullmatch(name):
        raise wrong(section.at("name"), name, "a short name of letters, digits, `-`, `_` and `.`")
    allowed = tuple(each.removeprefix(PREFIX) for each in section.texts("allowed_tools") or ())
    for group in allowed:
        find(group)
    return CommandFile(name, allowed, task, section.text("description"))
