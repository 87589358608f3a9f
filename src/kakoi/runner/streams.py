"""The streams of a command, with flow control in both directions.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import termios
import time

from kakoi.runner import frames
from kakoi.runner.contexts import suppress
from kakoi.runner.loop import READ, WRITE
from kakoi.runner.spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, Protocol

    from kakoi.runner.loop import Loop

    class OutputReceiver(Protocol):
        """Receives the output and the answer of a job."""

        def room(self) -> int: ...
        def send(self, kind: int, body: bytes) -> None: ...
        def answer(self, answer: dict[str, Any]) -> None: ...

    class Owner(Protocol):
        """The job that owns the streams."""

        loop: Loop
        read_buffer: ReadBuffer
        follower: OutputReceiver | None
        watchers: list[Callable[[], None]]
        terminal: int
        last_output: float


_CHUNK = frames.MAX_DATA
_SMALL_PIPE = 64 * 1024
_PARTS_AT_ONCE = 64
_EVERYTHING = 1 << 62
_END_OF_INPUT = b"\x04"  # A terminal has no end of file; Ctrl-D stands for it.
STDIN_LIMIT = frames.WINDOW


class ReadBuffer:
    """One read buffer for the output of all jobs, and a way to drop output without copying it."""

    def __init__(self) -> None:
        self.buffer = memoryview(bytearray(_CHUNK))
        self._null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        self._splice = getattr(os, "splice", None)  # Since Python 3.10.

    def drop(self, fd: int) -> int:
        """Drop available bytes from a pipe or a terminal; 0 means the end."""
        if self._splice is not None:
            try:
                return int(self._splice(fd, self._null, _CHUNK, flags=os.SPLICE_F_NONBLOCK))
            except BlockingIOError:
                raise
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS, errno.EPERM):
                    raise
        return os.readv(fd, [self.buffer])


class CommandOutput:
    """One output stream: read as fast as its follower takes it, stored up to its limit."""

    def __init__(
        self, job: Owner, fd: int, kind: int, *, send_limit: int, spill_limit: int
    ) -> None:
        self._job = job
        self._fd = fd
        self._kind = kind
        self._unsent = send_limit  # How many more bytes the follower wants.
        self._paused = False
        self._grown = False
        self.spool = Spool(spill_limit)
        os.set_blocking(fd, False)

    def watch(self) -> None:
        """Read from now on whatever the command writes."""
        self._job.loop.watch(self._fd, READ, self._on_ready)

    @property
    def open(self) -> bool:
        return self._fd >= 0

    @property
    def held_back(self) -> bool:
        return self._paused and self.open

    def _may_read(self) -> int:
        """Return how many bytes can be read from the command now."""
        follower = self._job.follower
        if follower is None or self._unsent <= 0:
            return _CHUNK
        return min(_CHUNK, follower.room())

    def resume(self) -> None:
        if self._paused and self.open and self._may_read():
            self._paused = False
            self.watch()

    def _on_ready(self, _events: int) -> None:
        size = self._may_read()
        if size == 0:
            self._paused = True
            self._job.loop.watch(self._fd, 0, self._on_paused)
        elif self.spool.full and (self._job.follower is None or self._unsent <= 0):
            self._discard()
        else:
            self.take(size)

    def _discard(self) -> None:
        """Only count output that nobody wants: large output arrives in thousands of parts."""
        self._job.last_output = time.monotonic()
        try:
            for _ in range(_PARTS_AT_ONCE):
                dropped = self._job.read_buffer.drop(self._fd)
                self.spool.total += dropped
                if dropped == 0:
                    return self.close()
        except BlockingIOError:
            pass
        except OSError:  # A terminal returns EIO after its last user has closed it.
            self.close()
        return None

    def _on_paused(self, _events: int) -> None:
        """The pipe has lost its writers while paused: its contents stay."""
        self._job.loop.forget(self._fd)

    def take(self, size: int) -> int:
        """Move one chunk; 0 if there is none."""
        buffer = self._job.read_buffer.buffer
        try:
            taken = os.readv(self._fd, [buffer[:size]])
        except BlockingIOError:
            return 0
        except OSError:  # A terminal returns EIO after its last user has closed it.
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
        """Enlarge the pipe: large output takes a fifth longer through one of the default size."""
        self._grown = True
        with suppress(OSError):
            fcntl.fcntl(self._fd, 1031, _CHUNK)  # F_SETPIPE_SZ

    def finish(self) -> bool:
        """The command has ended: read the rest, and leave closing to the caller.

        False if the follower has no room for it.
        """
        # A terminal is read to its end: the size of its contents cannot be queried.
        left = _EVERYTHING if self._job.terminal >= 0 else _bytes_in(self._fd) if self.open else 0
        while self.open and left > 0:
            size = min(self._may_read(), left)
            if size == 0:
                return False
            taken = self.take(size)
            if taken == 0:
                break
            left -= taken
        return True

    def close(self) -> None:
        if self.open:
            self._job.loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1


def _bytes_in(pipe: int) -> int:
    return int(struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0])


class CommandInput:
    """The command's stdin: written as the command reads it, and acknowledged as it is written."""

    def __init__(self, job: Owner, fd: int, *, terminal: bool = False) -> None:
        self._job = job
        self._fd = fd
        self._terminal = terminal
        self._waiting = bytearray()
        self._owed = 0  # Bytes for which the client has not received credit yet.
        self._in_line = False
        self._ending = False
        os.set_blocking(fd, False)

    def feed(self, data: bytes) -> bool:
        """Take more input; empty data ends it. False if it exceeds the credit."""
        if self._fd < 0:
            self._owed += len(data)
            self._acknowledge(len(data))
            return True
        self._owed += len(data)
        if self._terminal:
            # In the middle of a line, the first Ctrl-D only ends the line.
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
        except OSError:  # The command has closed its stdin, which is not an error.
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
