"""The files of a log: opened safely, locked, rotated by number, read within limits.

Records are appended to `audit.jsonl`; `audit.jsonl.1`, `.2`, … are older, the highest number is the
oldest. Only the process that holds the lock of `audit.jsonl`, while it has that name, can append
and rename.
"""

import contextlib
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Final, Literal

from kakoi._support.late import dataclass
from kakoi.audit.records import LONGEST_LINE, AuditRecord, decode
from kakoi.errors import AuditError

LOCK_TIMEOUT_S: Final = 10.0
_FIRST_PAUSE_S: Final = 0.0001
_LONGEST_PAUSE_S: Final = 0.005
# Longer than any rotation leaves readers without a file to lock, even on a busy machine.
_ROTATION_S: Final = 0.25

_WRITING: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT
# Without O_NONBLOCK, opening a named pipe would block until the other end is opened.
_SAFELY: Final = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

_HINTS: Final = {
    "written": "free some disk space and make it writable for this user",
    "read": "make it readable for this user",
}

# Usually the last record is in the first window. Nothing is read beyond the last window.
_WINDOWS: Final = (4096, 4 * LONGEST_LINE)


# --- Opening and locking ---------------------------------------------------------------------


@contextlib.contextmanager
def open_for_append(path: Path, *, lock_timeout_s: float) -> Iterator[int]:
    """Open the file, create it if necessary, and hold its lock until the block ends."""
    fd = _open_locked(path, _WRITING, fcntl.LOCK_EX, lock_timeout_s)
    try:
        yield fd
    finally:
        unlock_and_close(fd)


def open_if_free(path: Path) -> tuple[int, int] | None:
    """Open an existing file for appending, without waiting; return its descriptor and its size.

    None if another writer has the lock, or if anything else is in the way. The caller releases
    the lock with `unlock_and_close`.
    """
    try:
        fd = os.open(path, os.O_RDWR | os.O_APPEND | _SAFELY)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(fd)
        _check(found, path, for_writing=True)
        if os.path.samestat(found, os.lstat(path)):
            return fd, found.st_size
    except (OSError, AuditError):
        pass
    unlock_and_close(fd)
    return None


def _open_locked(path: Path, flags: int, how: int, timeout_s: float) -> int:
    deadline = time.monotonic() + timeout_s
    while True:
        fd = _open(path, flags)
        try:
            _lock(fd, path, how, deadline)
            # It may have been renamed while we waited.
            if _is_still(fd, path):
                return fd
        except BaseException:
            unlock_and_close(fd)
            raise
        unlock_and_close(fd)


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
            raise unsafe(path, "is a symbolic link", "use the path of the file itself") from error
        raise
    try:
        _check(os.fstat(fd), path, for_writing=flags == _WRITING)
    except AuditError:
        os.close(fd)
        raise
    return fd


