"""The client of a keeper: start it, move its program's bytes, wait until it has exited."""

import contextlib
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kakoi._support.late import dataclass
from kakoi.errors import ExecutionError
from kakoi.process.pumps import Drain, Feed
from kakoi.results import Capture

if TYPE_CHECKING:
    import asyncio
    import subprocess

_KEEPER = str(Path(__file__).parents[1] / "runner" / "keeper.py")
_RECORD_BYTES = 4096
# How long a keeper tries to kill the remaining processes before it reports survivors. On an
# overloaded machine, a killed process can take seconds to disappear.
_PATIENCE_MS = 30_000
_NEXT_TRY_S = 0.1


def keeper_argv(*words: str) -> list[str]:
    """Return the argv that starts a keeper."""
    return program_argv(_KEEPER, *words)


def program_argv(source: str, *words: str) -> list[str]:
    """Return the argv that starts a program of ours, from cached bytecode if possible: faster."""
    compiled = _compiled(source)
    program = compiled if compiled and os.path.exists(compiled) else source
    return [sys.executable, "-I", "-S", program, *words]


@cache
def _compiled(program: str) -> str:
    """Return the path of the cached bytecode; empty if there is none for exactly this source.

    Python uses this cache for imports, but not for a program that is started by its path.
    """
    # Imported here because `kakoi check` starts no keeper.
    from importlib.machinery import SourceFileLoader
    from importlib.util import MAGIC_NUMBER, cache_from_source

    name = Path(program).stem
    SourceFileLoader(name, program).get_code(name)  # Writes the cache if the folder is writable.
    path = cache_from_source(program)
    source = os.stat(program)
    stamps = (0, int(source.st_mtime), source.st_size)
    fresh = MAGIC_NUMBER + b"".join(struct.pack("<I", each & 0xFFFFFFFF) for each in stamps)
    try:
        with open(path, "rb") as file:
            return path if file.read(len(fresh)) == fresh else ""
    except OSError:
        return ""


def encode_request(
    argv: Sequence[bytes], env: Sequence[bytes], *, cwd: bytes = b"", timeout_ms: int = 0
) -> bytes:
    """Return the request to send to a keeper. The fields are described in keeper.py."""
    fields = [b"%d" % timeout_ms, b"%d" % _PATIENCE_MS, cwd, b"%d" % len(argv), *argv, *env]
    body = b"\0".join(fields)
    return b"%010d" % len(body) + body


