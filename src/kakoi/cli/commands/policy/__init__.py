"""`kakoi policy`: what is allowed, and what is not asked about again."""

from typing import Final

import click

from kakoi.cli.group import LazyGroup, help_end

_COMMANDS: Final = {
    "show": "Print the effective policy, and where each part comes from.",
    "remembered": "List what you have allowed for always, or remove it.",
    "learn": "Propose what to allow, from what was refused and asked about.",
}


@click.group(
    cls=LazyGroup,
    package=__name__,
    sections={"Commands": _COMMANDS},
    elsewhere={"list": "show", "forget": "remembered", "approvals": "remembered"},
    epilog=help_end("kakoi policy show", "kakoi policy remembered"),
)
def command() -> None:
    """Show what is allowed, and why; change what is asked about."""
