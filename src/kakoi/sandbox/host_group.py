"""The control group of what runs on the unconfined host: it limits nothing, and holds everything.

Commands on the host may kill every keeper above them. They do not leave their group by that, so
whatever is in it can be ended even then. Only a command that may write to control groups itself,
as root may, can leave it on purpose.
"""

import asyncio
import contextlib
import os
import re
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kakoi.sandbox.control_groups import check_entrance, make_and_hold, mounts, read, rmdir, sweep

NOT_HELD: Final = (
    "what it started may still be running: kakoi can make no control group here that would hold "
    "the processes of the unconfined host"
)
_NAME: Final = re.compile(r"kakoi-host-(\d+)-[0-9a-f]+")
# Version 2 ends a group at one stroke. Of version 1, the freezer lets nobody run away meanwhile.
_HIERARCHIES: Final = ("", "freezer", "pids", "memory", "cpu", "devices")
_PATIENCE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class HostGroup:
    """A directory of control groups, and a descriptor with a lock that says it is in use."""

    folder: Path
    lock: int

    @property
    def entry(self) -> str:
        """Where a process writes a 0 to enter."""
        return str(self.folder / "cgroup.procs")

    async def end(self) -> None:
        """End everything in it. It takes new ones afterwards."""
        await asyncio.to_thread(_end_all, self.folder)

    def remove(self) -> None:
        """End everything in it, and take it away."""
        _remove(self.folder)
        os.close(self.lock)


def make_host_group(hierarchies: Sequence[str] = _HIERARCHIES) -> HostGroup | None:
    """A group that a process of ours can enter; None if none can be made here.

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
    """Is it of a maker who is gone? Its lock alone does not say it: a stranger could have kept the
    maker from taking that, and what is in there would be killed."""
    found = _NAME.fullmatch(name)
    return found is not None and not Path("/proc", found[1]).exists()


def _parents(hierarchies: Sequence[str]) -> Iterator[Path]:
    """Where groups of ours could go: into the one that we are in ourselves, of each hierarchy."""
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
    for inside in sorted(folder.rglob("*/"), key=lambda each: -len(each.parts)):
        rmdir(inside)
    rmdir(folder)


def _end_all(folder: Path) -> None:
    """Kill until nobody is left in it, or in what commands have made inside."""
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
    files = (folder / "cgroup.procs", *folder.rglob("*/cgroup.procs"))
    return [int(word) for file in files for word in read(file).split()]


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
