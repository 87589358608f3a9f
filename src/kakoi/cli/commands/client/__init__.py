"""`kakoi client`: make an MCP client start `kakoi mcp`."""

import difflib
import json
import os
from pathlib import Path
from typing import Any

import click

from kakoi._support.redact import redact
from kakoi._support.text import shown
from kakoi.cli.commands.client.clients import CLIENTS, McpClient
from kakoi.cli.commands.client.config_file import CannotMerge
from kakoi.cli.commands.client.settings_file import SettingsFile
from kakoi.cli.group import CommandGroup, help_end
from kakoi.cli.installation import own_argv
from kakoi.cli.target import existing_directory
from kakoi.errors import ConfigurationError


@click.group(
    cls=CommandGroup,
    epilog=help_end("kakoi client install claude", "kakoi client install cursor --scope project"),
)
def command() -> None:
    """Connect kakoi to Claude Code, Cursor, Codex, VS Code or Gemini CLI."""


@command.command(
    short_help="Add kakoi to the settings of a client.",
    epilog=help_end(
        "kakoi client install claude --dry-run",
        "kakoi client install cursor --scope project",
        exit_codes="0 the client has kakoi; 2 usage error, or the file cannot be read or written.",
    ),
)
@click.argument("name", metavar="CLIENT", type=click.Choice(list(CLIENTS)))
@click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    default="user",
    show_default=True,
    help="For all your projects, or for this project and everyone who works on it.",
)
@click.option(
    "--workspace", metavar="DIR", default=".", help="The project (default: this directory)."
)
@click.option("--dry-run", is_flag=True, help="Print the change without writing it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def install(*, name: str, scope: str, workspace: str, dry_run: bool, as_json: bool) -> None:
    """Add kakoi to the settings of CLIENT: claude, cursor, codex, vscode or gemini.

    Everything else in the file stays unchanged, and a backup is kept beside it.
    """
    client = CLIENTS[name]
    if scope == "project":
        existing_directory(workspace)
    path = client.file(scope, Path(workspace), os.environ)
    argv = [*own_argv(), "mcp"] if scope == "user" else ["kakoi", "mcp"]
    file = SettingsFile(path, None if scope == "user" else Path(workspace))
    before = file.read()
    after = _merged(client, path, before or "", argv, scope)
    changed = after != before
    backup: Path | None = None
    if changed and not dry_run:
        backup = file.replace(before, after, mode=0o600 if scope == "user" else 0o644)
    if as_json:
        fields: dict[str, Any] = {
            "client": name,
            "file": str(path),
            "changed": changed,
            "written": changed and not dry_run,
            "backup": None if backup is None else str(backup),
            "entry": client.entry(argv),
        }
        click.echo(json.dumps(fields, indent=2))
    elif not changed:
        click.echo(f"{client.title} already has kakoi: {shown(str(path))}")
    elif dry_run:
        click.echo(_diff(path, before or "", after), nl=False)
    else:
        click.echo(f"{client.title} now has kakoi: {shown(str(path))}")
        if backup is not None:
            click.echo(f"  backup: {shown(str(backup))}")
        click.echo(f"  next: {client.check}")


def _merged(client: McpClient, path: Path, before: str, argv: list[str], scope: str) -> str:
    try:
        return client.merged(before, argv)
    except CannotMerge as error:
        raise ConfigurationError(
            f"{path} was not changed: {error}", hint=client.by_hand_for(argv, scope)
        ) from None


def _diff(path: Path, before: str, after: str) -> str:
    """The change, redacted: lines nearby may contain the tokens of other servers."""
    lines = difflib.unified_diff(
        redact(before).splitlines(), redact(after).splitlines(), str(path), str(path), lineterm=""
    )
    return "".join(f"{shown(line)}\n" for line in lines)
