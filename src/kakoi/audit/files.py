"""The files of a log: opened with care, locked, put away by number, read within bounds.

`audit.jsonl` is written to; `audit.jsonl.1`, `.2`, … are older, the highest number the oldest.
Whoever holds the lock of `audit.jsonl` while it has that name may append to it and may rename.
"""

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final, Literal

from kakoi.audit.records import LONGEST_LINE, AuditRecord, decode
from kakoi.errors import AuditError

LOCK_TIMEOUT_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.0001
_LONGEST_PAUSE_S: Final = 0.005
# Longer than any rotation keeps readers without a file to lock, on a busy machine too.
_ROTATION_S: Final = 0.25

_WRITING: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT
# Without O_NONBLOCK, opening a named pipe would wait for somebody at its other end.
_SAFELY: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_WAYS_OUT: Final = {
    "written": "make room for it and let this user write there",
    "read": "let this user read it",
}

# Most ends hold their last record in the first window. Beyond the last one nobody looks.
_WINDOWS: Final = (4096, 4 * LONGEST_LINE)


# --- Opening and locking ---------------------------------------------------------------------


@contextlib.contextmanager
def writing(path: Path, *, lock_timeout_s: float) -> Iterator[int]:
    """The file of this name, made if need be, for us alone until the block is left."""
    fd = _open_locked(path, _WRITING, fcntl.LOCK_EX, lock_timeout_s)
    try:
        yield fd
    finally:
        _unlock_and_close(fd)


def _open_locked(path: Path, flags: int, how: int, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while True:
        fd = _open(path, flags)
        try:
            _lock(fd, path, how, deadline)
            # Somebody may have renamed it while we waited.
            if _is_still(fd, path):
                return fd
        except BaseException:
            _unlock_and_close(fd)
            raise
        _unlock_and_close(fd)


def _open(path: Path, flags: int) -> int:
    try:
        try:
            fd = os.open(path, flags | _SAFELY, 0o600)
        except FileNotFoundError:
            if flags != _WRITING:
                raise
            os.makedirs(path.parent, mode=0o700, exist_ok=True)
            fd = os.open(path, flags | _SAFELY, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise unsafe(path, "is a symbolic link", "name the file itself") from error
        raise
    try:
        _check(os.fstat(fd), path, for_writing=flags == _WRITING)
    except AuditError:
        os.close(fd)
        raise
    return fd


def _check(found: os.stat_result, path: Path, *, for_writing: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise unsafe(path, "is no regular file", "name another file")
    if not for_writing:
        return
    if found.st_uid != os.geteuid():
        raise unsafe(path, f"belongs to user {found.st_uid}", "name a file of your own")
    if found.st_mode & 0o022:
        raise unsafe(path, "can be written by other users", f"chmod 600 {path}")


def unsafe(path: Path, fact: str, hint: str) -> AuditError:
    """The error for a log that must not be used as it is."""
    return AuditError(f"the audit log {path} {fact}", details={"path": str(path)}, hint=hint)


@contextlib.contextmanager
def naming_errors(path: Path, doing: Literal["written", "read"]) -> Iterator[None]:
    """What the system says against it, as an AuditError that names the file."""
    try:
        yield
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "")
        raise AuditError(
            f"the audit log {path} cannot be {doing}: {error.strerror or error}",
            details={"path": str(path), "errno": code},
            hint=f"{_WAYS_OUT[doing]}, or name another file",
        ) from error


def _lock(fd: int, path: Path, how: int, deadline: float) -> None:
    """Polled: a blocking `flock` has no time limit, and a stopped writer would stop us all."""
    pause = _FIRST_PAUSE_S
    while True:
        try:
            return fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                hint = f"`fuser -v {path}` names the processes that have it open"
                raise unsafe(path, "is locked by another process", hint) from None
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_S)


def _unlock_and_close(fd: int) -> None:
    # A child that was forked meanwhile has the descriptor too, and with it the lock.
    try:
        fcntl.flock(fd, fcntl.LOCK_UN)
    finally:
        os.close(fd)


def _is_still(fd: int, path: Path) -> bool:
    try:
        named = os.lstat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), named)


# --- Numbers ---------------------------------------------------------------------------------


