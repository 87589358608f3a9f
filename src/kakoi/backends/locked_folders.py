"""Private directories in the system's temporary directory.

Each is locked while its process lives. So the next process can distinguish what a killed process
left behind from what is in use, and removes it.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path


class LockedFolder:
    """A new directory whose name starts with `prefix`; nobody else can list or change it."""

    def __init__(self, prefix: str) -> None:
        self.path, self._lock = _make_locked(prefix)

    def release(self) -> None:
        """Unlock the directory. It stays until the next `sweep`."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def sweep(
    prefix: str, remove: Callable[[str], None], *, is_kept: Callable[[str], bool] = lambda _: False
) -> None:
    """Remove unlocked directories that `is_kept` does not name. What cannot be removed stays."""
    for path in map(str, Path(tempfile.gettempdir()).glob(f"{prefix}*")):
        if not is_own_folder(path, prefix) or is_kept(path):
            continue
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not is_kept(path):  # Kept, and so unlocked, in the meantime.
                    remove(path)
            finally:
                os.close(lock)


def is_own_folder(path: str, prefix: str) -> bool:
    """Whether this user made it and nobody else can list or change it."""
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return (
        os.path.basename(path).startswith(prefix)
        and stat.S_ISDIR(found.st_mode)
        and found.st_uid == os.geteuid()
        and not found.st_mode & 0o066
    )


def _make_locked(prefix: str) -> tuple[str, int | None]:
    while True:
        path = tempfile.mkdtemp(prefix=prefix)
        # Until it is locked, a sweep of another process can take it for abandoned.
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(lock).st_ino:
                return path, lock
        os.close(lock)
