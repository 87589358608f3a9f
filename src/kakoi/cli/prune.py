"""`kakoi prune`: take away what was left behind."""

import asyncio
import json
import sys
from datetime import timedelta
from pathlib import Path

import click

from kakoi.cli.managing import duration, json_option, manager_from
from kakoi.cli.opening import config_option


@click.command(epilog="Exit status: 0, 1 something could not be removed, 2 wrong usage, no engine.")
@click.option(
    "--older-than",
    type=duration,
    metavar="TIME",
    help="How old it must be: 90s, 30m, 24h, 7d; 0 is everything [default: the settings'].",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@json_option
@config_option
def command(
    *, older_than: timedelta | None, dry_run: bool, as_json: bool, config_file: Path | None
) -> None:
    """Remove environments that are older than any task should be, and forgotten helpers.

    What is younger may belong to a task that runs: with a short time, tasks lose their environment.
    """
    names, left = asyncio.run(_prune(older_than, config_file, dry_run=dry_run))
    if as_json:
        found = {"removed": [] if dry_run else names, "left": left}
        click.echo(json.dumps({**found, "would_remove": names} if dry_run else found, indent=2))
    else:
        for name in names:
            click.echo(f"{'would remove' if dry_run else 'removed'} {name}")
        for name in left:
            click.echo(f"kakoi: {name} could not be removed", err=True)
    sys.exit(1 if left else 0)


async def _prune(
    older_than: timedelta | None, config_file: Path | None, *, dry_run: bool
) -> tuple[list[str], list[str]]:
    manager = manager_from(config_file)
    if dry_run:
        return sorted(await manager.stale(older_than)), []
    removed = await manager.cleanup_stale_containers(older_than)
    return sorted(removed), sorted(manager.leftovers)
