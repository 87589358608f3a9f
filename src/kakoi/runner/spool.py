"""Stored output of a command: limited, readable by offset during and after the command.

The first bytes stay in memory. The rest goes to an unnamed file, which nobody else can open and
which disappears with the runner. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import os

MEMORY_BYTES = 64 * 1024


class Spool:
    """Stores the first `limit` bytes of a stream and counts all of it."""

    __slots__ = ("_file", "_memory", "limit", "stored", "total")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.stored = 0
        self.total = 0
        self._memory = bytearray()
        self._file = -1

    def append(self, data: bytes | memoryview) -> None:
        self.total += len(data)
        room = self.limit - self.stored
        if room <= 0:
            return
        data = data[:room]
        if self._file < 0 and self.stored + len(data) <= MEMORY_BYTES:
            self._memory += data
            self.stored += len(data)
            return
        try:
            self._to_file(data)
        except OSError:  # The disk is full, or read-only: what is stored so far stays readable.
            self.limit = self.stored

    def _to_file(self, data: bytes | memoryview) -> None:
        if self._file < 0:
            file = nameless_file()
            try:
                if os.pwrite(file, self._memory, 0) < len(self._memory):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.close(file)
                raise
            self._file, self._memory = file, bytearray()
        view = memoryview(data)
        while view:
            written = os.pwrite(self._file, view, self.stored)
            self.stored += written
            view = view[written:]

    def read(self, offset: int, size: int) -> bytes:
        size = max(0, min(size, self.stored - offset))
        if self._file < 0:
            return bytes(self._memory[offset : offset + size])
        return os.pread(self._file, size, offset)

    @property
    def full(self) -> bool:
        return self.stored >= self.limit

    @property
    def memory_bytes(self) -> int:
        return len(self._memory)

    @property
    def file_bytes(self) -> int:
        return self.stored if self._file >= 0 else 0

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._memory = bytearray()
        self.stored = 0
        self.limit = 0


def nameless_file() -> int:
    """Open a new file without a name."""
    folder = temporary_folder()
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (AttributeError, OSError):  # A file system without such files.
        path = f"{folder}/.kakoi-{os.urandom(8).hex()}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        return fd


def temporary_folder() -> str:
    """Return the temporary folder. `tempfile` would take longer to import than the runner."""
    return os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - as everybody in there knows it