def help_to_end(keeper: int) -> "subprocess.Popen[bytes]":
    """Start a process that helps a silent keeper to end its program, which may have stopped it.

    OSError: no process or descriptor is available at the moment.
    """
    import subprocess

    return subprocess.Popen(
        keeper_argv("end", str(keeper)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def call_when_gone(
    loop: "asyncio.AbstractEventLoop",
    child: int,
    gone: Callable[[], None],
    until: contextlib.ExitStack,
) -> None:
    """Call `gone` once our child has exited, before it is reaped. Never after `until` is closed."""

    def on_exit() -> None:
        loop.remove_reader(fd)
        gone()

    try:
        fd = os.pidfd_open(child)
        until.callback(os.close, fd)
    except (AttributeError, OSError):  # Linux before 5.3, or a Python built for it.
        fd = _descriptor_by_thread(child, until)
    loop.add_reader(fd, on_exit)
    until.callback(loop.remove_reader, fd)


def _descriptor_by_thread(child: int, until: contextlib.ExitStack) -> int:
    """Return a descriptor that becomes readable when the child has exited."""
    from threading import Thread

    ours, theirs = os.pipe()
    until.callback(os.close, ours)

    def wait() -> None:
        with contextlib.suppress(ChildProcessError):  # Already reaped.
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        os.close(theirs)

    Thread(target=wait, daemon=True).start()
    return ours


@dataclass(frozen=True, slots=True)
class KeeperRecord:
    """The record that a keeper wrote before it exited. Its fields are described in keeper.py."""

    kind: str
    number: int
    duration_ms: int
    cpu_ms: int
    max_rss_kib: int
    ended: int
    survivors: int

    @classmethod
    def parse(cls, line: bytes) -> "KeeperRecord | None":
        """Return the record, or None if the keeper exited without writing one."""
        kind, *numbers = line.decode("ascii", "replace").split(" ")
        try:
            return cls(kind, *map(int, numbers))
        except (TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Streams:
    """The program's stdin (None: empty), and the captures of its output (None: our own streams)."""

    stdin: bytes | None
    stdout: Capture | None
    stderr: Capture | None


class KeeperProcess:
    """One running keeper. `end` waits until it has exited; `close` abandons it.

    An abandoned keeper, after `close` or the death of our process, still ends every process below
    itself, but nobody waits for it.
    """

    def __init__(
        self, request: bytes, streams: Streams, *, timeout_s: float | None, grace_s: float
    ) -> None:
        # Imported here and below: `kakoi check` does not need it and must start quickly.
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._grace_s = grace_s
        self._drains: list[Drain] = []
        self._rescuer: subprocess.Popen[bytes] | None = None
        self._ours = contextlib.ExitStack()
        self.overdue = False
        try:
            self._start(request, streams)
        except BaseException as error:
            self.close()
            if not isinstance(error, OSError):
                raise
            raise ExecutionError(
                f"cannot start a keeper: {error.strerror}", details={"python": sys.executable}
            ) from error
        if timeout_s is not None:
            self._rescue_after(timeout_s + grace_s)

    def close(self) -> None:
        """Close all descriptors. Unread output is lost."""
        self._ours.close()

    async def end(self) -> KeeperRecord | None:
        """Wait until the keeper has exited. The captures are complete then.

        A cancellation makes the keeper end its program. It is raised only when that is done, even
        if more cancellations follow.
        """
        from kakoi._support.asyncio import wait_through

        cancelled = await wait_through(self._gone, on_cancel=self._cancel)
        record = self._collect()
        if cancelled is not None:
            raise cancelled
        return record

    def _start(self, request: bytes, streams: Streams) -> None:
        import subprocess

        with contextlib.ExitStack() as theirs:
            self._line, their_line = socket.socketpair()
            self._ours.callback(self._line.close)
            theirs.callback(their_line.close)
            # Not 0, 1 or 2: free here perhaps, but in the keeper they are the program's streams.
            line_fd = fcntl.fcntl(their_line, fcntl.F_DUPFD_CLOEXEC, 3)
            theirs.callback(os.close, line_fd)
            self._popen = subprocess.Popen(
                keeper_argv(str(line_fd)),
                stdin=self._feed(streams.stdin, theirs),
                stdout=self._drain(streams.stdout, theirs),
                stderr=self._drain(streams.stderr, theirs),
                pass_fds=[line_fd],
                start_new_session=True,
            )
        self._ours.callback(self._abandon)
        feed = Feed(self._loop, os.dup(self._line.fileno()), request)
        self._ours.callback(feed.close)
        call_when_gone(self._loop, self._popen.pid, self._on_gone, self._ours)

    def _abandon(self) -> None:
        """Reap the keeper in a thread if it still runs, because our coroutine was discarded."""
        from threading import Thread

        if self._popen.returncode is None:
            with contextlib.suppress(RuntimeError):  # Python is shutting down.
                Thread(target=self._popen.wait, daemon=True).start()

    def _feed(self, data: bytes | None, theirs: contextlib.ExitStack) -> int:
        if data is None:
            null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            theirs.callback(os.close, null)
            return null
        read_end, write_end = os.pipe()
        theirs.callback(os.close, read_end)
        self._ours.callback(Feed(self._loop, write_end, data).close)
        return read_end

    def _drain(self, capture: Capture | None, theirs: contextlib.ExitStack) -> int | None:
        if capture is None:
            return None
        read_end, write_end = os.pipe()
        theirs.callback(os.close, write_end)
        drain = Drain(self._loop, read_end, capture)
        self._ours.callback(drain.close)
        self._drains.append(drain)
        return write_end

    def _on_gone(self) -> None:
        if not self._gone.done():
            self._gone.set_result(None)

    def _cancel(self) -> None:
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
        self._rescue_after(self._grace_s)

    def _rescue_after(self, seconds: float) -> None:
        self._ours.callback(self._loop.call_later(seconds, self._rescue).cancel)

    def _rescue(self) -> None:
        """Help a keeper that does not answer."""
        self.overdue = True
        try:
            self._rescuer = self._rescuer or help_to_end(self._popen.pid)
        except OSError:  # Do not kill it instead: the processes below it would keep running.
            self._rescue_after(_NEXT_TRY_S)

    def _collect(self) -> KeeperRecord | None:
        """Reap the keeper and read the rest of the pipes. It has exited, so nothing blocks."""
        self._popen.wait()
        if self._rescuer is not None:
            self._rescuer.kill()
            self._rescuer.wait()
        for drain in self._drains:
            drain.finish()
        self._line.setblocking(False)
        try:
            return KeeperRecord.parse(self._line.recv(_RECORD_BYTES))
        except OSError:
            return None
