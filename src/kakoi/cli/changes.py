"""`kakoi changes`: what is different in the copy of the project that commands have written to?"""

import json
from pathlib import Path

import click

from kakoi.cli.copies import as_dict, in_words, overlay_of, overlay_options


@click.command(
    epilog="Exit status: 0, also if there are none; 2 wrong usage, or it cannot be read."
)
@click.option("--json", "as_json", is_flag=True, help="Print everything as JSON.")
@overlay_options
def command(*, as_json: bool, workspace: str, config_file: Path | None) -> None:
    """List what `kakoi run --cow` has changed: A added, M modified, D deleted.

    The project itself is as it was. A file that has the bytes of a deleted one is told as renamed.
    """
    changes = overlay_of(workspace, config_file).changes()
    if as_json:
        click.echo(json.dumps([as_dict(each) for each in changes], indent=2))
        return
    for each in changes:
        click.echo(in_words(each))
