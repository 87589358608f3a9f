"""A direct channel to the runner in a container on this machine, for root.

Everything sent over `docker exec` passes through the client, the engine and a shim, in both
directions. A lingering runner waits for more clients at a socket in the container's files
(runner/runner_socket.py), which root can see below /proc. So we connect there, pass it one end of a
socket pair, and talk over that. The client of `docker exec`, which needs more memory than the
runner, then has no more work and is ended; the runner stays.

The container is hostile: we follow none of its symbolic links, and it gets nothing but a stream.
Where a direct channel is impossible (not root, an engine elsewhere), we keep using `docker exec`.
"""

import array
import asyncio
import contextlib
import os
import socket
import stat

from kakoi._support.asyncio import finish
from kakoi.channel.connection import closed_on_failure
from kakoi.channel.runner_channel import RunnerChannel
from kakoi.channel.runner_stream import open_direct_stream
from kakoi.errors import SandboxError
from kakoi.runner.runner_socket import READY, STAYS, introduce, peer_pid

_PATIENCE_S = 5.0


class _Runner:
    """A runner that nothing on this machine carries: it ends when it has no client."""

    stderr = ""

    def __init__(self, pid: int, held: socket.socket) -> None:
        self.pid = pid
        self._held = held
        self._fd = os.pidfd_open(pid)

    async def end(self, grace_s: float = 2.0) -> None:
        """Wait up to `grace_s` until it has exited, or says that others still need it."""
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        self._held.setblocking(False)
        loop.add_reader(self._fd, over.set)
        loop.add_reader(self._held, self._hear, over)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace_s):
                    await over.wait()
        finally:
            loop.remove_reader(self._fd)
            loop.remove_reader(self._held)
            self._held.close()
            os.close(self._fd)

    def _hear(self, over: asyncio.Event) -> None:
        """Read what the runner says when our stream has ended. Without a word, it exits."""
        asyncio.get_running_loop().remove_reader(self._held)
        with contextlib.suppress(OSError):
            if self._held.recv(len(STAYS)) == STAYS:
                over.set()


async def prefer_direct_channel(
    channel: RunnerChannel, *, pid: int, folder: str, key: str
) -> RunnerChannel:
    """Return a direct channel to the same runner if possible; otherwise `channel` itself.

    `pid`: a process in the container. `folder`: its temporary directory. `key`: proves to the
    runner that we are allowed to talk to it.
    """
    going = asyncio.to_thread(_meet, pid, channel.hello.uid, folder, key)
    meeting = asyncio.ensure_future(going)
    try:
        ours, held = await asyncio.shield(meeting)
    except OSError:
        return channel
    except BaseException:
        meeting.add_done_callback(_drop)  # A thread cannot be cancelled.
        await finish(channel.close())
        raise
    try:
        runner = _Runner(peer_pid(held), held)
    except OSError:
        ours.close()
        held.close()
        return channel
    try:
        line = await open_direct_stream(ours, runner)
    except SandboxError:
        await finish(runner.end(0))
        return channel
    except BaseException:
        await finish(runner.end(0))
        await finish(channel.close())
        raise
    direct = RunnerChannel(line, channel.grace_s)
    async with closed_on_failure(direct):
        await finish(channel.close(grace_s=0))
    return direct


def _drop(meeting: "asyncio.Future[tuple[socket.socket, socket.socket]]") -> None:
    if not meeting.cancelled() and meeting.exception() is None:
        for each in meeting.result():
            each.close()


def _meet(pid: int, uid: int, folder: str, key: str) -> tuple[socket.socket, socket.socket]:
    """Pass the waiting runner a stream; returns our end, and the connection to its socket."""
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
                raise OSError("no runner answers, or another process does")
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
    """Return our pid as that process sees it (0: outside its PID namespace), and its own."""
    with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as file:
        fields = next((line for line in file if line.startswith("NSpid:")), "")
    _name, *numbers = fields.split() or [""]
    if not numbers:
        raise OSError("the kernel does not show the pid of the runner")
    return os.getpid() if len(numbers) == 1 else 0, int(numbers[-1])
