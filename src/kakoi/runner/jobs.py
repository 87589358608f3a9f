"""One command inside the sandbox: its streams, its time, its end. Every command is a job.

A job in the foreground has a follower, the request that waits for it: it gets the output as far
as its credit goes, and the answer. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import contextlib
import errno
import fcntl
import os
import struct
import termios
import time

from kakoi.runner import frames
from kakoi.runner.keepers import END, SIGNAL, Record
from kakoi.runner.loop import READ, WRITE
from kakoi.runner.spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from kakoi.runner.keepers import Keeper
    from kakoi.runner.loop import Loop, Timer

    class Follower(Protocol):
        """Where the output and the answer of a job go."""

        def room(self) -> int: ...
        def send(self, kind: int, body: bytes) -> None: ...
        def answer(self, answer: dict[str, Any]) -> None: ...


_CHUNK = frames.MAX_DATA
_SMALL_PIPE = 64 * 1024
_SECOND_TRY_S = 1.0
_EVERYTHING = 1 << 62
_END_OF_INPUT = b"\x04"  # A terminal has no end; this is what people type.
STDIN_LIMIT = frames.WINDOW


class Output:
    """One output stream: read as fast as its follower takes it, stored up to its bound."""

    def __init__(self, job: Job, fd: int, kind: int, *, send_limit: int, spill_limit: int) -> None:
        self._job = job
        self._fd = fd
        self._kind = kind
        self._unsent = send_limit  # How much of it the follower wants to see at all.
        self._paused = False
        self._grown = False
        self.spool = Spool(spill_limit)
        os.set_blocking(fd, False)
        job.loop.watch(fd, READ, self._on_ready)

    @property
    def open(self) -> bool:
        return self._fd >= 0

    @property
    def held_back(self) -> bool:
        return self._paused and self.open

    def _may_read(self) -> int:
        """How many bytes can be taken from the command at this moment."""
        follower = self._job.follower
        if follower is None or self._unsent <= 0:
            return _CHUNK
        return min(_CHUNK, follower.room())

    def resume(self) -> None:
        if self._paused and self.open and self._may_read():
            self._paused = False
            self._job.loop.watch(self._fd, READ, self._on_ready)

    def _on_ready(self, _events: int) -> None:
        size = self._may_read()
        if size == 0:
            self._paused = True
            self._job.loop.watch(self._fd, 0, self._on_paused)
        else:
            self.take(size)

    def _on_paused(self, _events: int) -> None:
        """The pipe has lost its writers while nobody reads it: it will keep."""
        self._job.loop.forget(self._fd)

    def take(self, size: int) -> int:
        """Move one chunk; 0 if there is none."""
        buffer = self._job.buffer
        try:
            taken = os.readv(self._fd, [buffer[:size]])
        except BlockingIOError:
            return 0
        except OSError:  # A terminal whose last holder is gone says EIO.
            taken = 0
        if taken == 0:
            self.close()
            return 0
        chunk = buffer[:taken]
        self._job.last_output = time.monotonic()
        self.spool.append(chunk)
        if self._job.follower is not None and self._unsent > 0:
            body = bytes(chunk[: self._unsent])
            self._unsent -= len(body)
            self._job.follower.send(self._kind, body)
        for watcher in list(self._job.watchers):
            watcher()
        if taken >= _SMALL_PIPE and not self._grown and self.open:
            self._grow()
        return taken

    def _grow(self) -> None:
        """A flood takes a fifth longer through a pipe of the usual size."""
        self._grown = True
        with contextlib.suppress(OSError):
            fcntl.fcntl(self._fd, 1031, _CHUNK)  # F_SETPIPE_SZ

    def finish(self) -> bool:
        """The command is over: take what is there. False if the follower has no room for it."""
        # A terminal is read to its end: what it holds is not to be counted from outside.
        left = _EVERYTHING if self._job.terminal >= 0 else _bytes_in(self._fd) if self.open else 0
        while self.open and left > 0:
            size = min(self._may_read(), left)
            if size == 0:
                return False
            taken = self.take(size)
            if taken == 0:
                break
            left -= taken
        self.close()
        return True

    def close(self) -> None:
        if self.open:
            self._job.loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1


def _bytes_in(pipe: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


class Input:
    """The command's standard input: written as it is read, acknowledged as it is written."""

    def __init__(self, job: Job, fd: int, *, terminal: bool = False) -> None:
        self._job = job
        self._fd = fd
        self._terminal = terminal
        self._waiting = bytearray()
        self._owed = 0  # How much of it the client is still to be credited for.
        self._in_line = False
        self._ending = False
        os.set_blocking(fd, False)

    def feed(self, data: bytes) -> bool:
        """Take more, or (nothing) the end of it; False if it was sent beyond the credit."""
        if self._fd < 0:
            self._owed += len(data)
            self._acknowledge(len(data))
            return True
        self._owed += len(data)
        if self._terminal:
            # In the middle of a line, the first one only ends the line.
            whole, self._in_line = not self._in_line, bool(data) and data[-1:] not in b"\r\n"
            data = data or (_END_OF_INPUT if whole else 2 * _END_OF_INPUT)
        self._ending = self._ending or not data
        self._waiting += data
        self._write(0)
        return self._owed <= STDIN_LIMIT

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def _write(self, _events: int) -> None:
        try:
            while self._waiting:
                written = os.write(self._fd, memoryview(self._waiting)[:_CHUNK])
                del self._waiting[:written]
                self._acknowledge(written)
        except BlockingIOError:
            self._job.loop.watch(self._fd, WRITE, self._write)
            return
        except OSError:  # The reader is gone; that is the command's own affair.
            self._acknowledge(len(self._waiting))
            self.close()
            return
        self._job.loop.forget(self._fd)
        if self._ending:
            self.close()

    def _acknowledge(self, size: int) -> None:
        size = min(size, self._owed)
        self._owed -= size
        if size and self._job.follower is not None:
            self._job.follower.send(frames.CREDIT, frames.NUMBER.pack(size))

    def close(self) -> None:
        if self._fd >= 0:
            self._job.loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1
        self._waiting.clear()


