"""A disk of limited size, mounted while a container is being started that takes it over."""

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import AsyncIterator, Sequence
from typing import Final

from kakoi.errors import SandboxError
from kakoi.process.stream import Launch, ProcessStream
from kakoi.sandbox.disk import TEMPORARY, Disk, volume_path

VOLUME: Final = os.path.join(os.path.dirname(os.path.dirname(__file__)), "process", "volume.py")
# On a disk, as that is what it stands for; /tmp is in memory on many machines.
_FOLDER: Final = "/var/tmp"  # noqa: S108
_TIMEOUT_S: Final = 60.0
# Where volume.py looks.
_PROGRAMS: Final = "/usr/sbin:/sbin:/usr/bin"


def why_not_made() -> str:
    """What this machine lacks for such a disk; empty if nothing."""
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices here"
    return "" if shutil.which("mkfs.ext4", path=_PROGRAMS) else "mkfs.ext4 is not installed"


@contextlib.asynccontextmanager
async def mounted(
    disk: Disk, *, name: str, uid: int, gid: int, data_only: bool = False
) -> AsyncIterator[None]:
    """Have a new disk mounted, while a container is made that takes it over.

    `data_only`: no program is executed from there.
    """
    fields = [
        "\n".join([str(uid), str(gid), "1777" if top in TEMPORARY else "0755", *disk.below[top]])
        for top in disk.tops
    ]
    order = [
        "make",
        volume_path(name),
        str(disk.volume_bytes),
        _FOLDER,
        "noexec" if data_only else "exec",
        *fields,
    ]
    async with _open(order):
        yield


@contextlib.asynccontextmanager
async def held(paths: Sequence[str], *, name: str, pid: int) -> AsyncIterator[None]:
    """Keep the disk of a container, of which `pid` is a process, while that is started anew."""
    async with _open(["again", volume_path(name), str(pid), *paths]):
        yield


@contextlib.asynccontextmanager
async def _open(order: Sequence[str]) -> AsyncIterator[None]:
    spec = os.fsencode("\0".join(order))
    argv = [sys.executable, "-I", "-S", VOLUME]
    stream = ProcessStream(Launch(argv=argv, env={"LANG": "C.UTF-8"}))
    try:
        loop = asyncio.get_running_loop()
        said = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            async with asyncio.timeout(_TIMEOUT_S):
                await loop.sock_sendall(stream.socket, b"%010d" % len(spec) + spec)
                said = await loop.sock_recv(stream.socket, 1)
                if not said:
                    await stream.wait()
        if not said:
            raise _failure(stream.stderr)
        yield
    finally:
        await stream.end(grace_s=_TIMEOUT_S)  # Killed, it would leave the mount behind.


def _failure(stderr: str) -> SandboxError:
    lines = dict(line.partition(": ")[::2] for line in stderr.splitlines())
    return SandboxError(
        lines.get("staging") or "no disk of limited size could be made",
        details={"stderr": stderr},
        hint=f"{lines.get('fix') or 'free a loop device'}; or set `resources.disk_limit: none`",
    )
