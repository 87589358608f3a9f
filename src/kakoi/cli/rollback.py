"""`kakoi rollback`: the copy as it was at a checkpoint."""

from pathlib import Path

import click

from kakoi.cli.copies import overlay_of, overlay_options


@click.command(epilog="Exit status: 0; 2 wrong usage, there is none of that name, or it is in use.")
@click.argument("name")
@overlay_options
def command(*, name: str, workspace: str, config_file: Path | None) -> None:
    """Forget all that was changed after the checkpoint NAME, and every checkpoint after it."""
    overlay_of(workspace, config_file).rollback(name)
