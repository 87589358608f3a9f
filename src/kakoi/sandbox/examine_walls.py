"""Landlock, lists of programs and overlays in a sandbox that is examined, found by trying them."""

import asyncio
import os
import socket
import tempfile
from pathlib import Path
from typing import Final

from kakoi.errors import KakoiError
from kakoi.overlay import Overlay
from kakoi.results import Reason
from kakoi.runner.channel import RunnerChannel
from kakoi.runner.commands import Channel, Command
from kakoi.sandbox.adapter import SandboxAdapter
from kakoi.sandbox.bubblewrap import BubblewrapAdapter
from kakoi.sandbox.landlock import SCOPES_ABI
from kakoi.sandbox.machine import Check, Status, bad, good

COPY_ON_WRITE: Final = "copy-on-write"
PROGRAMS: Final = "programs"
FEW_PROGRAMS: Final = ("cat",)
_COMMAND_S: Final = 15.0


def signals_check(area: str, channel: Channel) -> Check:
    """Can commands signal the runner?"""
    abi = channel.hello.landlock if isinstance(channel, RunnerChannel) else 0
    return _check(
        area, "runner", abi >= SCOPES_ABI, "commands cannot signal it", "commands can signal it"
    )


async def programs_check(area: str, sandbox: SandboxAdapter) -> Check:
    """Have the kernel keep a list (FEW_PROGRAMS) there, and start what is on it and what is not."""
    try:
        listed = await sandbox.run(Command(command=["cat", "/dev/null"], timeout_s=_COMMAND_S))
        other = await sandbox.run(Command(command=["wc", "/dev/null"], timeout_s=_COMMAND_S))
    except KakoiError as error:
        return Check(area, PROGRAMS, Status.NOT_ENFORCED, error.message, error.hint)
    finally:
        await sandbox.cleanup()
    if not listed.ok:
        why = listed.error or f"{listed.reason}, status {listed.exit_code}"
        return bad(area, PROGRAMS, f"with a list of programs (kernel_allowlist) none runs: {why}")
    not_kept = "what is not on the list of programs (kernel_allowlist) runs as well"
    kept = "what was not on a list of programs was not executed (kernel_allowlist)"
    return _check(area, PROGRAMS, other.reason is Reason.NEVER_STARTED, kept, not_kept)


def _check(area: str, name: str, holds: bool, kept: str, not_kept: str) -> Check:
    return good(area, name, kept) if holds else Check(area, name, Status.NOT_ENFORCED, not_kept)


async def try_sockets(channel: Channel) -> tuple[bool, str]:
    """Connect from inside to somebody who listens on this machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        port = server.getsockname()[1]
        text = f"command -v bash >/dev/null && exec bash -c 'echo x >/dev/tcp/127.0.0.1/{port}'"
        result = await channel.run(Command(command=text, timeout_s=_COMMAND_S))
        try:
            server.accept()[0].close()
        except BlockingIOError:
            reached = False
        else:
            reached = True
    if reached or result.ok:
        return False, "a service of this machine was reached"
    return True, "nothing can be reached, not even by itself"


async def copy_on_write_check(area: str, overlays: Path) -> Check:
    """Write to a copy of a workspace, kept on the disk where `overlays` is, and look at it."""
    there = next(each for each in (overlays, *overlays.parents) if each.is_dir())
    with (
        tempfile.TemporaryDirectory(prefix="kakoi-doctor-") as workspace,
        tempfile.TemporaryDirectory(prefix="kakoi-doctor-", dir=there) as folder,
    ):
        overlay = Overlay(workspace, folder)
        sandbox = BubblewrapAdapter(workspace, overlay=overlay)
        try:
            result = await sandbox.run(Command(command="echo x > made", timeout_s=_COMMAND_S))
        finally:
            await sandbox.cleanup()
        told = [each.path for each in await asyncio.to_thread(overlay.discard)]
        held = result.ok and told == ["made"] and not os.listdir(workspace)
    who = "as root" if os.geteuid() == 0 else "as a normal user"
    if not held:
        why = result.error or f"{result.reason}, status {result.exit_code}"
        return bad(area, COPY_ON_WRITE, f"--cow does not work {who}: {why}")
    return good(area, COPY_ON_WRITE, f"--cow works {who}: only a copy was written to")