def numbers(path: Path) -> list[int]:
    """The numbers of the files that were put away, newest (lowest) first."""
    beginning = f"{path.name}."
    try:
        names = os.listdir(path.parent)
    except FileNotFoundError:
        return []
    ends = (name[len(beginning) :] for name in names if name.startswith(beginning))
    return sorted(int(end) for end in ends if _is_number(end))


def _is_number(text: str) -> bool:
    return len(text) < 7 and text.isascii() and text.isdigit() and not text.startswith("0")


def numbered(path: Path, number: int) -> Path:
    """The file of that number; 0 is the one that is written to."""
    return path.with_name(f"{path.name}.{number}") if number else path


# --- Reading ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogFile:
    """A file of the log, open; what is written after `size` is not looked at."""

    path: Path
    stream: BinaryIO
    size: int

    def lines(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Each line with its number, counted from the byte `start`, newline included.

        Of a line that is too long to be a record, only a head (longer than any) is given.
        """
        self.stream.seek(start)
        left = self.size - start
        number = 0
        while left > 0 and (line := self.stream.readline(min(left, LONGEST_LINE + 1))):
            number += 1
            left -= len(line)
            yield number, line
            while len(line) > LONGEST_LINE and not line.endswith(b"\n") and left > 0:
                line = self.stream.readline(min(left, LONGEST_LINE + 1))
                left -= len(line)

    def first_record(self) -> AuditRecord | None:
        """The first line that is a record."""
        return next((found for _, line in self.lines() if (found := decode(line))), None)


@contextlib.contextmanager
def opened(path: Path, number: int = 0) -> Iterator[LogFile]:
    """One file of the log, for reading."""
    name = numbered(path, number)
    with open(_open(name, os.O_RDONLY), "rb") as stream:
        yield LogFile(name, stream, os.fstat(stream.fileno()).st_size)


@contextlib.contextmanager
def snapshot(path: Path) -> Iterator[list[LogFile]]:
    """All files of the log, oldest first, as they were at one moment between two writes."""
    deadline = time.monotonic() + _ROTATION_S
    with naming_errors(path, "read"), ExitStack() as stack:
        while True:
            files, is_locked = _open_all(path, stack)
            # In the middle of a rotation there is no file to lock, and numbers may change. If
            # none comes, nobody is rotating: a killed writer has left it so.
            if is_locked or not files or time.monotonic() > deadline:
                break
            stack.close()
            time.sleep(_LONGEST_PAUSE_S)
        yield files


def _open_all(path: Path, stack: ExitStack) -> tuple[list[LogFile], bool]:
    """All files, open on the stack; and was the log locked meanwhile?"""
    files = []
    with ExitStack() as moment:
        is_locked = False
        with contextlib.suppress(FileNotFoundError):
            fd = _open_locked(path, os.O_RDONLY, fcntl.LOCK_SH, LOCK_TIMEOUT_S)
            moment.callback(_unlock_and_close, fd)
            is_locked = True
        for number in [*reversed(numbers(path)), 0]:
            with contextlib.suppress(FileNotFoundError):
                files.append(stack.enter_context(opened(path, number)))
    return files, is_locked


@dataclass(frozen=True, slots=True)
class End:
    """The last record of a file, and what stands behind it: nothing, or what is no record.

    `terminated`: does the file end with a newline?
    """

    record: AuditRecord | None
    rest: bytes
    terminated: bool


def end_of(fd: int, size: int, path: Path) -> End:
    """How the file ends. A hostile one is not searched for ever: AuditError."""
    for window in _WINDOWS:
        start = max(0, size - window)
        data = os.pread(fd, size - start, start)
        end = _end_of(data, whole=start == 0)
        if end.record or start == 0:
            return end
    hint = "`kakoi audit verify` says where it is damaged; move it away to begin a new one"
    raise unsafe(path, "ends with too much that is no record", hint)


def _end_of(data: bytes, *, whole: bool) -> End:
    """Of the last bytes of a file; unless they are all of it, the first line is a part of one."""
    terminated = data.endswith(b"\n") or not data
    stop = len(data)
    while stop > 0:
        start = data.rfind(b"\n", 0, stop - 1) + 1
        if start == 0 and not whole:
            break
        record = decode(data[start:stop])
        if record:
            return End(record, data[stop:], terminated)
        stop = start
    return End(None, data, terminated)
