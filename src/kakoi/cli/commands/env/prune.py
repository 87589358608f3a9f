"""`kakoi env prune`: remove environments that were left behind."""

import asyncio
import json
import re
import sys
from datetime import timedelta
from pathlib import Path

import click

from kakoi.cli.group import help_end
from kakoi.cli.io.format import TIME_UNITS
from kakoi.cli.options import config_option, json_option, settings_from
from kakoi.tasks.from_settings import environment_manager


def parse_duration(text: str) -> timedelta:
    """`90s`, `30m`, `24h`, `7d` or `0`. BadParameter: it is none of these."""
    match = re.fullmatch(r"(\d{1,9})([smhd]?)", text)
    if match is None or (not match[2] and int(match[1])):
        raise click.BadParameter(f"{text!r} is not a duration; write 90s, 30m, 24h or 7d")
    return timedelta(seconds=int(match[1]) * TIME_UNITS[match[2] or "s"])


@click.command(
    epilog=help_end(
        "kakoi env prune --dry-run",
        "kakoi env prune --older-than 24h",
        exit_codes="0 success; 1 something could not be removed; 2 usage error, or no engine.",
    )
)
@click.option(
    "--older-than",
    type=parse_duration,
    metavar="TIME",
    help="Minimum age: 90s, 30m, 24h, 7d; 0 means everything [default: from the settings].",
)
@click.option("--dry-run", is_flag=True, help="Only print what would be removed.")
@json_option
@config_option
def command(
    *, older_than: timedelta | None, dry_run: bool, as_json: bool, config_file: Path | None
) -> None:
    """Remove environments that are older than any task should be, and leftover helpers.

    Leftover helpers are containers that kakoi created to inspect an image, and images of forked
    sandboxes.

    With a short --older-than, running tasks can lose their environments.
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
    manager = environment_manager(settings_from(config_file))
    if dry_run:
        return sorted(await manager.stale(older_than)), []
    removed = await manager.cleanup_stale_containers(older_than)
    return sorted(removed), sorted(manager.leftovers)
