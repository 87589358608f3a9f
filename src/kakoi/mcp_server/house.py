"""What all calls share, and what one call brings along."""

import asyncio
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from mcp.server.context import ServerRequestContext

from kakoi.audit import AuditRecord
from kakoi.config.settings import ExecutionSection, Settings
from kakoi.errors import ConfigurationError, ExecutionError, SandboxError, SecurityError
from kakoi.gate import Gate
from kakoi.mcp_server.asking import PATIENCE_S, Person
from kakoi.mcp_server.callers import Caller
from kakoi.mcp_server.questions import Questions
from kakoi.mcp_server.sessions import Session, Sessions
from kakoi.packages.allowlist import InstallRequest
from kakoi.packages.install import Installed
from kakoi.runner.commands import Channel
from kakoi.sandbox.workspace import within

_MOST_JOBS: Final = 64
# So long are the ids that engines show.
_SHORT_ID: Final = 12
InstallKey = tuple[tuple[Caller, str], InstallRequest]


class Turn:
    """Leave to be one of the commands that run at once; in the background it is only counted."""

    def __init__(self, house: "House", *, wait_s: float, background: bool) -> None:
        self._house = house
        self._wait_s = max(wait_s, 1.0)
        self._background = background
        self._is_taken = False

    async def take(self) -> None:
        """Wait for it; ExecutionError if there is no room in time."""
        if len(self._house.gate.running_jobs) >= _MOST_JOBS:
            raise ExecutionError(
                f"{_MOST_JOBS} jobs are running, and there may be no more",
                hint="stop one: list_jobs and stop_command",
            )
        if self._background:
            return
        try:
            async with asyncio.timeout(self._wait_s):
                await self._house.turns.acquire()
        except TimeoutError:
            raise ExecutionError(
                f"{self._house.execution.concurrency} commands are running, and none has ended",
                hint="try again, or stop one: list_jobs and stop_command",
            ) from None
        self._is_taken = True

    def give_back(self) -> None:
        """Let the next one run."""
        if self._is_taken:
            self._is_taken = False
            self._house.turns.release()


@dataclass(slots=True, kw_only=True)
class House:
    """One workspace, one sandbox, one gate: everybody who is let in shares them.

    `env`: variables of the operator, for every command.
    `installs`: what is being installed, and for whom; one at a time has `installing`.
    `is_here`: the workspace is a directory of this machine, at the same path.
    """

    gate: Gate
    workspace: str
    name: str
    audit_file: Path
    settings: Settings
    sessions: Sessions
    env: Mapping[str, str] = field(default_factory=dict)
    editing: asyncio.Lock = field(default_factory=asyncio.Lock)
    installing: asyncio.Lock = field(default_factory=asyncio.Lock)
    installs: dict[InstallKey, "asyncio.Task[Installed]"] = field(default_factory=dict)
    is_here: bool = True
    turns: asyncio.Semaphore = field(init=False)
    questions: Questions = field(init=False)

    def __post_init__(self) -> None:
        self.turns = asyncio.Semaphore(self.execution.concurrency)
        self.questions = Questions(time.monotonic, patience_s=PATIENCE_S)

    @property
    def execution(self) -> ExecutionSection:
        """How long commands may take, and how much they may write."""
        return self.settings.execution

    async def end_installs(self) -> None:
        """Give up what is being installed."""
        tasks = list(self.installs.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def channel(self) -> Channel | None:
        """The way into the sandbox, if there is one already."""
        return None if self.gate.sandbox is None else await self.gate.sandbox.channel()

    async def gate_channel(self) -> Channel:
        """The way into the sandbox, in which something was started."""
        channel = await self.channel()
        if channel is None:
            raise SandboxError("there is no sandbox")
        return channel

    async def path_in(self, session: Session, path: str) -> str:
        """An absolute path inside of the workspace, links followed.

        Told early and in words; what keeps commands and files inside is the sandbox.
        """
        if not path or "\0" in path:
            raise ConfigurationError("`path` is no name of a file")
        full = session.directory(path)
        real = await asyncio.to_thread(os.path.realpath, full) if self.is_here else full
        for each, why in ((full, "is"), (real, "is a link that leads")):
            if not within(each, self.workspace):
                raise SecurityError(
                    f"{path!r} {why} outside of the workspace {self.workspace}",
                    hint="name a file of the workspace",
                )
        return real

    def may_read(self, session: Session, record: AuditRecord, *, named: bool) -> bool:
        """Is it a record for the client of that session; with `named`, of that session itself?

        The log is one for all workspaces of a user. Over pipes the client is that user's own, and
        may read what happened in this workspace; an HTTP client reads about its own calls.
        """
        task = self.gate.labels.task
        where = os.path.normpath(record.cwd)
        is_here = record.task == task and (task != "" or within(where, self.workspace))
        if named:
            return is_here and record.session == session.label
        return is_here and (
            session.caller == Caller() or record.session.startswith(session.label_prefix)
        )

    def check_container(self, container: str) -> None:
        """Refuse an environment that is not the caller's."""
        name = getattr(self.gate.sandbox, "container", None)
        full = getattr(self.gate.sandbox, "container_id", "")
        is_id = len(container) >= _SHORT_ID and full.startswith(container)
        if container and container != name and not is_id:
            raise SecurityError(
                f"the environment {container!r} is not yours",
                hint="leave `container_id` out: commands run in the environment of this server",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool: who calls, in which session, with what."""

    context: ServerRequestContext[Any, Any]
    session: Session
    person: Person
    given: frozenset[str]
    arguments: Mapping[str, Any]
