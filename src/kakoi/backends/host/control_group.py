"""The control group of commands on the unconfined host: it limits nothing, and holds everything.

Commands on the host can kill every keeper above them. They stay in their group when they do, so
everything in it can still be ended. Only a command that can write to control groups itself, as
root can, is able to leave it on purpose.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.backends.control_groups import (
    Freezer,
    check_entrance,
    make_and_hold,
    mounts,
    read,
    rmdir,
    sweep,
)

NOT_HELD: Final = (
    "what it started may still be running: kakoi cannot make a control group here to hold "
    "the processes of the unconfined host"
)
_NAME: Final = pattern(r"kakoi-host-(\d+)-[0-9a-f]+")
# Version 2 kills a whole group at once. In version 1, the freezer keeps processes from escaping.
_HIERARCHIES: Final = ("", "freezer", "pids", "memory", "cpu", "devices")
_PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class HostGroup:
    """The directory of a control group, and a descriptor whose lock says that it is in use."""

    folder: Path
    lock: int

    @property
    def entry(self) -> str:
        """The file to which a process writes 0 to enter."""
        return str(self.folder / "cgroup.procs")

    @property
    def freezer(self) -> Freezer | None:
        """What stops everything in it, if the kernel has that."""
        return Freezer.of(self.folder)

    async def end(self) -> None:
        """End everything in it. It can be entered again afterwards."""
        await asyncio.to_thread(_end_all, self.folder)

    def remove(self) -> None:
        """End everything in it, and remove it."""
        _remove(self.folder)
        os.close(self.lock)


def make_host_group(hierarchies: Sequence[str] = _HIERARCHIES) -> HostGroup | None:
    """Make a group that a process of ours can enter; None if that is impossible here.

    `hierarchies`: of version 1 by the name of a controller, of version 2 "".
    """
    name = f"kakoi-host-{os.getpid()}-{secrets.token_hex(4)}"
    for parent in _parents(hierarchies):
        with contextlib.suppress(OSError):
            sweep(parent, _is_abandoned, _remove)
            folder = parent / name
            lock = make_and_hold(folder)
            try:
                check_entrance(folder)
            except OSError:
                HostGroup(folder, lock).remove()
                raise
            return HostGroup(folder, lock)
    return None


def _is_abandoned(name: str) -> bool:
    """Whether the process that made it is gone. Its lock alone does not prove that: a stranger
    could have kept the maker from taking it, and everything in the group would be killed."""
    found = _NAME.fullmatch(name)
    return found is not None and not Path("/proc", found[1]).exists()


def _parents(hierarchies: Sequence[str]) -> Iterator[Path]:
    """Possible parents of our groups: our own group in each hierarchy."""
    root = Path("/")
    mounted = dict(mounts(root))
    own = {
        name: path
        for line in read(root / "proc/self/cgroup").splitlines()
        for _number, names, path in [line.split(":", 2)]
        for name in names.split(",")
    }
    for name in hierarchies:
        if name in own and name in mounted:
            yield mounted[name] / own[name].lstrip("/")


def _remove(folder: Path) -> None:
    _end_all(folder)
    for inside in reversed(_tree(folder)):
        rmdir(inside)


def _end_all(folder: Path) -> None:
    """Kill until no process is left in it, or in groups that commands made inside."""
    give_up = time.monotonic() + _PATIENCE_S
    while _members(folder) and time.monotonic() < give_up:
        if not _written(folder / "cgroup.kill", "1"):
            _written(folder / "freezer.state", "FROZEN")
            for pid in _members(folder):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            _written(folder / "freezer.state", "THAWED")
        time.sleep(0.005)


def _members(folder: Path) -> list[int]:
    return [int(word) for each in _tree(folder) for word in read(each / "cgroup.procs").split()]


def _tree(folder: Path) -> list[Path]:
    """Return this group and those inside it, parents first.

    Not with `rglob`, which fails if a group is removed in the meantime; `os.walk` passes it over.
    """
    return [Path(path) for path, _groups, _files in os.walk(folder)]


def _written(file: Path, text: str) -> bool:
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        os.write(descriptor, text.encode("ascii"))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
