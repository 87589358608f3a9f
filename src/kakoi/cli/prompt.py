"""`kakoi prompt`: what a model is to be told about the commands it may run."""

import json
from pathlib import Path
from typing import Final

import click

from kakoi.agent.prompt import (
    TEMPLATE_NAME,
    command_executor_prompt,
    own_template,
    with_command_executor,
)
from kakoi.cli.opening import place_from, policy_options
from kakoi.cli.telling import say
from kakoi.errors import ConfigurationError

_LONGEST: Final = 8 * 1024 * 1024
_STATUS: Final = (
    "Exit status: 0, or 2 for a template, a prompt or settings that cannot be used. "
    f"A file {TEMPLATE_NAME} at the top of the workspace is used instead of kakoi's own text."
)


@click.command(epilog=_STATUS)
@policy_options
@click.option(
    "--into",
    metavar="FILE",
    help="Print this system prompt with the section put in (`-`: standard input); as it is if "
    "`tasks.enabled` is false.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    context: click.Context, /, *, into: str | None, as_json: bool, **_settings: object
) -> None:
    """Print the section of a system prompt that tells which commands may run.

    The list in it is that of the policy that holds here.
    """
    place = place_from(context)
    policy = place.policy()
    enabled = place.settings.tasks.enabled
    template = own_template(place.directory)
    if into is None:
        text = command_executor_prompt(policy, template)
    else:
        text = with_command_executor(_read(into), policy, enabled=enabled, template=template)
    if as_json:
        told = {
            "enabled": enabled,
            "policy": policy.name,
            "template": str(Path(place.directory, TEMPLATE_NAME)) if template else None,
            "prompt": text,
        }
        click.echo(json.dumps(told, indent=2))
        return
    click.echo(text, nl=False)
    if not enabled:
        say(
            "tasks are not told this, because `tasks.enabled` is false",
            hint="set it in your settings (`kakoi config path`), or COMMAND_EXECUTOR_ENABLED=true",
        )


def _read(name: str) -> str:
    try:
        with click.open_file(name, "rb") as file:
            data: bytes = file.read(_LONGEST + 1)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {name}: {error.strerror}", hint="kakoi prompt --into FILE"
        ) from None
    if len(data) > _LONGEST:
        raise ConfigurationError(f"{name} has more than {_LONGEST} bytes; that is no prompt")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{name} is no UTF-8 text (byte {error.start})") from None
