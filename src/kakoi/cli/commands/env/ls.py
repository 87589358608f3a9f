"""`kakoi env ls`: list task environments and their state."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import click

from kakoi._support.text import shown
from kakoi.audit import AuditRecord, Event, tail
from kakoi.backends.docker.inventory import ContainerUsage, ListedContainer
from kakoi.cli.group import help_end
from kakoi.cli.io.format import format_age, format_size
from kakoi.cli.options import config_option, json_option, settings_from
from kakoi.settings.audit_log import audit_file, now
from kakoi.settings.model import Settings
from kakoi.tasks.from_settings import environment_manager
from kakoi.tasks.stats import SESSION

# How many records are searched for a task's last command.
_RECENT: Final = 2000
_WIDTH: Final = 48


@click.command(
    epilog=help_end(
        "kakoi env ls",
        "kakoi env ls --json",
        exit_codes="0 success, also without environments; 2 usage error, or no engine.",
    )
)
@json_option
@config_option
def command(*, as_json: bool, config_file: Path | None) -> None:
    """List task environments and their state, whichever process created them.

    DISK is what an environment has written to its own layer. LAST COMMAND comes from the audit
    log, and is empty if the log does not go back that far.
    """
    rows = asyncio.run(_rows(settings_from(config_file)))
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    if rows:
        click.echo(_line("TASK", "STATE", "AGE", "CPU", "MEMORY", "DISK", "LAST COMMAND"))
    for row in rows:
        cpu = "-" if row["cpu_percent"] is None else f"{row['cpu_percent']:.1f} %"
        memory, disk = _size(row["memory_bytes"]), _size(row["disk_bytes"])
        last, age = shown(row["last_command"])[:_WIDTH], format_age(row["age_s"])
        click.echo(_line(row["task"], row["state"], age, cpu, memory, disk, last))


def _size(count: int | None) -> str:
    return "-" if count is None else format_size(count)


def _line(task: str, state: str, age: str, cpu: str, memory: str, disk: str, last: str) -> str:
    text = f"{task:<36}  {state:<8} {age:>5}  {cpu:>8}  {memory:>9}  {disk:>9}  {last}"
    return text.rstrip()


async def _rows(settings: Settings) -> list[dict[str, Any]]:
    manager = environment_manager(settings)
    found, used, disk = await asyncio.gather(manager.existing(), manager.usage(), manager.disk())
    last = last_commands(tail(audit_file(settings), _RECENT))
    return [_row(each, used.get(each.name), disk.get(each.name), last) for each in found]


def _row(
    each: ListedContainer, used: ContainerUsage | None, disk: int | None, last: dict[str, str]
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
    """The last command that each task's agent started."""
    return {
        record.task: record.command
        for record in records
        if record.event is Event.STARTED and record.task and record.session != SESSION
    }
