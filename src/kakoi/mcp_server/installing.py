"""The tool that installs packages: the answers of `kakoi install`, from the same lists."""

import asyncio
from functools import partial
from typing import Final

import anyio
from mcp_types import CallToolResult

from kakoi.config.packages import installer_from, installer_policy, list_folder
from kakoi.errors import ExecutionError
from kakoi.mcp_server.house import House, InstallKey, ToolCall
from kakoi.mcp_server.progress import telling_progress
from kakoi.mcp_server.replies import how_to_go_on, said, with_trailer
from kakoi.packages.allowlist import InstallRequest
from kakoi.packages.install import Installed, read_lists, requests_from
from kakoi.packages.places import InSandbox
from kakoi.printable import shown

_MOST_INSTALLS: Final = 16
_ENDING_PATIENCE_S: Final = 30.0


async def install_package(house: House, call: ToolCall) -> CallToolResult:
    """Install one listed package; after `yield_ms` it goes on, and the same call waits for it."""
    given = call.arguments
    (request,) = requests_from(given["type"], [given["package"]])
    key = (call.session.scope, request)
    task = house.installs.get(key)
    if task is None:
        if len(house.installs) >= _MOST_INSTALLS:
            raise ExecutionError(
                f"{_MOST_INSTALLS} packages are being installed, and there may be no more",
                hint="wait for one of them",
            )
        task = asyncio.ensure_future(_install(house, call, request))
        house.installs[key] = task
        task.add_done_callback(partial(_forget, house, key))
    try:
        done = await telling_progress(
            call, partial(_end_of, task), yield_s=given["yield_ms"] / 1000, doing="installing"
        )
    except asyncio.CancelledError:
        # The client does not want it any more.
        task.cancel()
        with anyio.move_on_after(_ENDING_PATIENCE_S, shield=True):
            await asyncio.wait([task])
        raise
    if done is None:
        told = f"{request.type} {shown(request.package)} is still being installed"
        session = call.session.told_name
        house.sessions.keep(call.session)
        more = "the same call again waits for it"
        meta = {"running": True} | ({"session": session} if session else {})
        return said(with_trailer("", told, more, how_to_go_on(session)), meta)
    return _answer(house, done)


async def _end_of(task: "asyncio.Task[Installed]", wait_s: float) -> Installed | None:
    """What came of it; None if it goes on for longer."""
    await asyncio.wait([task], timeout=wait_s)
    if task.cancelled():
        raise ExecutionError(
            "another call for the same package gave it up", hint="ask for it again"
        )
    return task.result() if task.done() else None


async def _install(house: House, call: ToolCall, request: InstallRequest) -> Installed:
    settings = house.settings
    async with house.installing:
        policy = installer_policy(settings.policy, roots=[house.workspace])
        approver = call.person.approver(house.workspace)
        gate = house.gate.under(policy, approver=approver, session=call.session.label)
        installer = installer_from(
            settings.packages,
            await asyncio.to_thread(read_lists, list_folder(settings.packages)),
            InSandbox(gate, house.workspace, env=house.env),
            audit_file=house.audit_file,
            tell_rejected=partial(house.gate.record_verdict, session=call.session.label),
        )
        return await installer.install(request)


def _forget(house: House, key: InstallKey, task: "asyncio.Task[Installed]") -> None:
    house.installs.pop(key, None)
    if not task.cancelled():
        task.exception()  # Seen, even if the client does not ask again.


def _answer(house: House, done: Installed) -> CallToolResult:
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
        came = f"with it came {', '.join(done.also)}\n" if done.also else ""
        told = with_trailer(came, f"installed {result.package}", f"{result.duration_ms} ms")
        return said(told, meta)
    path = list_folder(house.settings.packages) / f"{result.type}.txt"
    if result.status == "rejected":
        words = f"{result.type}: `{result.package}` is refused: {meta['error']}"
        hint = f"use a package that is on the list, {shown(str(path))}, or ask your user to add it"
    else:
        words = f"{result.type}: `{result.package}` was not installed: {meta['error']}"
        hint = f"`kakoi install {result.type} {result.package}` does the same at a terminal"
    return said(f"{words}\n  hint: {hint}", meta | {"hint": hint}, is_error=True)
