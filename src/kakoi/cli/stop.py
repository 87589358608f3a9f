"""`kakoi stop`: end a task's environment."""

import asyncio
import sys
from pathlib import Path

import click

from kakoi.cli.managing import config_option, find, manager_from


@click.command(
    epilog="Exit status: 0 gone, 1 it could not be removed, 2 there is none of that task."
)
@click.argument("task")
@config_option
def command(*, task: str, config_file: Path | None) -> None:
    """End everything in the environment of TASK and take it away, with what is in it.

    It has 10 seconds to end by itself.
    """
    sys.exit(asyncio.run(_stop(task, config_file)))


async def _stop(task: str, config_file: Path | None) -> int:
    manager = manager_from(config_file)
    found = await find(manager, task)
    await manager.cleanup(found.task)
    if manager.leftovers:
        click.echo(f"kakoi: {found.name} could not be removed; `kakoi prune` tries again", err=True)
        return 1
    click.echo(found.task)
    return 0
