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
from kakoi.config.environments import audit_file, environment_manager, now
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

    The last command is from the audit log, and empty if that does not go back so far.
    """
    rows = asyncio.run(_look(settings_from(config_file)))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if rows:
        click.echo(_line("TASK", "STATE", "AGE", "CPU", "MEMORY", "LAST COMMAND"))
    for row in rows:
        used = row["cpu_percent"], row["memory_bytes"]
        cpu = "-" if used[0] is None else f"{used[0]:.1f} %"
        memory = "-" if used[1] is None else size_in_words(used[1])
        last = shown(row["last_command"])[:_WIDTH]
        click.echo(_line(row["task"], row["state"], in_words(row["age_s"]), cpu, memory, last))


def _line(task: str, state: str, age: str, cpu: str, memory: str, last: str) -> str:
    return f"{task:<36}  {state:<8} {age:>5}  {cpu:>8}  {memory:>9}  {last}".rstrip()


async def _look(settings: Settings) -> list[dict[str, Any]]:
    manager = environment_manager(settings)
    found, used = await asyncio.gather(manager.existing(), manager.usage())
    last = last_commands(tail(audit_file(settings), _RECENT))
    return [_row(each, used.get(each.name), last) for each in found]


def _row(each: Listed, used: Usage | None, last: dict[str, str]) -> dict[str, Any]:
    return {
        "task": each.task,
        "container": each.name,
        "image": each.image,
        "state": each.status,
        "created": each.created.isoformat(),
        "age_s": max(0, int((now() - each.created).total_seconds())),
        "cpu_percent": None if used is None else used.cpu_percent,
        "memory_bytes": None if used is None else used.memory_bytes,
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
