"""What there is to watch (spec A 13.2): what containers use, what is left over, what has failed.

Failures are counted twice: by a manager while it lives, and in the audit log, where a process that
has just started can find those of all others, as far back as the log goes.
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from typing import Final

from kakoi.audit import AuditRecord, Event
from kakoi.results import Reason
from kakoi.sandbox.docker_engine import Engine
from kakoi.sandbox.docker_listing import Listed, disk_of, usage_of
from kakoi.tasks.checkout import CloneError
from kakoi.tasks.recording import SESSION
from kakoi.tasks.values import Counters


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """All environments of one owner together."""

    environments: int
    cpu_percent: float
    memory_bytes: int
    disk_bytes: int
    leftovers: int
    create_failures: int
    clone_failures: int
    timeouts: int


async def measure(
    engine: Engine, containers: Collection[Listed], *, leftovers: int, counters: Counters
) -> Stats:
    """Ask the engine about these containers, and put it beside what was counted."""
    names = [each.name for each in containers]
    used = await usage_of(engine, [each.name for each in containers if each.status == "running"])
    return Stats(
        environments=len(containers),
        cpu_percent=round(sum(each.cpu_percent for each in used.values()), 2),
        memory_bytes=sum(each.memory_bytes for each in used.values()),
        disk_bytes=sum((await disk_of(engine, names)).values()),
        leftovers=leftovers,
        create_failures=counters.create_failures,
        clone_failures=counters.clone_failures,
        timeouts=counters.timeouts,
    )


def count(records: Iterable[AuditRecord]) -> Counters:
    """What the log says about environments and the commands in them."""
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


def as_prometheus(stats: Stats) -> str:
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
    "create_failures": "Environments that could not be made.",
    "clone_failures": "Projects that could not be cloned.",
    "timeouts": "Commands that ran out of time.",
}
