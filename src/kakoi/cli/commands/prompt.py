"""`kakoi prompt`: the section of a system prompt that explains commands to a model."""

import json
from pathlib import Path
from typing import Final

import click

from kakoi.agents.command_prompt import (
    TEMPLATE_NAME,
    read_project_template,
    with_command_executor,
)
from kakoi.cli.group import help_end
from kakoi.cli.io.messages import print_message
from kakoi.cli.options import policy_options, target_from
from kakoi.errors import ConfigurationError
from kakoi.settings.tasks import EXECUTOR_IS_OFF, HOW_TO_ENABLE

_LONGEST: Final = 8 * 1024 * 1024
_HELP_END: Final = help_end(
    "kakoi prompt",
    "kakoi prompt --into system-prompt.md",
    exit_codes="0 success; 2 usage error, or a template, prompt or settings file is invalid.",
)


@click.command(epilog=_HELP_END)
@policy_options
@click.option(
    "--into",
    metavar="FILE",
    help="Print this system prompt with the section inserted (`-` reads stdin); unchanged if "
    "`tasks.enabled` is false.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.pass_context
def command(
    context: click.Context, /, *, into: str | None, as_json: bool, **_settings: object
) -> None:
    """Print the section of a system prompt that lists the allowed commands.

    The list comes from the effective policy. A file system_prompt_command_executor.txt at the root
    of the workspace replaces kakoi's own text. If `tasks.enabled` is false, there is no section.
    """
    target = target_from(context)
    policy = target.policy()
    enabled = target.settings.tasks.enabled
    template = read_project_template(target.directory)
    prompt = "" if into is None else _read(into)
    server = target.settings.tasks.mcp_server.name
    text = with_command_executor(prompt, policy, enabled=enabled, template=template, server=server)
    if as_json:
        fields = {
            "enabled": enabled,
            "policy": policy.name,
            "template": str(Path(target.directory, TEMPLATE_NAME)) if template else None,
            "prompt": text,
        }
        click.echo(json.dumps(fields, indent=2))
        return
    click.echo(text, nl=False)
    if not enabled:
        print_message(f"there is no section: {EXECUTOR_IS_OFF}", hint=HOW_TO_ENABLE)


def _read(name: str) -> str:
    try:
        with click.open_file(name, "rb") as file:
            data: bytes = file.read(_LONGEST + 1)
    except OSError as error:
        raise ConfigurationError(
            f"cannot read {name}: {error.strerror}", hint="kakoi prompt --into FILE"
        ) from None
    if len(data) > _LONGEST:
        raise ConfigurationError(f"{name} is too long for a prompt (more than {_LONGEST} bytes)")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{name} is not UTF-8 text (byte {error.start})") from None
