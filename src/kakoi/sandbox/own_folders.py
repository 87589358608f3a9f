"""Directories of ours beside those of others, in the temporary one.

Each is locked for as long as we live, so that what somebody left who was killed can be told from
what is in use, and swept by the next.
"""

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path


class OwnFolder:
    """A new directory whose name begins with `prefix`; nobody else can list or change it."""

    def __init__(self, prefix: str) -> None:
        self.path, self._lock = _make_locked(prefix)

    def let_go(self) -> None:
        """From now on it is nobody's; it stays until somebody sweeps."""
        lock, self._lock = self._lock, None
        if lock is not None:
            os.close(lock)


def sweep(
    prefix: str, remove: Callable[[str], None], *, is_kept: Callable[[str], bool] = lambda _: False
) -> None:
    """Remove what nobody holds, and what is not kept. What cannot be removed stays."""
    for path in map(str, Path(tempfile.gettempdir()).glob(f"{prefix}*")):
        if not is_ours(path, prefix) or is_kept(path):
            continue
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not is_kept(path):  # Kept meanwhile, and so let go.
                    remove(path)
            finally:
                os.close(lock)


def is_ours(path: str, prefix: str) -> bool:
    """Was it made by this user, and can nobody else list or change it?"""
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
        # Somebody may be sweeping, and take it for a leftover until it is locked.
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.stat(path).st_ino == os.fstat(lock).st_ino:
                return path, lock
        os.close(lock)
