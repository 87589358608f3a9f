"""`kakoi cache`: downloads of packages that every task is given a copy of."""

import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from kakoi.cli.managing import json_option, settings_from, size_in_words
from kakoi.cli.opening import config_option
from kakoi.cli.telling import say
from kakoi.config.environments import environment_manager, package_cache
from kakoi.config.settings import Settings
from kakoi.errors import SandboxError
from kakoi.runner.commands import new_id
from kakoi.tasks.caching import manager_of
from kakoi.tasks.checkout import PROJECT
from kakoi.tasks.dependencies import steps_for
from kakoi.tasks.task import Task


@click.group()
def command() -> None:
    """Keep downloads of packages for the environments of tasks.

    Each task gets a copy of its own, so no task changes what another one reads.
    """


@command.command(epilog="Exit status: 0, 1 something could not be downloaded, 2 wrong usage.")
@click.argument("project", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
@config_option
def fill(*, project: Path, as_json: bool, config_file: Path | None) -> None:
    """Download what PROJECT, a git repository here, depends on, and keep that for all tasks.

    You trust its files by that: what they name is what other tasks get, if they ask for the same.
    """
    kept, is_whole = asyncio.run(_fill(settings_from(config_file), project.resolve()))
    if as_json:
        click.echo(json.dumps(kept, indent=2))
    for each in [] if as_json else kept:
        click.echo(f"{each['manager']}: {size_in_words(each['bytes'])} for {each['file']}")
    sys.exit(0 if is_whole else 1)


async def _fill(settings: Settings, project: Path) -> tuple[list[dict[str, Any]], bool]:
    """What is kept for each file of the project, and whether that is all."""
    manager = environment_manager(settings)
    manager.options = dataclasses.replace(manager.options, install_dependencies=False)
    cache, is_whole = package_cache(settings), True
    kept: list[dict[str, Any]] = []
    task = Task(uuid=f"cache-{new_id()}", repository=f"file://{project}")
    async with manager.open(task), manager.attached(task.uuid) as environment:
        channel = await environment.adapter.channel()
        files = [each.name for each in await channel.list_files(PROJECT)]
        for step in steps_for(files):
            try:
                size = await cache.fill(channel, step)
                kept.append({"manager": manager_of(step), "bytes": size, "file": step.file})
            except SandboxError as error:
                say(f"{step.file}: {error}", hint=error.hint)
                is_whole = False
    await manager.close()
    return kept, is_whole


@command.command("list", epilog="Exit status: 0, 2 wrong usage.")
@json_option
@config_option
def list_(*, as_json: bool, config_file: Path | None) -> None:
    """Say what is kept for which package manager."""
    sizes = package_cache(settings_from(config_file)).sizes()
    if as_json:
        click.echo(json.dumps(sizes, indent=2))
        return
    for name, size in sizes.items():
        click.echo(f"{name:<6} {size_in_words(size):>9}")


@command.command(epilog="Exit status: 0, 2 wrong usage.")
@config_option
def clear(*, config_file: Path | None) -> None:
    """Forget all of it."""
    package_cache(settings_from(config_file)).clear()
