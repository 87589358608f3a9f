"""`kakoi diff`: the same as `kakoi changes`, line by line."""

import re
import sys
from collections.abc import Iterable
from pathlib import Path

import click

from kakoi.cli.copies import counted, overlay_of, overlay_options
from kakoi.overlay.diffing import Difference
from kakoi.printable import shown


@click.command(epilog="Exit status: 0; 2 wrong usage, or it cannot be read.")
@click.argument("paths", nargs=-1)
@click.option("--stat", "only_counts", is_flag=True, help="Only count the lines of each file.")
@click.option(
    "--raw",
    is_flag=True,
    help="Bytes as they are, for `git apply`. Without it, what a terminal would obey is written "
    "out, such as \\x1b.",
)
@overlay_options
def command(
    *,
    paths: tuple[str, ...],
    only_counts: bool,
    raw: bool,
    workspace: str,
    config_file: Path | None,
) -> None:
    """Show what `kakoi run --cow` has changed, as a unified diff; of PATHS only, if there are any.

    Binary files and those above 4 MiB are named only.
    """
    found = overlay_of(workspace, config_file).diff(paths)
    if only_counts:
        _print_counts(found)
        return
    for each in found:
        for line in each.lines:
            sys.stdout.buffer.write(line if raw else visible(line))
    sys.stdout.flush()


def visible(line: bytes) -> bytes:
    """A line without anything that a terminal would obey; a tab is nothing but a tab."""
    text = line.decode("utf-8", "surrogateescape")
    parts = re.split(r"([\t\n])", text)
    return "".join(each if each in "\t\n" else shown(each) for each in parts).encode("utf-8")


def _print_counts(found: Iterable[Difference]) -> None:
    files = added = removed = 0
    for each in found:
        told = "binary" if each.is_binary else f"+{each.added} -{each.removed}"
        click.echo(f"{told:>12}  {shown(each.change.path)}")
        files, added, removed = files + 1, added + each.added, removed + each.removed
    click.echo(f"{counted(files)}, +{added} -{removed}")
