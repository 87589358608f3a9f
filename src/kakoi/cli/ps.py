"""`kakoi ps`: which environments are there, and what are they doing?"""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from kakoi.audit import AuditRecord, Event, tail
from kakoi.cli.managing import in_words, json_option, settings_from, size_in_words
from kakoi.cli.opening import config_option
from kakoi.config.environments import environment_manager
from kakoi.config.recording import audit_file, now
from kakoi.config.settings import Settings
from kakoi.printable import shown
from kakoi.sandbox.docker_listing import Listed, Usage
from kakoi.tasks.recording import SESSION

# How far back a last command is looked for.
_RECENT: Final = 2000
_WIDTH: Final = 48


@click.command(epilog="Exit status: 0, also if there are none; 2 wrong usage, or no engine.")
@json_option
@config_option
def command(*, as_json: bool, config_file: Path | None) -> None:
    """List the environments of tasks, whichever process made them.

    Disk is what they have written to their own layers. The last command is from the audit log, and
    empty if that does not go back so far.
    """
    rows = asyncio.run(_look(settings_from(config_file)))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if rows:
        click.echo(_line("TASK", "STATE", "AGE", "CPU", "MEMORY", "DISK", "LAST COMMAND"))
    for row in rows:
        cpu = "-" if row["cpu_percent"] is None else f"{row['cpu_percent']:.1f} %"
        memory, disk = _size(row["memory_bytes"]), _size(row["disk_bytes"])
        last, age = shown(row["last_command"])[:_WIDTH], in_words(row["age_s"])
        click.echo(_line(row["task"], row["state"], age, cpu, memory, disk, last))


def _size(count: int | None) -> str:
    return "-" if count is None else size_in_words(count)


def _line(task: str, state: str, age: str, cpu: str, memory: str, disk: str, last: str) -> str:
    text = f"{task:<36}  {state:<8} {age:>5}  {cpu:>8}  {memory:>9}  {disk:>9}  {last}"
    return text.rstrip()


async def _look(settings: Settings) -> list[dict[str, Any]]:
    manager = environment_manager(settings)
    found, used, disk = await asyncio.gather(manager.existing(), manager.usage(), manager.disk())
    last = last_commands(tail(audit_file(settings), _RECENT))
    return [_row(each, used.get(each.name), disk.get(each.name), last) for each in found]


def _row(
    each: Listed, used: Usage | None, disk: int | None, last: dict[str, str]
) -> dict[str, Any]:
    return {
        "task": each.task,
        "container": each.name,
        "image": each.image,
        "state": each.status,
        "created": each.created.isoformat(),
        "age_s": max(0, int((now() - each.created).total_seconds())),
        "cpu_percent": None if used is None else used.cpu_percent,
        "memory_bytes": None if used is None else used.memory_bytes,
        "disk_bytes": disk,
        "processes": None if used is None else used.processes,
        "last_command": last.get(each.task, ""),
    }


def last_commands(records: Iterable[AuditRecord]) -> dict[str, str]:
    """The last command of each task's agent that was started."""
    return {
        record.task: record.command
        for record in records
        if record.event is Event.STARTED and record.task and record.session != SESSION
    }