class Job:
    """A command from its start to its answer."""

    def __init__(
        self,
        loop: Loop,
        order: dict[str, Any],
        buffer: memoryview,
        on_over: Callable[[Job], None],
    ) -> None:
        self.loop = loop
        self._on_over = on_over
        self.id: str = order["id"]
        self.order = order
        self.buffer = buffer
        self.follower: Follower | None = None
        self.watchers: list[Callable[[], None]] = []  # Called after output, and at the end.
        self.keeper: Keeper | None = None
        self.stdin: Input | None = None
        self.terminal = -1
        self.outputs: list[Output] = []
        self.started = self.last_output = time.monotonic()
        self.why = ""
        self.answer: dict[str, Any] | None = None
        self._record: Record | None = None
        self._timers: list[Timer] = []

    @property
    def running(self) -> bool:
        return self.answer is None

    @property
    def in_background(self) -> bool:
        return bool(self.order.get("background"))

    @property
    def title(self) -> str:
        command = self.order["command"]
        return (command if isinstance(command, str) else " ".join(command))[:500]

    def spool(self, stream: int) -> Spool:
        if stream not in (0, 1):
            raise OSError(errno.EINVAL, "no such stream")
        return self.outputs[stream].spool if stream < len(self.outputs) else Spool(0)

    def memory_bytes(self) -> int:
        return sum(output.spool.memory_bytes for output in self.outputs)

    def file_bytes(self) -> int:
        return sum(output.spool.file_bytes for output in self.outputs)

    def arm(self) -> None:
        """Start the clocks, and give it the input that came along."""
        given = self.order.pop("input", None)
        if given is not None and self.stdin is not None:
            if given:
                self.stdin.feed(given)
            if self.order["input_ends"]:
                self.stdin.feed(b"")
        timeout_s, idle_s = self.order.get("timeout_s"), self.order.get("idle_timeout_s")
        if timeout_s:
            self._timers.append(self.loop.after(timeout_s, lambda: self.end("timed_out")))
        if idle_s:
            self._timers.append(self.loop.after(idle_s, self._check_idle))

    def _check_idle(self) -> None:
        idle_s = self.order["idle_timeout_s"]
        left_s = self.last_output + idle_s - time.monotonic()
        if any(output.held_back for output in self.outputs):
            left_s = idle_s  # It is not idle: nobody takes what it says.
        if left_s <= 0:
            self.end("idle_timeout")
        elif self.running:
            self._timers.append(self.loop.after(left_s, self._check_idle))

    def end(self, why: str) -> None:
        """Have everything of it killed; the answer comes when that is done."""
        if self.keeper is None or self.why or self._record is not None:
            return
        self.why = why
        self.keeper.tell(END)
        self._timers.append(self.loop.after(_SECOND_TRY_S, self._force))

    def _force(self) -> None:
        if self.keeper is not None and self.running:
            self.keeper.force()
            self._timers.append(self.loop.after(0.01, self._force))

    def signal(self, number: int) -> None:
        if self.keeper is not None and not self.why:
            self.keeper.tell(SIGNAL + bytes([number]))

    def resize(self, rows: int, columns: int) -> None:
        if self.terminal >= 0 and self.outputs[0].open:
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def over(self, record: Record) -> None:
        """Its keeper has reported. The answer follows the last of the output."""
        self.keeper = None
        self._record = record
        self.settle()

    def settle(self) -> None:
        """Answer, as soon as all output is on its way."""
        if self._record is None or self.answer is not None:
            return
        finished = [output.finish() for output in self.outputs]
        if not all(finished) or self.answer is not None:
            return  # Called again when the follower has room; or was, when it left meanwhile.
        for timer in self._timers:
            timer.cancel()
        self._timers = []
        if self.stdin is not None:
            self.stdin.close()
        self.terminal = -1
        self.answer = self._describe(self._record)
        # A job is remembered for long, what it was given (megabytes, perhaps) need not be.
        self.order = {"command": self.title, "background": self.in_background}
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.answer(self.answer)
        for watcher in list(self.watchers):
            watcher()
        self._on_over(self)

    def fail(self, kind: str, number: int) -> None:
        """It could not even be handed to a keeper."""
        self.over(Record(kind, number))

    def counts(self) -> list[int]:
        totals = [output.spool.total for output in self.outputs]
        return totals + [0] * (2 - len(totals))

    def _describe(self, record: Record) -> dict[str, Any]:
        kind = self.why if self.why and not record.kind.startswith("no_") else record.kind
        stored = [output.spool.stored for output in self.outputs]
        return {
            "id": self.id,
            "kind": kind,
            "number": record.number,
            "error": os.strerror(record.number) if kind.startswith("no_") else "",
            "duration_ms": round((time.monotonic() - self.started) * 1000),
            "bytes": self.counts(),
            "stored": stored + [0] * (2 - len(stored)),
            "cwd": record.cwd.decode("utf-8", "surrogateescape"),
            "cpu_ms": record.cpu_ms,
            "max_rss_kib": record.max_rss_kib,
            "ended": record.ended,
            "survivors": record.survivors,
        }

    def forget(self) -> None:
        for output in self.outputs:
            output.spool.close()

    def has_room(self) -> None:
        """The follower takes more: go on reading, or answer at last."""
        if self._record is not None:
            self.settle()
            return
        for output in self.outputs:
            output.resume()


def signal_number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < signal.NSIG:
        raise OSError(errno.EINVAL, "no such signal")
    return value
