"""Files of the sandbox over the channel: read, write, list, stat.

Runs inside, with the rights of the commands: it can do nothing that they could not. Standard
library only, Python >= 3.8.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat

from kakoi.runner import frames

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Requester(Protocol):
        """Where data and answers go."""

        def room(self) -> int: ...
        def send(self, kind: int, body: bytes) -> None: ...
        def answer(self, answer: dict[str, Any]) -> None: ...


_KINDS = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))


class FileReading:
    """Sends a part of a file as fast as it is taken."""

    def __init__(self, request: Requester, path: str, offset: int, limit: int) -> None:
        self._request = request
        # Not blocking: a pipe in the place of a file must not stop the runner.
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        found = os.fstat(self._fd)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            code = errno.EISDIR if stat.S_ISDIR(found.st_mode) else errno.EINVAL
            raise OSError(code, "not a regular file")
        self._offset = offset
        self._left = limit

    def has_room(self) -> None:
        while self._fd >= 0:
            size = min(self._left, self._request.room(), frames.MAX_DATA)
            if size == 0 and self._left:
                return
            try:
                data = os.pread(self._fd, size, self._offset) if size else b""
            except OSError as error:
                self.close()
                self._request.answer(failure(error))
                return
            if not data:
                self.close()
                self._request.answer({"ended": self._left > 0})
                return
            self._offset += len(data)
            self._left -= len(data)
            self._request.send(frames.STDOUT, data)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class FileWriting:
    """Takes a file in under another name, and gives it its own when it is complete."""

    def __init__(self, request: Requester, path: str, mode: int, limit: int) -> None:
        self._request = request
        # Through a link to what it stands for, as any editor would.
        self._path = os.path.realpath(path)
        _check_replaceable(self._path)
        self._mode = mode
        self._left = limit
        self._draft = f"{os.path.dirname(self._path)}/.kakoi-{os.urandom(8).hex()}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = os.open(self._draft, flags, 0o600)

    def feed(self, data: bytes) -> None:
        if self._fd < 0:
            return
        try:
            if data:
                self._write(data)
                self._request.send(frames.CREDIT, frames.NUMBER.pack(len(data)))
            else:
                os.fchmod(self._fd, self._mode)
                os.rename(self._draft, self._path)
                os.close(self._fd)
                self._fd = -1
                self._request.answer({})
        except OSError as error:
            self.close()
            self._request.answer(failure(error))

    def _write(self, data: bytes) -> None:
        self._left -= len(data)
        if self._left < 0:
            raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
        view = memoryview(data)
        while view:
            view = view[os.write(self._fd, view) :]

    def has_room(self) -> None:
        pass

    def close(self) -> None:
        """Given up half-way: nothing of it stays."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with contextlib.suppress(OSError):
                os.unlink(self._draft)


def _check_replaceable(path: str) -> None:
    """A device or a pipe is not a file with new contents: the next one who opens it needs it."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, "not a regular file")


def stat_file(path: str) -> dict[str, Any]:
    return _describe(os.path.basename(path), os.lstat(path))


def list_files(path: str, limit: int) -> dict[str, Any]:
    found, size = [], 0
    with os.scandir(path) as entries:
        for entry in entries:
            try:
                found.append(_describe(entry.name, entry.stat(follow_symlinks=False)))
            except OSError:  # Gone in the meantime.
                continue
            size += 6 * len(entry.name) + 128  # As JSON, at worst.
            if len(found) > limit or size > frames.MAX_JSON // 2:
                raise OSError(errno.EOVERFLOW, f"more than {len(found) - 1} files")
    return {"files": found}


def _describe(name: str, found: os.stat_result) -> dict[str, Any]:
    kind = next((word for test, word in _KINDS if test(found.st_mode)), "other")
    return {
        "name": name,
        "kind": kind,
        "size": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "modified_s": found.st_mtime,
    }


def failure(error: OSError) -> dict[str, Any]:
    """An answer that says what the system said."""
    code = error.errno or errno.EIO
    return {"errno": code, "error": error.strerror or os.strerror(code)}
