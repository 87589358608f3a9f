"""Toolset: calls the tools by their names, for one gate and one workspace."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final

from kakoi._support.late import pattern
from kakoi._support.parsing import nearest
from kakoi.audit import AuditRecord
from kakoi.backends.adapter import with_availability_hint
from kakoi.backends.workspace import is_within
from kakoi.errors import ConfigurationError, KakoiError, SandboxError
from kakoi.gate import Gate
from kakoi.policy.rules import Policy
from kakoi.settings.model import Settings
from kakoi.tools.approval import CallApproval, UserContact
from kakoi.tools.arguments import Argument, read_arguments
from kakoi.tools.catalogue import TOOLS, ToolSpec
from kakoi.tools.replies import ToolResult, error_reply
from kakoi.tools.sessions import DEFAULT_SESSION, Caller, Sessions, ToolSession
from kakoi.tools.state import ReportProgress, ToolCall, ToolState

_SESSION_NAME: Final = pattern(r"[A-Za-z0-9_.-]{1,64}")
_STOP_TIMEOUT_S: Final = 10.0
_ONLY_CALLER: Final = Caller()


class Toolset:
    """The tools of `TOOLS`, for every caller of one gate."""

    def __init__(self, state: ToolState) -> None:
        self._state = state

    @property
    def gate(self) -> Gate:
        """The gate that everything goes through."""
        return self._state.gate

    @property
    def workspace(self) -> str:
        """The directory in which the callers work."""
        return self._state.workspace

    @property
    def policy(self) -> Policy:
        """The policy that judges every call."""
        return self.gate.policy

    @property
    def is_local(self) -> bool:
        """Is the workspace a directory on this machine, at the same path?"""
        return self._state.is_local

    @property
    def sessions(self) -> Sessions:
        """The sessions of all callers."""
        return self._state.sessions

    def session(self, caller: Caller, name: str) -> ToolSession:
        """The session of that name; ConfigurationError if this caller never got that name."""
        return self.sessions.get(caller, name)

    def arguments_of(self, spec: ToolSpec) -> Mapping[str, Argument]:
        """The arguments of a tool."""
        return spec.arguments

    def is_about(self, record: AuditRecord) -> bool:
        """Is it a record of this workspace? A user has one log for all workspaces."""
        task = self.gate.labels.task
        where = os.path.normpath(record.cwd)
        return record.task == task and (task != "" or is_within(where, self.workspace))

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any],
        *,
        caller: Caller = _ONLY_CALLER,
        contact: UserContact | None = None,
        report: ReportProgress | None = None,
    ) -> ToolResult:
        """Call a tool. A refusal, a wrong argument and a failure are results as well.

        `contact`: how to ask the user for approval; None if nobody can be asked. Raises only what
        `contact` raises, and bugs. Cancelling the call ends the command that it runs.

            result = await tools.call("execute_command", {"command": "make test"})
        """
        try:
            call = self._read(name, arguments, caller, contact, report)
            return await TOOLS[name].work(self._state, call)
        except SandboxError as error:
            return error_reply(await with_availability_hint(error, self.gate.sandbox))
        except (KakoiError, OSError) as error:
            return error_reply(error)

    def _read(
        self,
        name: str,
        arguments: Mapping[str, Any],
        caller: Caller,
        contact: UserContact | None,
        report: ReportProgress | None,
    ) -> ToolCall:
        if name not in TOOLS:
            raise ConfigurationError(f"there is no tool {name[:64]!r}{nearest(name, TOOLS)}")
        # Some callers send null for omitted arguments.
        given = {key: value for key, value in arguments.items() if value is not None}
        read = read_arguments(TOOLS[name].arguments, given)
        session_name = read.get("session", DEFAULT_SESSION)
        if not _SESSION_NAME.fullmatch(session_name):
            raise ConfigurationError("`session` must be 1 to 64 of A-Z a-z 0-9 . _ -")
        session = self.sessions.get(caller, session_name)
        return ToolCall(
            session=session,
            approval=CallApproval(contact, session, read, self.gate.approvals),
            given=frozenset(given),
            arguments=read,
            report=report,
        )


@contextlib.asynccontextmanager
async def open_toolset(
    gate: Gate,
    *,
    settings: Settings,
    workspace: str,
    audit_file: Path,
    door: str,
    cwd: str = "",
    env: Mapping[str, str] | None = None,
    is_local: bool = True,
) -> AsyncIterator[Toolset]:
    """Open the tools for a gate, which stays open. At the end, nothing that they started runs.

    `cwd`: where sessions start; empty means the workspace. `door`: the label of their sessions in
    the audit log. `env`, `is_local`: see ToolState.
    """
    state = ToolState(
        gate=gate,
        workspace=workspace,
        settings=settings,
        audit_file=audit_file,
        sessions=Sessions(cwd or workspace, door=door),
        env=env or {},
        is_local=is_local,
    )
    try:
        yield Toolset(state)
    finally:
        await _cancel_installs(state)
        await _stop_jobs(gate)


async def _cancel_installs(state: ToolState) -> None:
    tasks = list(state.installs.values())
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _stop_jobs(gate: Gate) -> None:
    """Stop running jobs so that their end is recorded, right before the sandbox is closed."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_STOP_TIMEOUT_S):
            await asyncio.gather(*(_stop_job(gate, job) for job in gate.running_jobs))


async def _stop_job(gate: Gate, job: str) -> None:
    with contextlib.suppress(KakoiError, OSError):
        await gate.stop(job)
