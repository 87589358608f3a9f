"""`kakoi cache`: package downloads that tasks share; every task gets its own copy."""

import asyncio
import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from kakoi.channel.api import new_id
from kakoi.cli.group import CommandGroup, help_end
from kakoi.cli.io.format import format_size
from kakoi.cli.io.messages import print_message
from kakoi.cli.options import config_option, json_option, settings_from
from kakoi.errors import SandboxError, SecurityError
from kakoi.settings.model import Settings
from kakoi.tasks.checkout import PROJECT
from kakoi.tasks.dependencies import install_steps
from kakoi.tasks.from_settings import environment_manager, package_cache
from kakoi.tasks.task import Task


@click.group(cls=CommandGroup, epilog=help_end("kakoi cache fill .", "kakoi cache list"))
def command() -> None:
    """Manage the package downloads that task environments share.

    Each task gets its own copy, so no task can change what another one reads.
    """


@command.command(
    short_help="Download the dependencies of a project for all tasks.",
    epilog=help_end(
        "kakoi cache fill .",
        "kakoi cache fill --json .",
        exit_codes="0 success; 1 something could not be downloaded; 2 usage error.",
    ),
)
@click.argument("project", type=click.Path(exists=True, file_okay=False, path_type=Path))
@json_option
@config_option
def fill(*, project: Path, as_json: bool, config_file: Path | None) -> None:
    """Download the dependencies of PROJECT, a local git repository, for all tasks.

    This trusts the files of the project: other tasks that ask for the same packages get what these
    files name.
    """
    cached, is_complete = asyncio.run(_fill(settings_from(config_file), project.resolve()))
    if as_json:
        click.echo(json.dumps(cached, indent=2))
    for each in [] if as_json else cached:
        click.echo(f"{each['manager']}: {format_size(each['bytes'])} for {each['file']}")
    sys.exit(0 if is_complete else 1)


async def _fill(settings: Settings, project: Path) -> tuple[list[dict[str, Any]], bool]:
    """What was cached for each dependency file of the project, and whether that is everything."""
    manager = environment_manager(settings)
    manager.options = dataclasses.replace(manager.options, install_dependencies=False)
    cache, is_complete = package_cache(settings), True
    cached: list[dict[str, Any]] = []
    task = Task(uuid=f"cache-{new_id()}", repository=f"file://{project}")
    async with manager.open(task), manager.attached(task.uuid) as environment:
        channel = await environment.adapter.channel()
        files = [each.name for each in await channel.list_files(PROJECT)]
        gate = manager.install_gate(environment)
        for step in install_steps(files):
            try:
                size = await cache.fill(gate, step.file, step.command)
                cached.append({"manager": step.manager, "bytes": size, "file": step.file})
            except (SandboxError, SecurityError) as error:
                print_message(f"{step.file}: {error}", hint=error.hint)
                is_complete = False
    await manager.close()
    return cached, is_complete


@command.command(
    "list",
    epilog=help_end(
        "kakoi cache list", "kakoi cache list --json", exit_codes="0 success; 2 usage error."
    ),
)
@json_option
@config_option
def list_(*, as_json: bool, config_file: Path | None) -> None:
    """List the size of the cache of each package manager."""
    sizes = package_cache(settings_from(config_file)).sizes()
    if as_json:
        click.echo(json.dumps(sizes, indent=2))
        return
    for name, size in sizes.items():
        click.echo(f"{name:<6} {format_size(size):>9}")


@command.command(
    epilog=help_end(
        "kakoi cache clear",
        "kakoi cache clear --config settings.yaml",
        exit_codes="0 success; 2 usage error.",
    )
)
@config_option
def clear(*, config_file: Path | None) -> None:
    """Delete all cached downloads."""
    package_cache(settings_from(config_file)).clear()
