"""`kakoi policy`: what is allowed, and which approvals are remembered."""

from typing import Final

import click

from kakoi.cli.group import LazyGroup, help_end

_COMMANDS: Final = {
    "show": "Print the effective policy, and where each part comes from.",
    "remembered": "List your remembered approvals, or remove them.",
    "learn": "Propose what to allow, based on refusals and approvals.",
}


@click.group(
    cls=LazyGroup,
    package=__name__,
    sections={"Commands": _COMMANDS},
    elsewhere={"list": "show", "forget": "remembered", "approvals": "remembered"},
    epilog=help_end("kakoi policy show", "kakoi policy remembered"),
)
def command() -> None:
    """Show what is allowed, and why; review remembered approvals."""
