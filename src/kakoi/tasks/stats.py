"""Figures for monitoring: what containers use, leftovers, and failures.

Failures are counted in two places: by a manager while it lives, and from the audit log, where a new
process finds those of all others, as far back as the log goes.
"""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Collection, Iterable
from dataclasses import asdict
from typing import Final

from kakoi._support.asyncio import finish
from kakoi._support.late import dataclass
from kakoi.audit import AuditEntry, AuditLog, AuditRecord, Event
from kakoi.backends.docker.engine import Engine
from kakoi.backends.docker.inventory import ListedContainer, read_disk_usage, read_usage
from kakoi.channel.api import new_id
from kakoi.errors import KakoiError
from kakoi.network.git_remotes import parse_remote
from kakoi.results import Reason
from kakoi.tasks.checkout import CloneError
from kakoi.tasks.environment import Counters
from kakoi.tasks.task import Task

# The session of these records; no command of an agent has it.
SESSION: Final = "kakoi environments"


@contextlib.asynccontextmanager
async def record_preparation(
    audit: AuditLog | None, task: Task, *, sandbox: str
) -> AsyncIterator[None]:
    """Record the start and the end of a preparation. The `reason` is the code of its error."""
    if audit is None:
        yield
        return
    entry = AuditEntry(
        event=Event.STARTED,
        id=new_id(),
        command=f"prepare {parse_remote(task.repository).url}",
        sandbox=sandbox,
        session=SESSION,
        task=task.uuid,
    )
    await asyncio.to_thread(audit.append, entry)
    code, why = str(Reason.CANCELLED), ""
    try:
        yield
        code = str(Reason.EXITED)
    except KakoiError as error:
        code, why = error.code, str(error)
        raise
    finally:
        status = int(code != Reason.EXITED)
        last = dataclasses.replace(entry, event=Event.ENDED, command="")
        last = dataclasses.replace(last, reason=code, error=why, exit_code=status)
        with contextlib.suppress(KakoiError):
            await finish(asyncio.to_thread(audit.append, last))


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentStats:
    """The figures of all environments of one owner."""

    environments: int
    cpu_percent: float
    memory_bytes: int
    disk_bytes: int
    leftovers: int
    create_failures: int
    clone_failures: int
    timeouts: int


async def measure(
    engine: Engine, containers: Collection[ListedContainer], *, leftovers: int, counters: Counters
) -> EnvironmentStats:
    """The figures of these containers, from the engine, together with `counters`."""
    names = [each.name for each in containers]
    used = await read_usage(engine, [each.name for each in containers if each.status == "running"])
    return EnvironmentStats(
        environments=len(containers),
        cpu_percent=round(sum(each.cpu_percent for each in used.values()), 2),
        memory_bytes=sum(each.memory_bytes for each in used.values()),
        disk_bytes=sum((await read_disk_usage(engine, names)).values()),
        leftovers=leftovers,
        create_failures=counters.create_failures,
        clone_failures=counters.clone_failures,
        timeouts=counters.timeouts,
    )


def count_records(records: Iterable[AuditRecord]) -> Counters:
    """Count the environments and their commands in the audit log."""
    counters = Counters()
    for record in records:
        if record.event is not Event.ENDED:
            continue
        if record.session != SESSION:
            counters.commands += bool(record.task)
            counters.timeouts += bool(record.task) and record.reason == Reason.TIMED_OUT
        elif record.exit_code == 0:
            counters.prepared += 1
        elif record.reason == CloneError.code:
            counters.clone_failures += 1
        else:
            counters.create_failures += 1
    return counters


def as_prometheus(stats: EnvironmentStats) -> str:
    """The figures in Prometheus's text format."""
    lines = []
    for name, value in asdict(stats).items():
        kind = "counter" if name in _COUNTERS else "gauge"
        full = f"kakoi_{name}_total" if kind == "counter" else f"kakoi_{name}"
        lines += [f"# HELP {full} {_HELP[name]}", f"# TYPE {full} {kind}", f"{full} {value}"]
    return "\n".join(lines) + "\n"


_COUNTERS: Final = frozenset(("create_failures", "clone_failures", "timeouts"))
_HELP: Final = {
    "environments": "Containers of tasks, running or not.",
    "cpu_percent": "Processor time that they use now; 100 is one processor.",
    "memory_bytes": "Memory that they use now.",
    "disk_bytes": "What they have written to their own layers and disks.",
    "leftovers": "Containers that are stale, or could not be removed.",
    "create_failures": "Environments that could not be created.",
    "clone_failures": "Projects that could not be cloned.",
    "timeouts": "Commands that ran out of time.",
}
