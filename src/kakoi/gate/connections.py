"""Network connections of a sandbox: every decision is recorded, every refusal is reported."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kakoi.audit import AuditEntry, AuditLog, Event
from kakoi.channel.api import Command, RunningCommand, Stream, TerminalSize, new_id
from kakoi.gate.calls import RecordLabels
from kakoi.policy.rules import Verdict
from kakoi.results import BlockedConnection, ExecutionResult

if TYPE_CHECKING:
    from kakoi.backends.adapter import SandboxAdapter
    from kakoi.network.proxy import ConnectionDecision


class RefusalWatch(Protocol):
    """Collects the connections refused since it was created."""

    @property
    def blocked(self) -> tuple[BlockedConnection, ...]: ...


class WatchableProxy(Protocol):
    """Decides what a sandbox can reach."""

    def watch_refusals(self) -> RefusalWatch: ...


# The sandbox of one command, and what decides what it can reach.
DedicatedSandbox: TypeAlias = "tuple[SandboxAdapter, WatchableProxy]"
# Returns it for a command; None: the command runs in the usual sandbox.
DedicatedSandboxFor = Callable[
    [Command], Awaitable[AbstractAsyncContextManager[DedicatedSandbox] | None]
]


def with_blocked_connections(
    result: ExecutionResult, watch: RefusalWatch | None
) -> ExecutionResult:
    """Add the connections that were refused while the command ran to its result."""
    blocked = () if watch is None else watch.blocked
    return replace(result, blocked_connections=blocked) if blocked else result


def connection_recorder(
    audit: AuditLog, labels: RecordLabels, cwd: str = ""
) -> "Callable[[ConnectionDecision], Awaitable[None]]":
    """Return a function that logs each connection decision; one id per sandbox.

    `cwd`: the workspace of that sandbox, which identifies the project in the record.
    """
    sandbox = new_id()

    async def record(decision: "ConnectionDecision") -> None:
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
    """A foreground command whose result lists refused connections; see `RunningCommand`."""

    def __init__(self, running: RunningCommand, watch: RefusalWatch | None) -> None:
        self._running = running
        self._watch = watch

    @property
    def id(self) -> str:
        """The id of the command."""
        return self._running.id

    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Yield output as the command writes it."""
        return self._running.output()

    async def write(self, data: bytes) -> None:
        """Write to its stdin."""
        await self._running.write(data)

    async def close_stdin(self) -> None:
        """Close its stdin."""
        await self._running.close_stdin()

    async def resize(self, size: TerminalSize) -> None:
        """Set the size of its terminal."""
        await self._running.resize(size)

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        await self._running.signal(number)

    async def result(self) -> ExecutionResult:
        """Wait for the command and return its result."""
        return with_blocked_connections(await self._running.result(), self._watch)

    async def __aenter__(self) -> "WatchedRunning":
        await self._running.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._running.__aexit__(*error)
