"""Control groups as directories: where they are, who holds one, and how it goes.

A group's maker holds a lock on its directory as long as it lives. So the next kakoi takes away what
a killed one has left and nothing else, also where the two are in different PID namespaces.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_TRIES: Final = 5


def mounts(root: Path) -> Iterator[tuple[str, Path]]:
    """Where each controller of version 1 is mounted, and as "" the one tree of version 2."""
    for line in read(root / "proc/self/mounts").splitlines():
        _source, place, kind, options, *_ = line.split(" ")
        at = root / place.lstrip("/")
        if kind == "cgroup2":
            yield "", at
        elif kind == "cgroup":
            for name in options.split(","):
                yield name, at


def make_and_hold(folder: Path) -> int:
    """Make a group; returns a descriptor with a lock that says it is in use.

    Between the two steps another kakoi may take it for one that was left behind: then once more.
    """
    for _ in range(_TRIES):
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            _lock(descriptor)
            if folder.exists():
                return descriptor
            os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "removed as soon as it was made", str(folder))


def _lock(descriptor: int) -> None:
    """Whoever is about to remove it is done in a moment. A stranger who holds it longer can only
    keep it from being removed, which must not cost us the limits: then without a lock."""
    for _ in range(_TRIES):
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        time.sleep(0.01)


def sweep(parent: Path, is_ours: Callable[[str], object], remove: Callable[[Path], object]) -> None:
    """Remove the groups of those who were killed: nobody holds a lock on them any more."""
    for folder in parent.iterdir():
        if not is_ours(folder.name):
            continue
        with contextlib.suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                remove(folder)
            finally:
                os.close(descriptor)


def check_entrance(folder: Path) -> None:
    """May we move a process of ours in there? In version 2, from beside it, so above it, too."""
    files = [folder / "cgroup.procs"]
    if (folder.parent / "cgroup.controllers").exists():
        files.append(folder.parent / "cgroup.procs")
    for file in files:
        if file.exists() and not os.access(file, os.W_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, "no process may be moved there", str(file))


def read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    return ""


def rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
