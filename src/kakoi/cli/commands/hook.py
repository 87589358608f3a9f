"""`kakoi hook`: judge the commands of an agent that runs them itself."""

import json
from typing import Final

import click

from kakoi.cli import claude_code as hook
from kakoi.cli.group import CommandGroup, help_end

_EXAMPLES: Final = (
    "kakoi hook claude-code --settings",
    "kakoi hook claude-code --confine <event.json",
)


@click.group(cls=CommandGroup, epilog=help_end(*_EXAMPLES))
def command() -> None:
    """Judge the commands of an agent that runs them itself.

    `kakoi client install` is for agents that use kakoi as a tool.
    """


@command.command(
    "claude-code",
    short_help="Judge the Bash commands of Claude Code.",
    epilog=help_end(
        *_EXAMPLES, exit_codes="0 a decision, or no opinion; 2 (which blocks) on any error."
    ),
)
@click.option(
    "--confine/--no-confine",
    default=None,
    help="Rewrite allowed commands so that they run inside kakoi; the default of `--settings`.",
)
@click.option(
    "--settings",
    is_flag=True,
    help="Print the entry for ~/.claude/settings.json, and read nothing.",
)
def claude_code(*, confine: bool | None, settings: bool) -> None:
    """Answer a PreToolUse hook of Claude Code: may this Bash command run?

    The policy is that of the project. Without `--confine`, or if the settings name the unconfined
    host, an allowed command would run unconfined, so Claude Code decides about it as if there were
    no hook. Other tools are left to Claude Code. Each verdict is recorded (see `kakoi audit`).
    """
    if settings:
        click.echo(json.dumps(hook.settings(confine=confine is not False), indent=2))
    else:
        hook.answer(confine=bool(confine))
