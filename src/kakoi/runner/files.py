"""Single files over the channel: read, write, describe, move; and new directories.

Runs inside the sandbox with the rights of the commands: it cannot do anything that they cannot.
Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import os
import stat

from kakoi.runner import frames
from kakoi.runner.contexts import suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Protocol

    class Requester(Protocol):
        """Receives data and answers."""

        def room(self) -> int: ...
        def send(self, kind: int, body: bytes) -> None: ...
        def answer(self, answer: dict[str, Any]) -> None: ...


_KINDS = ((stat.S_ISREG, "file"), (stat.S_ISDIR, "directory"), (stat.S_ISLNK, "link"))
_ACCOUNTS_BYTES = 1024 * 1024
_LONGEST_ACCOUNT = 64


class FileReader:
    """Sends a part of a file as fast as the client reads it."""

    def __init__(self, request: Requester, path: str, offset: int, limit: int) -> None:
        self._request = request
        # Non-blocking: a pipe instead of a file must not block the runner.
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


class FileWriter:
    """Receives a file under a temporary name and renames it when it is complete."""

    def __init__(self, request: Requester, path: str, mode: int, limit: int) -> None:
        self._request = request
        # Follow a link to its target, as an editor would.
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
        """Give up and remove the temporary file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with suppress(OSError):
                os.unlink(self._draft)


def _check_replaceable(path: str) -> None:
    """Refuse to replace a device or a pipe: other programs need it."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        code = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
        raise OSError(code, "not a regular file")


class AccountNames:
    """The names of users and groups by their numbers, as /etc has them.

    Not by `pwd`: the commands of a sandbox can put a pipe in the place of these files, and the
    library would wait for it forever.
    """

    def __init__(self) -> None:
        self._users: dict[int, str] | None = None
        self._groups: dict[int, str] | None = None

    def user(self, number: int) -> str:
        if self._users is None:
            self._users = _names_in("/etc/passwd")
        return self._users.get(number) or str(number)

    def group(self, number: int) -> str:
        if self._groups is None:
            self._groups = _names_in("/etc/group")
        return self._groups.get(number) or str(number)


def _names_in(path: str) -> dict[int, str]:
    names: dict[int, str] = {}
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        try:
            is_file = stat.S_ISREG(os.fstat(fd).st_mode)
            text = os.read(fd, _ACCOUNTS_BYTES) if is_file else b""
        finally:
            os.close(fd)
    except OSError:
        return names
    for line in text.split(b"\n"):
        fields = line.split(b":")
        if len(fields) > 2 and fields[2].isdigit() and len(fields[2]) < 12:
            names.setdefault(int(fields[2]), os.fsdecode(fields[0])[:_LONGEST_ACCOUNT])
    return names


def describe(
    name: str, found: os.stat_result, folder: int | None, accounts: AccountNames
) -> dict[str, Any]:
    """Say what is called `name` in `folder`, an open directory, or None for the working one."""
    kind = next((word for test, word in _KINDS if test(found.st_mode)), "other")
    target = ""
    if kind == "link":
        with suppress(OSError):
            target = os.readlink(name, dir_fd=folder)
    return {
        "name": os.path.basename(name.rstrip("/")),
        "kind": kind,
        "size": found.st_size,
        "mode": stat.S_IMODE(found.st_mode),
        "modified_s": found.st_mtime,
        "owner": accounts.user(found.st_uid),
        "group": accounts.group(found.st_gid),
        "target": target,
    }


def stat_file(path: str) -> dict[str, Any]:
    return describe(path, os.lstat(path), None, AccountNames())


def make_dir(path: str, mode: int, *, parents: bool) -> bool:
    """Make a directory; False if there was one already."""
    if os.path.isdir(path):
        return False
    missing: list[str] = []
    above = os.path.dirname(path.rstrip("/"))
    while parents and above and not os.path.isdir(above):
        missing.append(above)
        above = os.path.dirname(above.rstrip("/"))
    for each in reversed(missing):
        with suppress(FileExistsError):  # If it is not a directory, the next one fails.
            os.mkdir(each)
    # Exactly this mode. Nobody else in this process can make a file meanwhile.
    mask = os.umask(0)
    try:
        os.mkdir(path, mode)
    except FileExistsError:
        if os.path.isdir(path):
            return False
        raise
    finally:
        os.umask(mask)
    return True


def failure(error: OSError) -> dict[str, Any]:
    """Return an answer that reports a system error."""
    code = error.errno or errno.EIO
    return {"errno": code, "error": error.strerror or os.strerror(code)}
