"""The tool that installs packages, with the same lists and results as `kakoi install`."""

import asyncio
from functools import partial
from typing import Final

import anyio

from kakoi._support.text import shown
from kakoi.errors import ExecutionError
from kakoi.packages.allowlist import InstallRequest
from kakoi.packages.from_settings import installer_from, installer_policy, list_folder
from kakoi.packages.installer import InstallReport, read_lists, requests_from
from kakoi.packages.targets import SandboxTarget
from kakoi.tools.replies import ToolResult, session_note, with_trailer
from kakoi.tools.state import InstallKey, ToolCall, ToolState, with_progress

_MOST_INSTALLS: Final = 16
_STOP_TIMEOUT_S: Final = 30.0


async def install_package(state: ToolState, call: ToolCall) -> ToolResult:
    """Install one listed package. After `yield_ms` it continues; the same call waits for it."""
    given = call.arguments
    (request,) = requests_from(given["type"], [given["package"]])
    key = (call.session.scope, request)
    task = state.installs.get(key)
    if task is None:
        if len(state.installs) >= _MOST_INSTALLS:
            raise ExecutionError(
                f"{_MOST_INSTALLS} packages are already being installed, which is the limit",
                hint="wait for one of them",
            )
        task = asyncio.ensure_future(_install(state, call, request))
        state.installs[key] = task
        task.add_done_callback(partial(_forget, state, key))
    try:
        done = await with_progress(
            call, partial(_end_of, task), yield_s=given["yield_ms"] / 1000, doing="installing"
        )
    except asyncio.CancelledError:
        # The caller has cancelled.
        task.cancel()
        with anyio.move_on_after(_STOP_TIMEOUT_S, shield=True):
            await asyncio.wait([task])
        raise
    if done is None:
        status = f"{request.type} {shown(request.package)} is still being installed"
        session = call.session.secret_name
        state.sessions.keep(call.session)
        more = "repeat the same call to wait for it"
        meta = {"running": True} | ({"session": session} if session else {})
        text = with_trailer("", status, more, session_note(session))
        return ToolResult(text=text, meta=meta)
    return _answer(state, done)


async def _end_of(task: "asyncio.Task[InstallReport]", wait_s: float) -> InstallReport | None:
    """Return the result; None if it takes longer."""
    await asyncio.wait([task], timeout=wait_s)
    if task.cancelled():
        raise ExecutionError("another call for the same package cancelled it", hint="call again")
    return task.result() if task.done() else None


async def _install(state: ToolState, call: ToolCall, request: InstallRequest) -> InstallReport:
    settings = state.settings
    async with state.installing:
        policy = installer_policy(settings.policy, roots=[state.workspace])
        approver = call.approval.approver(state.workspace)
        gate = state.gate.with_policy(policy, approver=approver, session=call.session.label)
        installer = installer_from(
            settings.packages,
            await asyncio.to_thread(read_lists, list_folder(settings.packages)),
            SandboxTarget(gate, state.workspace, env=state.env),
            audit_file=state.audit_file,
            report_rejected=partial(state.gate.record_verdict, session=call.session.label),
        )
        return await installer.install(request)


def _forget(state: ToolState, key: InstallKey, task: "asyncio.Task[InstallReport]") -> None:
    state.installs.pop(key, None)
    if not task.cancelled():
        task.exception()  # Mark it as retrieved, even if the caller never asks again.


def _answer(state: ToolState, done: InstallReport) -> ToolResult:
    result = done.result
    meta = {
        "type": result.type,
        "package": result.package,
        "status": result.status,
        "exit_code": done.exit_code,
        "duration_ms": result.duration_ms,
        "error": shown(result.error or ""),
        "also": list(done.also),
        "running": False,
    }
    if result.status == "success":
        came = f"also installed: {', '.join(done.also)}\n" if done.also else ""
        text = with_trailer(came, f"installed {result.package}", f"{result.duration_ms} ms")
        return ToolResult(text=text, meta=meta)
    path = list_folder(state.settings.packages) / f"{result.type}.txt"
    if result.status == "rejected":
        words = f"{result.type}: `{result.package}` is refused: {meta['error']}"
        hint = f"use a package that is on the list, {shown(str(path))}, or ask your user to add it"
    else:
        words = f"{result.type}: `{result.package}` was not installed: {meta['error']}"
        hint = f"`kakoi install {result.type} {result.package}` does the same at a terminal"
    text = f"{words}\n  hint: {hint}"
    return ToolResult(text=text, meta=meta | {"hint": hint}, is_error=True)
