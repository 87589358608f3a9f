"""A shorter way to the runner in a container of this machine, for root.

What goes over `docker exec` passes the client, the engine and a shim, each way. A runner that
lingers waits for more clients at a socket in the container's files (runner/lingering.py), and root
sees these below /proc. So we go there, hand it one end of a pair of sockets, and speak over that.

The container is hostile: no link of its own is followed on the way, and all that it gets is a
stream. Where there is no such way (another user, an engine elsewhere), the long one stays.
"""

import array
import asyncio
import contextlib
import os
import socket
import stat

from kakoi.errors import SandboxError
from kakoi.runner.channel import RunnerChannel
from kakoi.runner.line import open_direct
from kakoi.runner.lingering import READY, introduce, peer_pid
from kakoi.waiting import finish

_PATIENCE_S = 5.0


class _Behind:
    """What is behind the short way: the channel that has brought the runner there."""

    def __init__(self, first: RunnerChannel, held: socket.socket) -> None:
        self._first = first
        self._held = held

    @property
    def stderr(self) -> str:
        return self._first.carrier.stderr

    @property
    def pid(self) -> int:
        return self._first.carrier.pid

    async def end(self, grace_s: float = 2.0) -> None:
        self._held.close()
        await self._first.close()


async def shortened(channel: RunnerChannel, *, pid: int, folder: str, key: str) -> RunnerChannel:
    """The same runner by the short way, if there is one; else `channel` as it is.

    `pid`: a process in the container. `folder`: where things are temporary in there. `key`: by
    which its runner is known.
    """
    going = asyncio.to_thread(_meet, pid, channel.hello.uid, folder, key)
    meeting = asyncio.ensure_future(going)
    try:
        ours, held = await asyncio.shield(meeting)
    except OSError:
        return channel
    except BaseException:
        meeting.add_done_callback(_drop)  # A thread cannot be called back.
        await finish(channel.close())
        raise
    try:
        line = await open_direct(ours, _Behind(channel, held))
    except SandboxError:
        held.close()
        return channel
    except BaseException:
        held.close()
        await finish(channel.close())
        raise
    return RunnerChannel(line, channel.grace_s)


def _drop(meeting: "asyncio.Future[tuple[socket.socket, socket.socket]]") -> None:
    if not meeting.cancelled() and meeting.exception() is None:
        for each in meeting.result():
            each.close()


def _meet(pid: int, uid: int, folder: str, key: str) -> tuple[socket.socket, socket.socket]:
    """Go to where the runner waits, and give it a stream; returns our end, and the line there."""
    with contextlib.ExitStack() as stack:
        at = _open(f"/proc/{pid}/root", os.O_DIRECTORY, stack)
        for name in (*folder.split("/"), f".kakoi-{uid}"):
            if name:
                at = _open(name, os.O_DIRECTORY | os.O_NOFOLLOW, stack, at)
        there = _open("runner", os.O_NOFOLLOW, stack, at)
        found = os.fstat(there)
        if not stat.S_ISSOCK(found.st_mode) or found.st_uid != uid:
            raise OSError("not a runner's socket")
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(_PATIENCE_S)
        ours, theirs = socket.socketpair()
        try:
            line.connect(f"/proc/self/fd/{there}")
            if not introduce(line, key, *_numbers_inside(peer_pid(line))):
                raise OSError("nobody is there, or a stranger")
            second = os.dup(theirs.fileno())
            stack.callback(os.close, second)
            rights = array.array("i", [theirs.fileno(), second])
            line.sendmsg([READY], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError:
            line.close()
            ours.close()
            raise
        finally:
            theirs.close()
        ours.setblocking(False)
        return ours, line


def _open(name: str, flags: int, stack: contextlib.ExitStack, at: int | None = None) -> int:
    fd = os.open(name, flags | os.O_PATH | os.O_CLOEXEC, dir_fd=at)
    stack.callback(os.close, fd)
    return fd


def _numbers_inside(pid: int) -> tuple[int, int]:
    """Our own number where that process is, and its own: 0 is who is outside of a PID namespace."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        fields = next((line for line in file if line.startswith("NSpid:")), "")
    _name, *numbers = fields.split() or [""]
    if not numbers:
        raise OSError("the kernel does not tell the number of the runner")
    return os.getpid() if len(numbers) == 1 else 0, int(numbers[-1])
