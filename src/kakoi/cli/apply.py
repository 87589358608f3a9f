"""`kakoi apply`: what commands have changed in the copy becomes true in the project."""

import json
import sys
from pathlib import Path

import click

from kakoi.cli.copies import counted, overlay_of, overlay_options
from kakoi.printable import shown


@click.command(
    epilog="Exit status: 0 all of it was taken over, 1 something was refused, 2 wrong usage, or it "
    "is in use."
)
@click.argument("paths", nargs=-1)
@click.option("--force", is_flag=True, help="Take over also what was changed in the project since.")
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@overlay_options
def command(
    *,
    paths: tuple[str, ...],
    force: bool,
    as_json: bool,
    workspace: str,
    config_file: Path | None,
) -> None:
    """Take over what `kakoi run --cow` has changed; only PATHS and what is below, if there are any.

    What was changed in the project meanwhile is refused, one by one. Sockets, devices and setuid
    bits are never taken over. If it is interrupted, say it again.
    """
    applied = overlay_of(workspace, config_file).apply(paths, force=force)
    if as_json:
        refused = [{"path": path, "reason": why} for path, why in applied.refused]
        click.echo(json.dumps({"applied": applied.done, "refused": refused}, indent=2))
    else:
        for path, why in applied.refused:
            click.echo(f"kakoi: not taken over: {shown(path)}: {why}", err=True)
        click.echo(f"{counted(len(applied.done))} taken over")
    sys.exit(1 if applied.refused else 0)
