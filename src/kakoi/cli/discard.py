"""`kakoi discard`: forget what commands have changed in the copy."""

import json
import os
from pathlib import Path

import click

from kakoi.cli.copies import counted, overlay_of_any, overlay_options
from kakoi.cli.managing import json_option
from kakoi.cli.opening import existing_directory


@click.command(epilog="Exit status: 0; 2 wrong usage, or it is in use.")
@json_option
@overlay_options
def command(*, as_json: bool, workspace: str, config_file: Path | None) -> None:
    """Throw away all that `kakoi run --cow` has changed, checkpoints too."""
    # Of a project that was removed the copy is the last thing left to be removed, too.
    project = workspace if os.path.isabs(workspace) else existing_directory(workspace)
    gone = overlay_of_any(project, config_file).discard()
    text = f"{counted(len(gone))} thrown away"
    click.echo(json.dumps({"discarded": len(gone)}) if as_json else text)
