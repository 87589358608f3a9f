"""Command files: a task in Markdown, with front matter that limits the tools it may use.

---
name: auto-deploy
allowed_tools: [shell, git]
---
What to do, in words.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kakoi.builtin.registry import GROUPS, PREFIX, Tool, find
from kakoi.documents import front_matter, read_text
from kakoi.errors import ConfigurationError, SecurityError
from kakoi.sections import Section, shown, wrong

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class CommandFile:
    """A task and its tools. `allowed_tools` are groups; none means that it may use none."""

    name: str
    allowed_tools: tuple[str, ...]
    task: str
    description: str = ""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """Every function that the task may use, by its name."""
        return {name: tool for group in self.allowed_tools for name, tool in find(group).items()}

    def tool(self, name: str) -> Tool:
        """One of them, by the name of the function; SecurityError if it may not be used."""
        found = self.tools.get(name)
        if found is None:
            known = any(name in group for group in GROUPS.values())
            why = "may not be used here" if known else "is no tool"
            raise SecurityError(
                f"`{name}` {why}: the command `{self.name}` is limited to its tools",
                details={"tool": name, "allowed_tools": list(self.allowed_tools)},
                hint=f"it has: {', '.join(self.tools) or 'none'}",
            )
        return found


def load_command_file(path: str | os.PathLike[str]) -> CommandFile:
    """Read a command file; ConfigurationError says what is wrong with it, and where."""
    try:
        text = read_text(Path(path))
    except (TypeError, ValueError) as error:  # A NUL, or nothing that could be a path.
        raise ConfigurationError(f"cannot read the command file {shown(path)}: {error}") from None
    if text is None:
        raise ConfigurationError(f"cannot read the command file {path}: it is not there")
    return parse_command_file(text, origin=str(path))


def parse_command_file(text: str, *, origin: str) -> CommandFile:
    """The same for a text."""
    front, task = front_matter(text, origin=origin)
    section = Section(front, origin, "name allowed_tools description")
    name = section.text("name")
    if not _NAME.fullmatch(name):
        raise wrong(section.at("name"), name, "a short name of letters, digits, `-`, `_` and `.`")
    allowed = tuple(each.removeprefix(PREFIX) for each in section.texts("allowed_tools") or ())
    for group in allowed:
        find(group)
    return CommandFile(name, allowed, task, section.text("description"))
