"""`kakoi install-client`: make an MCP client start `kakoi mcp`."""

import difflib
import json
import os
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import click

from kakoi.cli.clients import CLIENTS, Client
from kakoi.cli.merging import CannotMerge
from kakoi.cli.opening import existing_directory
from kakoi.errors import ConfigurationError
from kakoi.printable import shown
from kakoi.redact import redact

# Claude Code keeps the history of its sessions in the same file.
_LONGEST: Final = 64 * 1024 * 1024
_STATUS: Final = "Exit status: 0 it is there now, or was; 2 the file cannot be read, or written."


@click.command(epilog=_STATUS)
@click.argument("name", metavar="CLIENT", type=click.Choice(list(CLIENTS)))
@click.option(
    "--scope",
    type=click.Choice(["user", "project"]),
    default="user",
    show_default=True,
    help="For all your projects, or for this one and everybody who works on it.",
)
@click.option("--workspace", metavar="DIR", default=".", help="The project (default: this one).")
@click.option("--dry-run", is_flag=True, help="Show the change, and change nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, name: str, scope: str, workspace: str, dry_run: bool, as_json: bool) -> None:
    """Write kakoi's entry into the settings of CLIENT: claude, cursor, codex, vscode or gemini.

    All else in the file stays as it is, and the file as it was is kept beside it.
    """
    client = CLIENTS[name]
    if scope == "project":
        existing_directory(workspace)
    path = client.file(scope, Path(workspace), os.environ)
    argv = [*own_argv(), "mcp"] if scope == "user" else ["kakoi", "mcp"]
    before = _read(path)
    after = _merged(client, path, before or "", argv, scope)
    changed = after != before
    backup: Path | None = None
    if changed and not dry_run:
        backup = _write(path, before, after, mode=0o600 if scope == "user" else 0o644)
    if as_json:
        told: dict[str, Any] = {
            "client": name,
            "file": str(path),
            "changed": changed,
            "written": changed and not dry_run,
            "backup": None if backup is None else str(backup),
            "entry": client.entry(argv),
        }
        click.echo(json.dumps(told, indent=2))
    elif not changed:
        click.echo(f"{client.title} knows kakoi already: {shown(str(path))}")
    elif dry_run:
        click.echo(_diff(path, before or "", after), nl=False)
    else:
        click.echo(f"{client.title} knows kakoi now: {shown(str(path))}")
        if backup is not None:
            click.echo(f"  as it was: {shown(str(backup))}")
        click.echo(f"  next: {client.check}")


def own_argv() -> list[str]:
    """How to start this very kakoi: clients have another PATH than the terminal has."""
    started = Path(sys.argv[0])
    if started.name == "kakoi" and os.access(started, os.X_OK):
        return [os.path.abspath(started)]
    found = Path(sys.executable).with_name("kakoi")
    return [str(found)] if os.access(found, os.X_OK) else [sys.executable, "-m", "kakoi"]


def _merged(client: Client, path: Path, before: str, argv: list[str], scope: str) -> str:
    try:
        return client.merged(before, argv)
    except CannotMerge as error:
        raise ConfigurationError(
            f"{path} is left as it is: {error}", hint=client.by_hand_for(argv, scope)
        ) from None


def _diff(path: Path, before: str, after: str) -> str:
    """The change. Beside it may stand what nobody should see: other servers' tokens."""
    lines = difflib.unified_diff(
        redact(before).splitlines(), redact(after).splitlines(), str(path), str(path), lineterm=""
    )
    return "".join(f"{shown(line)}\n" for line in lines)


# --- The file --------------------------------------------------------------------------------


def _read(path: Path) -> str | None:
    """The whole text, with its line ends as they are; None if there is no file."""
    try:
        # A pipe has nobody at its other end to wait for.
        with open(
            path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)
        ) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _unusable(path, "it is no plain file")
            data = file.read(_LONGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None
    if len(data) > _LONGEST:
        raise _unusable(path, f"it has more than {_LONGEST} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _unusable(path, f"it is no UTF-8 text (byte {error.start})") from None


def _write(path: Path, before: str | None, after: str, *, mode: int) -> Path | None:
    """All of the new text, or nothing. Where a link leads, the file there. `mode`: of a new one."""
    real = path.resolve()
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
        backup = None if before is None else _backup(real)
        handle, temporary = tempfile.mkstemp(prefix=f"{real.name}.", dir=real.parent)
        try:
            with open(handle, "w", encoding="utf-8", newline="") as file:
                file.write(after)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), mode if before is None else _mode(real))
            if _read(real) != before:
                raise _unusable(path, "somebody else has just changed it; try again")
            os.replace(temporary, real)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise _unusable(path, error.strerror or str(error)) from None
    return backup


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _backup(path: Path) -> Path:
    """A copy under a name that nothing has yet."""
    for number in range(1, 1000):
        backup = path.with_name(f"{path.name}.before-kakoi" + (f"-{number}" if number > 1 else ""))
        if not os.path.lexists(backup):
            shutil.copy2(path, backup)
            return backup
    raise _unusable(path, f"there are 999 copies of it beside it, {backup.name} the last")


def _unusable(path: Path, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is left as it is: {why}", hint="kakoi install-client CLIENT --dry-run"
    )
