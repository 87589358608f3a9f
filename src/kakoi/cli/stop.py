"""`kakoi stop`: end a task's environment."""

import asyncio
import json
import sys
from pathlib import Path

import click

from kakoi.cli.managing import find, json_option, manager_from
from kakoi.cli.opening import config_option


@click.command(
    epilog="Exit status: 0 gone, 1 it could not be removed, 2 there is none of that task."
)
@click.argument("task")
@json_option
@config_option
def command(*, task: str, as_json: bool, config_file: Path | None) -> None:
    """End everything in the environment of TASK and take it away, with what is in it.

    It has 10 seconds to end by itself.
    """
    sys.exit(asyncio.run(_stop(task, config_file, as_json=as_json)))


async def _stop(task: str, config_file: Path | None, *, as_json: bool) -> int:
    manager = manager_from(config_file)
    found = await find(manager, task)
    await manager.cleanup(found.task)
    is_gone = not manager.leftovers
    if as_json:
        click.echo(json.dumps({"task": found.task, "container": found.name, "gone": is_gone}))
    elif is_gone:
        click.echo(found.task)
    if not is_gone:
        click.echo(f"kakoi: {found.name} could not be removed; `kakoi prune` tries again", err=True)
    return 0 if is_gone else 1
