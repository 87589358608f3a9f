"""Our side of a keeper: start it, move its program's bytes, wait until it is gone."""

import contextlib
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kakoi.errors import ExecutionError
from kakoi.process.pumps import Drain, Feed
from kakoi.results import Capture

if TYPE_CHECKING:
    import asyncio
    import subprocess

_KEEPER = str(Path(__file__).parent.with_name("keeper.py"))
_RECORD_BYTES = 4096
# How long a keeper tries to end what does not die before it says so. On a machine that is drowning
# in processes, a killed one may wait for seconds until it is its turn to be gone.
_PATIENCE_MS = 30_000
_NEXT_TRY_S = 0.1


def keeper_argv(*words: str) -> list[str]:
    """How a keeper is started: from its byte code, if Python has it, which saves a fifth."""
    compiled = _compiled_keeper()
    program = compiled if compiled and os.path.exists(compiled) else _KEEPER
    return [sys.executable, "-I", "-S", program, *words]


@cache
def _compiled_keeper() -> str:
    """The byte code in Python's cache; empty if there is none of this very source.

    Python itself looks there for what is imported, but not for a program that it is given by path.
    """
    # Here: `kakoi check` starts no keeper.
    from importlib.machinery import SourceFileLoader
    from importlib.util import MAGIC_NUMBER, cache_from_source

    SourceFileLoader("kakoi.keeper", _KEEPER).get_code("kakoi.keeper")  # Writes it, if it may.
    path = cache_from_source(_KEEPER)
    source = os.stat(_KEEPER)
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
    """What to send to a keeper; keeper.py says what the fields are."""
    fields = [b"%d" % timeout_ms, b"%d" % _PATIENCE_MS, cwd, b"%d" % len(argv), *argv, *env]
    body = b"\0".join(fields)
    return b"%010d" % len(body) + body


def help_to_end(keeper: int) -> "subprocess.Popen[bytes]":
    """Start what ends the work of a keeper that does not answer: its program may have stopped it.

    OSError: there is no room for a process, or a descriptor, at this moment.
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
    """Call `gone` once, when our child has exited and before it is reaped; not after `until`."""

    def on_exit() -> None:
        loop.remove_reader(fd)
        gone()

    try:
        fd = os.pidfd_open(child)
        until.callback(os.close, fd)
    except (AttributeError, OSError):  # Before Linux 5.3, or a Python built for that.
        fd = _descriptor_by_thread(child, until)
    loop.add_reader(fd, on_exit)
    until.callback(loop.remove_reader, fd)


def _descriptor_by_thread(child: int, until: contextlib.ExitStack) -> int:
    """A descriptor that is readable when the child has exited."""
    from threading import Thread

    ours, theirs = os.pipe()
    until.callback(os.close, ours)

    def wait() -> None:
        with contextlib.suppress(ChildProcessError):  # Reaped already.
            os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        os.close(theirs)

    Thread(target=wait, daemon=True).start()
    return ours


@dataclass(frozen=True, slots=True)
class Record:
    """What a keeper wrote before it exited; keeper.py says what the words mean."""

    kind: str
    number: int
    duration_ms: int
    cpu_ms: int
    max_rss_kib: int
    ended: int
    survivors: int

    @classmethod
    def parse(cls, line: bytes) -> "Record | None":
        """The record, or None if the keeper did not get to write one."""
        kind, *numbers = line.decode("ascii", "replace").split(" ")
        try:
            return cls(kind, *map(int, numbers))
        except (TypeError, ValueError):
            return None


@dataclass(frozen=True, slots=True)
class Streams:
    """What the program reads (None: nothing) and where its output goes (None: to our own)."""

    stdin: bytes | None
    stdout: Capture | None
    stderr: Capture | None


class Kept:
    """One running keeper. `end` waits for its own end; `close` gives it up.

    A keeper that is given up, by `close` or by the death of our process, ends everything below
    itself all the same; only nobody waits for it.
    """

    def __init__(
        self, request: bytes, streams: Streams, *, timeout_s: float | None, grace_s: float
    ) -> None:
        # Here and below, not at the top: `kakoi check` never gets here and must start quickly.
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
        """Let go of everything; what has not been read is lost."""
        self._ours.close()

    async def end(self) -> Record | None:
        """Wait until the keeper is gone; captures are complete then.

        A cancellation makes the keeper end its program and is raised when that is done, not
        before, even if more of them follow.
        """
        import asyncio

        cancelled: asyncio.CancelledError | None = None
        while not self._gone.done():
            try:
                await asyncio.wait([self._gone])
            except asyncio.CancelledError as error:
                if cancelled is None:
                    self._cancel()
                cancelled = error
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
            # Not 0, 1 or 2: those may be free here, but are the program's streams over there.
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
        """If the keeper still runs (our coroutine was thrown away), let it be reaped some day."""
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
        except OSError:  # Not to be killed instead: what is below it would run on.
            self._rescue_after(_NEXT_TRY_S)

    def _collect(self) -> Record | None:
        """Reap, and take what is still in the pipes. The keeper is gone, so nothing blocks."""
        self._popen.wait()
        if self._rescuer is not None:
            self._rescuer.kill()
            self._rescuer.wait()
        for drain in self._drains:
            drain.finish()
        self._line.setblocking(False)
        try:
            return Record.parse(self._line.recv(_RECORD_BYTES))
        except OSError:
            return None
