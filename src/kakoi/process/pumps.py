"""Moves bytes into and out of a child's pipes in the event loop. Nothing here ever blocks."""

import contextlib
import fcntl
import os
import struct
import termios
from typing import TYPE_CHECKING

from kakoi.results import Capture

if TYPE_CHECKING:
    import asyncio

_CHUNK_BYTES = 256 * 1024


class Drain:
    """Reads one pipe into a capture until the pipe ends or `finish` is called. Owns `fd`."""

    def __init__(self, loop: "asyncio.AbstractEventLoop", fd: int, capture: Capture) -> None:
        self._loop = loop
        self._fd: int | None = fd
        self._capture = capture
        self._buffer = memoryview(bytearray(_CHUNK_BYTES))
        # Large output takes a fifth longer through a pipe of the default size. The kernel may
        # refuse.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _CHUNK_BYTES)
        os.set_blocking(fd, False)
        loop.add_reader(fd, self._read, _CHUNK_BYTES)

    def finish(self) -> None:
        """Read what the pipe contains now, even if another process has it open, and close it."""
        if self._fd is not None:
            waiting = fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4))
            left = struct.unpack("i", waiting)[0]
            while left > 0 and (taken := self._read(left)):
                left -= taken
        self.close()

    def close(self) -> None:
        """Close the pipe. Unread bytes are lost."""
        if self._fd is not None:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = None

    def _read(self, at_most: int) -> int:
        """Move one chunk; 0 if there is none."""
        if self._fd is None:
            return 0
        try:
            size = os.readv(self._fd, [self._buffer[:at_most]])
        except BlockingIOError:
            return 0
        self._capture.feed(self._buffer[:size])
        if size == 0:
            self.close()
        return size


class Feed:
    """Writes `data` to a pipe or socket as fast as it is read, then closes it. Owns `fd`.

    It is not an error if the reader closes its end early.
    """

    def __init__(self, loop: "asyncio.AbstractEventLoop", fd: int, data: bytes) -> None:
        self._loop = loop
        self._fd: int | None = fd
        self._unsent = memoryview(data)
        os.set_blocking(fd, False)
        loop.add_writer(fd, self._write)
        self._write()

    def close(self) -> None:
        """Close the pipe. The rest of the data is never sent."""
        if self._fd is not None:
            self._loop.remove_writer(self._fd)
            os.close(self._fd)
            self._fd = None

    def _write(self) -> None:
        if self._fd is None:
            return
        try:
            self._unsent = self._unsent[os.write(self._fd, self._unsent) :]
        except BlockingIOError:
            return
        except OSError:
            self.close()
        if not self._unsent:
            self.close()
