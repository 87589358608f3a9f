"""`kakoi checkpoint`: a name for what the copy is like now."""

import json
from pathlib import Path

import click

from kakoi.cli.copies import overlay_of, overlay_options
from kakoi.cli.managing import json_option


@click.command(epilog="Exit status: 0; 2 wrong usage, or it is in use.")
@click.argument("name", required=False)
@json_option
@overlay_options
def command(*, name: str | None, as_json: bool, workspace: str, config_file: Path | None) -> None:
    """Remember under NAME what `kakoi run --cow` has changed so far. Without NAME, list them.

    Nothing is copied, however big the project is. No sandbox may be running on it.
    """
    overlay = overlay_of(workspace, config_file)
    if name is not None:
        overlay.checkpoint(name)
        if as_json:
            click.echo(json.dumps({"checkpoint": name}))
        return
    names = list(overlay.checkpoints())
    for each in [json.dumps(names)] if as_json else names:
        click.echo(each)