def _check(found: os.stat_result, path: Path, *, for_writing: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise unsafe(path, "is not a regular file", "use another file")
    if not for_writing:
        return
    if found.st_uid != os.geteuid():
        raise unsafe(path, f"belongs to user {found.st_uid}", "use a file of your own")
    if found.st_mode & 0o022:
        raise unsafe(path, "can be written by other users", f"chmod 600 {path}")


def unsafe(path: Path, fact: str, hint: str) -> AuditError:
    """Return the error for a log that cannot be used safely."""
    return AuditError(f"the audit log {path} {fact}", details={"path": str(path)}, hint=hint)


@contextlib.contextmanager
def wrap_os_errors(path: Path, doing: Literal["written", "read"]) -> Iterator[None]:
    """Turn an OSError into an AuditError that names the file."""
    try:
        yield
    except OSError as error:
        code = errno.errorcode.get(error.errno or 0, "")
        raise AuditError(
            f"the audit log {path} cannot be {doing}: {error.strerror or error}",
            details={"path": str(path), "errno": code},
            hint=f"{_HINTS[doing]}, or use another file",
        ) from error


def _lock(fd: int, path: Path, how: int, deadline: float) -> None:
    """Poll for the lock: a blocking `flock` has no timeout, so a stopped writer would block us."""
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


def unlock_and_close(fd: int) -> None:
    """Release the lock of a file and close it."""
    # A child forked meanwhile also has the descriptor, and with it the lock.
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


def rotated_numbers(path: Path) -> list[int]:
    """Return the numbers of the rotated files, newest (lowest) first."""
    beginning = f"{path.name}."
    try:
        names = os.listdir(path.parent)
    except FileNotFoundError:
        return []
    ends = (name[len(beginning) :] for name in names if name.startswith(beginning))
    return sorted(int(end) for end in ends if _is_number(end))


def _is_number(text: str) -> bool:
    return len(text) < 7 and text.isascii() and text.isdigit() and not text.startswith("0")


def rotated_path(path: Path, number: int) -> Path:
    """Return the file with that number; 0 is the current file."""
    return path.with_name(f"{path.name}.{number}") if number else path


# --- Reading ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogFile:
    """An open file of the log. Anything written after `size` is ignored."""

    path: Path
    stream: BinaryIO
    size: int

    def lines(self, start: int = 0) -> Iterator[tuple[int, bytes]]:
        """Yield each line with its newline and its number, counted from the byte `start`.

        Of a line that is too long to be a record, only the first part (longer than any record)
        is yielded.
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
        """Return the first valid record."""
        return next((found for _, line in self.lines() if (found := decode(line))), None)


@contextlib.contextmanager
def open_log_file(path: Path, number: int = 0) -> Iterator[LogFile]:
    """Open one file of the log for reading."""
    name = rotated_path(path, number)
    with open(_open(name, os.O_RDONLY), "rb") as stream:
        yield LogFile(name, stream, os.fstat(stream.fileno()).st_size)


@contextlib.contextmanager
def snapshot(path: Path) -> Iterator[list[LogFile]]:
    """Open all files of the log, oldest first, as they were at one moment between two writes."""
    deadline = time.monotonic() + _ROTATION_S
    with wrap_os_errors(path, "read"), ExitStack() as stack:
        while True:
            files, is_locked = _open_all(path, stack)
            # During a rotation there is no file to lock, and numbers can change. If no file
            # appears, nobody is rotating: a killed writer left the log that way.
            if is_locked or not files or time.monotonic() > deadline:
                break
            stack.close()
            time.sleep(_LONGEST_PAUSE_S)
        yield files


def _open_all(path: Path, stack: ExitStack) -> tuple[list[LogFile], bool]:
    """Open all files on the stack; also return whether the log was locked meanwhile."""
    files = []
    with ExitStack() as moment:
        is_locked = False
        with contextlib.suppress(FileNotFoundError):
            fd = _open_locked(path, os.O_RDONLY, fcntl.LOCK_SH, LOCK_TIMEOUT_S)
            moment.callback(unlock_and_close, fd)
            is_locked = True
        for number in [*reversed(rotated_numbers(path)), 0]:
            with contextlib.suppress(FileNotFoundError):
                files.append(stack.enter_context(open_log_file(path, number)))
    return files, is_locked


@dataclass(frozen=True, slots=True)
class LogEnd:
    """The last record of a file, and the bytes after it that are not a record (often none).

    `terminated`: the file ends with a newline.
    """

    record: AuditRecord | None
    rest: bytes
    terminated: bool


def read_end(fd: int, size: int, path: Path) -> LogEnd:
    """Return how the file ends. Raises AuditError rather than search a hostile file forever."""
    for window in _WINDOWS:
        start = max(0, size - window)
        data = os.pread(fd, size - start, start)
        end = _end_of(data, whole=start == 0)
        if end.record or start == 0:
            return end
    hint = "`kakoi audit verify` shows where it is damaged; move it away to start a new one"
    raise unsafe(path, "ends with too much data that is not a record", hint)


def _end_of(data: bytes, *, whole: bool) -> LogEnd:
    """Find the end in the last bytes of a file. Unless `whole`, the first line is incomplete."""
    terminated = data.endswith(b"\n") or not data
    stop = len(data)
    while stop > 0:
        start = data.rfind(b"\n", 0, stop - 1) + 1
        if start == 0 and not whole:
            break
        record = decode(data[start:stop])
        if record:
            return LogEnd(record, data[stop:], terminated)
        stop = start
    return LogEnd(None, data, terminated)
