"""Control groups as directories: finding, creating, locking and removing them.

The process that creates a group holds a lock on its directory while it lives. So the next kakoi
removes the groups that a killed process left behind and no others, even across PID namespaces.
"""

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass
from kakoi.errors import SandboxError

_TRIES: Final = 5
_LOCKING_S: Final = 2.0
_FREEZING_S: Final = 10.0


def mounts(root: Path) -> Iterator[tuple[str, Path]]:
    """Yield where each version 1 controller is mounted; "" is the single tree of version 2."""
    for line in read(root / "proc/self/mounts").splitlines():
        _source, target, kind, options, *_ = line.split(" ")
        at = root / target.lstrip("/")
        if kind == "cgroup2":
            yield "", at
        elif kind == "cgroup":
            for name in options.split(","):
                yield name, at


@dataclass(frozen=True, slots=True)
class Freezer:
    """The file by which everything in a group, and in the groups inside it, is frozen and thawed.

    `report`: where the kernel says `is_frozen` once all of it is frozen.
    """

    file: Path
    frozen: str
    thawed: str
    report: Path
    is_frozen: str

    @classmethod
    def of(cls, folder: Path) -> "Freezer | None":
        """The freezer of a group, of version 2 or 1; None if it has none."""
        file, state = folder / "cgroup.freeze", folder / "freezer.state"
        if file.exists():
            return cls(file, "1", "0", folder / "cgroup.events", "frozen 1")
        return cls(state, "FROZEN", "THAWED", state, "FROZEN") if state.exists() else None

    def freeze(self) -> None:
        """Freeze it; raises SandboxError, and thaws it, if that does not succeed in time."""
        give_up = time.monotonic() + _FREEZING_S
        try:
            while True:
                # Version 1 may need the write again if a process was busy in the kernel.
                self.file.write_text(self.frozen, encoding="ascii")
                if self.is_frozen in read(self.report).splitlines():
                    return
                if time.monotonic() > give_up:
                    raise TimeoutError(
                        errno.ETIMEDOUT, "some processes keep running", str(self.file)
                    )
                time.sleep(0.002)
        except OSError as error:
            self.thaw()
            raise SandboxError(f"the sandbox could not be paused: {error}") from error

    def thaw(self) -> None:
        """Let everything in it continue. A group that is gone has nothing frozen."""
        with contextlib.suppress(OSError):
            self.file.write_text(self.thawed, encoding="ascii")


def make_and_hold(folder: Path) -> int:
    """Create a group; returns a descriptor whose lock marks the group as in use.

    Before we have the lock, another kakoi can mistake the group for an abandoned one and remove it.
    Then we try again.
    """
    for _ in range(_TRIES):
        folder.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            _lock(descriptor)
            if folder.exists():
                return descriptor
            os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "removed as soon as it was created", str(folder))


def _lock(descriptor: int) -> None:
    """Take the lock, or continue without it after some time.

    A process that is removing the group holds it for a moment, which is long on a busy machine: if
    we went on too early, it would remove a group in use. Anyone who holds it longer can only
    prevent the removal; that must not cost us the limits.
    """
    give_up = time.monotonic() + _LOCKING_S
    while time.monotonic() < give_up:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return
        time.sleep(0.005)


def sweep(parent: Path, is_ours: Callable[[str], object], remove: Callable[[Path], object]) -> None:
    """Remove the groups that killed processes left behind: those that nobody has locked."""
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
    """Raise PermissionError unless we can move our processes into the group.

    In version 2 that also requires write access to the parent's `cgroup.procs`.
    """
    files = [folder / "cgroup.procs"]
    if (folder.parent / "cgroup.controllers").exists():
        files.append(folder.parent / "cgroup.procs")
    for file in files:
        if file.exists() and not os.access(file, os.W_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, "processes cannot be moved there", str(file))


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
