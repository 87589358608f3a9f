"""`kakoi discard`: forget what commands have changed in the copy."""

from pathlib import Path

import click

from kakoi.cli.copies import counted, overlay_of, overlay_options


@click.command(epilog="Exit status: 0; 2 wrong usage, or it is in use.")
@overlay_options
def command(*, workspace: str, config_file: Path | None) -> None:
    """Throw away all that `kakoi run --cow` has changed, checkpoints too."""
    gone = overlay_of(workspace, config_file).discard()
    click.echo(f"{counted(len(gone))} thrown away")
