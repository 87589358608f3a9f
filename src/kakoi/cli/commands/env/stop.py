"""`kakoi env stop`: end a task's environment."""

import asyncio
import json
import sys
from pathlib import Path

import click

from kakoi.cli.group import help_end
from kakoi.cli.options import config_option, json_option, settings_from
from kakoi.tasks.environments import find_environment
from kakoi.tasks.from_settings import environment_manager


@click.command(
    epilog=help_end(
        "kakoi env stop 3f2a",
        "kakoi env stop --json 3f2a",
        exit_codes="0 removed; 1 it could not be removed; 2 the task has no environment.",
    )
)
@click.argument("task")
@json_option
@config_option
def command(*, task: str, as_json: bool, config_file: Path | None) -> None:
    """End everything in the environment of TASK, and remove it with its files.

    Its processes have 10 seconds to end by themselves.
    """
    sys.exit(asyncio.run(_stop(task, config_file, as_json=as_json)))


async def _stop(task: str, config_file: Path | None, *, as_json: bool) -> int:
    manager = environment_manager(settings_from(config_file))
    found = await find_environment(manager, task)
    await manager.cleanup(found.task)
    is_gone = not manager.leftovers
    if as_json:
        click.echo(json.dumps({"task": found.task, "container": found.name, "gone": is_gone}))
    elif is_gone:
        click.echo(found.task)
    if not is_gone:
        click.echo(
            f"kakoi: {found.name} could not be removed; `kakoi env prune` tries again", err=True
        )
    return 0 if is_gone else 1
