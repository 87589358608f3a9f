"""What the calls of a tool set share, and the data of one call."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio

from kakoi._support.late import dataclass
from kakoi.backends.docker.inventory import is_container
from kakoi.backends.workspace import is_within
from kakoi.errors import ConfigurationError, SecurityError
from kakoi.gate import Gate
from kakoi.packages.allowlist import InstallRequest
from kakoi.packages.installer import InstallReport
from kakoi.settings.model import ExecutionSection, Settings
from kakoi.tools.approval import CallApproval
from kakoi.tools.sessions import Caller, Sessions, ToolSession

InstallKey = tuple[tuple[Caller, str], InstallRequest]
# Called with the seconds that a call has taken so far, and a sentence about it.
ReportProgress = Callable[[float, str], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class ToolState:
    """One workspace, one sandbox, one gate, shared by all callers.

    `env`: the operator's variables for every command.
    `is_local`: the workspace is a directory on this machine, at the same path.
    `editing`, `installing`: held by one edit and one installation at a time.
    `installs`: running installations, by caller.
    """

    gate: Gate
    workspace: str
    settings: Settings
    audit_file: Path
    sessions: Sessions
    env: Mapping[str, str] = field(default_factory=dict)
    is_local: bool = True
    editing: asyncio.Lock = field(default_factory=asyncio.Lock)
    installing: asyncio.Lock = field(default_factory=asyncio.Lock)
    installs: dict[InstallKey, "asyncio.Task[InstallReport]"] = field(default_factory=dict)

    @property
    def execution(self) -> ExecutionSection:
        """The limits of commands: time and output."""
        return self.settings.execution

    async def path_in(self, session: ToolSession, path: str) -> str:
        """Return an absolute path inside the workspace, with links resolved.

        This check only gives a clear error early; the sandbox is what confines file access.
        """
        if not path or "\0" in path:
            raise ConfigurationError("`path` is not a valid path")
        full = session.directory(path)
        real = await asyncio.to_thread(os.path.realpath, full) if self.is_local else full
        for each, why in ((full, "is"), (real, "is a link that points")):
            if not is_within(each, self.workspace):
                raise SecurityError(
                    f"{path!r} {why} outside the workspace {self.workspace}",
                    hint="use a path in the workspace",
                )
        return real

    def check_container(self, container: str) -> None:
        """Refuse an environment that does not belong to the caller."""
        name = getattr(self.gate.sandbox, "container", None)
        full = getattr(self.gate.sandbox, "container_id", "")
        if container and not is_container(container, name=name, id=full):
            raise SecurityError(
                f"the environment {container!r} is not yours",
                hint="omit `container_id`: commands run in the environment of this server; "
                "`kakoi mcp --tasks` serves those of tasks",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call.

    `arguments`: all of them, with defaults; `given`: the names of those that the caller passed.
    `report`: how to report progress; None if the caller does not want to know.
    """

    session: ToolSession
    approval: CallApproval
    given: frozenset[str]
    arguments: Mapping[str, Any]
    report: ReportProgress | None = None


_T = TypeVar("_T")
_FIRST_S: Final = 1.0
_PAUSE_S: Final = 5.0
_REPORT_TIMEOUT_S: Final = 1.0


async def with_progress(
    call: ToolCall, wait: Callable[[float], Awaitable[_T | None]], *, yield_s: float, doing: str
) -> _T | None:
    """Return the result of `wait`, or None after `yield_s`; report progress meanwhile.

    `wait`: waits for the given seconds, and returns None if that was too short. `doing`:
    "running", …
    """
    clock = asyncio.get_running_loop().time
    began = clock()
    pause_s = _FIRST_S
    while True:
        left_s = began + yield_s - clock()
        result = await wait(max(0.0, min(left_s, pause_s)))
        if result is not None or left_s <= pause_s:
            return result
        pause_s = _PAUSE_S
        spent_s = clock() - began
        if call.report is not None:
            # Do not wait for a caller that asked for progress and does not read it.
            with anyio.move_on_after(_REPORT_TIMEOUT_S):
                await call.report(spent_s, f"{doing} for {spent_s:.0f} s")
