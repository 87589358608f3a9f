"""What a sandbox reaches, as part of the one road: each decision recorded, each refusal told."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from kakoi.audit import AuditEntry, AuditLog, Event
from kakoi.gate.calls import Labels
from kakoi.policy.rules import Verdict
from kakoi.results import BlockedConnection, ExecutionResult
from kakoi.runner.commands import Running, Stream, TerminalSize, new_id

if TYPE_CHECKING:
    from kakoi.egress.proxy import Decision


class Watch(Protocol):
    """What was refused since it began."""

    @property
    def blocked(self) -> tuple[BlockedConnection, ...]: ...


class Watchable(Protocol):
    """Who decides what a sandbox may reach."""

    def watch(self) -> Watch: ...


def with_blocked(result: ExecutionResult, watch: Watch | None) -> ExecutionResult:
    """The result of a command, and what its sandbox was refused meanwhile."""
    blocked = () if watch is None else watch.blocked
    return replace(result, blocked_connections=blocked) if blocked else result


def connection_recorder(
    audit: AuditLog, labels: Labels, cwd: str = ""
) -> "Callable[[Decision], Awaitable[None]]":
    """Writes each decision about a connection to the log; all of one sandbox have the same id.

    `cwd`: the workspace of that sandbox, which says whose record it is.
    """
    sandbox = new_id()

    async def record(decision: "Decision") -> None:
        verdict = Verdict.ALLOW if decision.allowed else Verdict.DENY
        addresses = ", ".join(map(str, decision.addresses))
        entry = AuditEntry(
            event=Event.CONNECTION,
            id=sandbox,
            cwd=cwd,
            target=f"{decision.method} {decision.target or '?'}".strip(),
            verdict=verdict.value,
            reason=decision.objection or addresses or decision.failure,
            session=labels.session,
            task=labels.task,
            user=labels.user,
        )
        await asyncio.to_thread(audit.append, entry)

    return record


class WatchedRunning:
    """A command in the foreground whose result tells of refusals; see `Running`."""

    def __init__(self, running: Running, watch: Watch | None) -> None:
        self._running = running
        self._watch = watch

    @property
    def id(self) -> str:
        """The name of the command."""
        return self._running.id

    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """What it writes, as it writes it."""
        return self._running.output()

    async def write(self, data: bytes) -> None:
        """Give it input."""
        await self._running.write(data)

    async def close_stdin(self) -> None:
        """Its input ends here."""
        await self._running.close_stdin()

    async def resize(self, size: TerminalSize) -> None:
        """Tell its terminal how big it is now."""
        await self._running.resize(size)

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        await self._running.signal(number)

    async def result(self) -> ExecutionResult:
        """What came of it."""
        return with_blocked(await self._running.result(), self._watch)

    async def __aenter__(self) -> "WatchedRunning":
        await self._running.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._running.__aexit__(*error)
