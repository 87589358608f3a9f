"""What a model is told about the commands it may run (spec A, 6.5).

The text is a template with one gap, for the list of commands. A project may bring a template of its
own: text of strangers, so it is read with limits and the gap is filled by plain replacement.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Final

from kakoi.agent.project import project_text
from kakoi.policy.profiles import prompt_commands
from kakoi.policy.rules import Policy

TEMPLATE_NAME: Final = "system_prompt_command_executor.txt"
PLACEHOLDER: Final = "{allowed_commands_list}"
_HEADING: Final = re.compile(r"(#{1,6})\s+(.+?)\s*#*\s*")
# As a line of its own, however it is marked.
_PLAIN: Final = re.compile(r"\W*(available mcp tools|behavior rules)\W*", re.IGNORECASE)
_PLAIN_LEVEL: Final = 7
_FENCE: Final = re.compile(r"\s{0,3}(```|~~~)")


def command_executor_prompt(policy: Policy, template: str | None = None) -> str:
    """The section on commands, with those that `policy` advertises. Ends with a line break."""
    text = shipped_template() if template is None else template
    return text.replace(PLACEHOLDER, prompt_commands(policy)).rstrip("\n") + "\n"


def with_command_executor(
    system_prompt: str, policy: Policy, *, enabled: bool, template: str | None = None
) -> str:
    """`system_prompt` with the section on commands, if the feature is enabled.

    It stands right after the section "Available MCP Tools", which is right before "Behavior
    Rules"; before the latter if only that one is there, and at the end if neither is.
    """
    if not enabled:
        return system_prompt
    lines = system_prompt.splitlines(keepends=True)
    at = _place(lines)
    before, after = "".join(lines[:at]).rstrip("\n"), "".join(lines[at:])
    parts = [before, command_executor_prompt(policy, template).rstrip("\n"), after]
    text = "\n\n".join(part for part in parts if part)
    return text if after else text + "\n"


def shipped_template() -> str:
    """The text of the specification."""
    return files("kakoi.agent").joinpath(TEMPLATE_NAME).read_text(encoding="utf-8")


def own_template(project: str | Path) -> str | None:
    """The template at the root of a project; None if it has none."""
    hint = "mend it, or remove it: then kakoi's own text is used"
    return project_text(Path(project, TEMPLATE_NAME), hint=hint)


# --- Where it goes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Heading:
    line: int
    level: int
    title: str


def _place(lines: list[str]) -> int:
    """The number of the line before which the section stands."""
    headings = list(_headings(lines))
    tools = _named(headings, "available mcp tools")
    rules = _named(headings, "behavior rules")
    if tools is None:
        return len(lines) if rules is None else rules.line
    later = [
        each
        for each in headings
        if each.line > tools.line and (each.level <= tools.level or each is rules)
    ]
    return later[0].line if later else len(lines)


def _named(headings: list[_Heading], title: str) -> _Heading | None:
    return next((each for each in headings if title in each.title.lower()), None)


def _headings(lines: list[str]) -> Iterator[_Heading]:
    """The headings of a Markdown text; a `#` inside a fenced block is none."""
    fence = ""
    for number, line in enumerate(lines):
        if mark := _FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        elif not fence and (heading := _HEADING.fullmatch(line.rstrip())):
            yield _Heading(number, len(heading[1]), heading[2])
        elif not fence and _PLAIN.fullmatch(line):
            yield _Heading(number, _PLAIN_LEVEL, line)
