"""`kakoi discard`: forget what commands have changed in the copy."""

import json
from pathlib import Path

import click

from kakoi.cli.copies import counted, overlay_of, overlay_options
from kakoi.cli.managing import json_option


@click.command(epilog="Exit status: 0; 2 wrong usage, or it is in use.")
@json_option
@overlay_options
def command(*, as_json: bool, workspace: str, config_file: Path | None) -> None:
    """Throw away all that `kakoi run --cow` has changed, checkpoints too."""
    gone = overlay_of(workspace, config_file).discard()
    text = f"{counted(len(gone))} thrown away"
    click.echo(json.dumps({"discarded": len(gone)}) if as_json else text)
