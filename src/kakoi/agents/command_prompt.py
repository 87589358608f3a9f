"""The section of the system prompt about the commands that a model can run.

The text is a template with one placeholder, for the list of commands. A project can bring its own
template. That is untrusted text, so it is read with limits and filled by plain replacement.
"""

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.agents.project_rules import read_project_text
from kakoi.policy.profiles import prompt_commands
from kakoi.policy.rules import Policy
from kakoi.settings.tasks import McpServerSection

TEMPLATE_NAME: Final = "system_prompt_command_executor.txt"
OWN_SERVER: Final = McpServerSection().name
PLACEHOLDER: Final = "{allowed_commands_list}"
_HEADING: Final = pattern(r"(#{1,6})\s+(.+?)\s*#*\s*")
# On a line of its own, with any markup.
_PLAIN: Final = pattern(r"\W*(available mcp tools|behavior rules)\W*", re.IGNORECASE)
_PLAIN_LEVEL: Final = 7
_FENCE: Final = pattern(r"\s{0,3}(```|~~~)")


def command_executor_prompt(
    policy: Policy, template: str | None = None, *, server: str = OWN_SERVER
) -> str:
    """Return the section, with the commands that `policy` advertises. Ends with a newline.

    `server`: the name of the MCP server, in kakoi's own template.
    """
    if template is None:
        text = default_template().replace(f"`{OWN_SERVER}`", f"`{server}`")
    else:
        text = template
    return text.replace(PLACEHOLDER, prompt_commands(policy)).rstrip("\n") + "\n"


def with_command_executor(
    system_prompt: str,
    policy: Policy,
    *,
    enabled: bool,
    template: str | None = None,
    server: str = OWN_SERVER,
) -> str:
    """Return `system_prompt` with the section on commands, if the feature is enabled.

    It goes right after the section "Available MCP Tools", which is right before "Behavior Rules";
    before the latter if only that one exists, and at the end if neither does.
    """
    if not enabled:
        return system_prompt
    lines = system_prompt.splitlines(keepends=True)
    at = _section_line(lines)
    before, after = "".join(lines[:at]).rstrip("\n"), "".join(lines[at:])
    section = command_executor_prompt(policy, template, server=server)
    parts = [before, section.rstrip("\n"), after]
    text = "\n\n".join(part for part in parts if part)
    return text if after else text + "\n"


def default_template() -> str:
    """Return the template that kakoi ships."""
    return files("kakoi.agents").joinpath(TEMPLATE_NAME).read_text(encoding="utf-8")


def read_project_template(project: str | Path) -> str | None:
    """Return the template at the root of a project; None if it has none."""
    hint = "fix it, or remove it to use kakoi's own text"
    return read_project_text(Path(project, TEMPLATE_NAME), hint=hint)


# --- Where it goes ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Heading:
    line: int
    level: int
    title: str


def _section_line(lines: list[str]) -> int:
    """Return the index of the line before which the section goes."""
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
    """Yield the headings of a Markdown text; a `#` in a fenced block does not count."""
    fence = ""
    for number, line in enumerate(lines):
        if mark := _FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        elif not fence and (heading := _HEADING.fullmatch(line.rstrip())):
            yield _Heading(number, len(heading[1]), heading[2])
        elif not fence and _PLAIN.fullmatch(line):
            yield _Heading(number, _PLAIN_LEVEL, line)
