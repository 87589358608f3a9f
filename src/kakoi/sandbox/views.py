"""Root's directory, seen as an unprivileged user's own while a container is being started."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator

from kakoi.errors import SandboxError
from kakoi.process.stream import Launch, ProcessStream
from kakoi.sandbox.workspace import Seen

LENDING = os.path.join(os.path.dirname(os.path.dirname(__file__)), "process", "lending.py")
_PLACE = "/run/kakoi/views"
_TIMEOUT_S = 30.0


def view_path(name: str) -> str:
    """Where the view for the container of that name is mounted."""
    return f"{_PLACE}/{name}"


@contextlib.asynccontextmanager
async def lent(
    seen: Seen, *, name: str, uid: int, gid: int, data_only: bool = False
) -> AsyncIterator[None]:
    """Have a view of `seen` at `view_path(name)`, in which `uid` and `gid` stand for root.

    `data_only`: nothing is executed from there.

    A container that mounts it keeps it. What is written there is root's on the disk, so the same
    holds as for any directory that root lets others write to: a setuid file made there is root's.
    """
    known = f"{seen.device} {seen.inode} {seen.uid} {seen.gid}"
    access = "data" if data_only else "write"
    fields = [str(uid), str(gid), view_path(name), seen.path, known, access]
    spec = os.fsencode("\0".join(fields))
    argv = [sys.executable, "-I", "-S", LENDING]
    stream = ProcessStream(Launch(argv=argv, env={"LANG": "C.UTF-8"}))
    try:
        await _mount(stream, b"%010d" % len(spec) + spec, seen)
        yield
    finally:
        await stream.end(grace_s=_TIMEOUT_S)  # Killed, it would leave the mount behind.


async def _mount(stream: ProcessStream, order: bytes, seen: Seen) -> None:
    loop = asyncio.get_running_loop()
    said = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(_TIMEOUT_S):
            await loop.sock_sendall(stream.socket, order)
            said = await loop.sock_recv(stream.socket, 1)
            if not said:
                await stream.wait()
    if not said:
        lines = dict(line.partition(": ")[::2] for line in stream.stderr.splitlines())
        raise SandboxError(
            lines.get("staging") or f"cannot lend {seen.path} to a container",
            details={"workspace": seen.path, "stderr": stream.stderr},
            hint=f"{lines.get('fix') or 'give it to a normal user: chown -R'}; or run without a "
            "workspace",
        )
