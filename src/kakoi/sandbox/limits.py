"""Limits that the kernel keeps for a sandbox of ours, and which of them it does keep.

For all of it together a control group, of version 1 or 2, as far as we may write to them: root
may, others where a part of the tree was given to them. A group is a directory. Its maker holds a
lock on it as long as it lives, so the next kakoi removes what a killed one has left and nothing
else, also where the two are in different PID namespaces. Where there is no group, limits of each
process (rlimits) stand in, as far as they go.
"""

import errno
import os
import re
import secrets
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from kakoi.runner.memory import OutOfMemory
from kakoi.sandbox.adapter import LEAST, Holding, Limits
from kakoi.sandbox.bubblewrap_launch import HOME
from kakoi.sandbox.control_groups import (
    check_entrance,
    make_and_hold,
    mounts,
    read,
    rmdir,
    sweep,
)
from kakoi.sandbox.job_groups import JobGroups, make_job_groups

_PERIOD_US: Final = 100_000
_NAME: Final = re.compile(r"kakoi-\d+-[0-9a-f]+")
_CONTROLLERS: Final = ("memory", "pids", "cpu")
_REMOVAL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Group:
    """A control group: one directory, or in version 1 one for each controller.

    `locks`: descriptors that keep other kakois from taking it for one that was left behind.
    `kept`: which limits it has. `oom_counter`: the file that counts kills for want of memory, and
    `memory` who watches it. `jobs`: groups inside, for its commands.
    """

    folders: tuple[Path, ...]
    locks: tuple[int, ...] = ()
    kept: frozenset[str] = field(default_factory=frozenset)
    oom_counter: str = ""
    memory: OutOfMemory | None = None
    jobs: JobGroups | None = None

    @property
    def entries(self) -> list[str]:
        """Where a process writes a 0 to enter."""
        inside = {self.jobs.outer: self.jobs.entrance} if self.jobs else {}
        return [str(inside.get(folder, folder) / "cgroup.procs") for folder in self.folders]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What the runner has to inherit."""
        handed = self.jobs.descriptors if self.jobs else ()
        return tuple(descriptor for each in handed for descriptor in each)

    def handed_over(self) -> dict[str, Any]:
        """What the runner is told: how it sees that memory ran out."""
        if self.jobs:
            return {"job_groups": self.jobs.descriptors}
        return {"oom_counter": self.oom_counter}

    async def ran_out(self) -> bool:
        """Has the kernel killed something beside the commands, for want of memory?"""
        return self.memory is not None and self.memory.ran_out()

    def remove(self) -> None:
        """Take it away; its processes may take a moment to be gone."""
        give_up = time.monotonic() + _REMOVAL_S
        if self.jobs:
            self.jobs.close()
        for folder in (*(self.jobs.folders if self.jobs else ()), *self.folders):
            while not rmdir(folder) and time.monotonic() < give_up:
                time.sleep(0.01)
        for lock in self.locks:
            os.close(lock)


def make_group(limits: Limits, *, root: Path = Path("/")) -> Group | None:
    """A group with these limits, as far as this machine lets us; None if it does not at all.

    `root`: where the file system of this machine begins; for tests.
    """
    name = f"kakoi-{os.getpid()}-{secrets.token_hex(4)}"
    made: dict[Path, int] = {}
    kept: set[str] = set()
    counter = ""
    for controller, parent in _parents(root).items():
        wanted = _settings(controller, limits, is_v2=(parent / "cgroup.controllers").exists())
        if not wanted:
            continue
        folder = parent / name
        try:
            sweep(parent, _NAME.fullmatch, _remove)
            if folder not in made:
                made[folder] = make_and_hold(folder)
            for file, value, is_needed in wanted:
                _write(folder / file, value, is_needed=is_needed)
            check_entrance(folder)
        except OSError:
            continue
        kept.add(_LIMIT[controller])
        if controller == "memory":
            counter = str(_counter(folder))
    watcher = OutOfMemory(counter) if counter else None
    jobs = None
    if counter and limits.memory_bytes is not None:
        scratch_bytes = sum(scratch_sizes(limits).values())
        jobs = make_job_groups(Path(counter).parent, limits.memory_bytes, scratch_bytes)
    group = Group(tuple(made), tuple(made.values()), frozenset(kept), counter, watcher, jobs)
    if not kept:
        group.remove()
        return None
    return group


_LIMIT: Final = {"memory": "memory_bytes", "pids": "processes", "cpu": "cpus"}
# How what may be written is shared out among the private directories.
_SHARES: Final = {"/tmp": 6, HOME: 6, "/var/tmp": 2, "/dev/shm": 1, "/run": 1}  # noqa: S108
_NO_GROUP: Final = "no control group can be made here"
_NO_DISK: Final = "all that it writes is on file systems of this machine"


def scratch_sizes(limits: Limits) -> dict[str, int]:
    """How large each private directory may get; empty without a limit.

    They are in memory: together they must leave some to the commands.
    """
    if limits.disk_bytes is None:
        return {}
    memory = limits.memory_bytes or limits.disk_bytes
    total = min(limits.disk_bytes, memory * 3 // 4)
    return {path: total * share // sum(_SHARES.values()) for path, share in _SHARES.items()}


def rlimits_for(limits: Limits, kept: Collection[str]) -> dict[str, int]:
    """What each process may use, where `kept` says what a group keeps already."""
    found = limits.rlimits
    if "memory_bytes" not in kept and limits.memory_bytes is not None:
        found["data_bytes"] = limits.memory_bytes
    return found


# What keeps a limit without a group, where there are no namespaces either.
BY_RLIMITS: Final[Mapping[str, str]] = {
    "memory_bytes": "rlimit: the private memory of each process, not of all together",
    "open_files": "rlimit: of each process",
    "file_bytes": "rlimit: of each file, the workspace included",
}
BY_BUBBLEWRAP: Final[Mapping[str, str]] = {
    **BY_RLIMITS,
    "processes": "rlimit: in the user namespace of the sandbox",
    "disk_bytes": f"sized tmpfs: {' '.join(_SHARES)}; not the workspace, which is a directory "
    "of this machine; how many files there are counts as memory only, in a control group",
}


def holding_of(
    limits: Limits, kept: Collection[str], by: Mapping[str, str], *, cpus: int
) -> Holding:
    """What holds in a sandbox. `kept`: by its group; `by`: by what else; `cpus`: the machine's."""
    group = dict.fromkeys(kept, "control group")
    alone = dict(by)
    if limits.cpus is not None and limits.cpus >= cpus:
        alone["cpus"] = "the machine has no more"
    wanted = [name for name in LEAST if getattr(limits, name) is not None]
    keepers = {**alone, **group}
    return Holding(
        {name: keepers[name] for name in wanted if name in keepers},
        {
            name: _NO_DISK if name == "disk_bytes" else _NO_GROUP
            for name in wanted
            if name not in keepers
        },
    )


def _settings(controller: str, limits: Limits, *, is_v2: bool) -> list[tuple[str, str, bool]]:
    """What to write into a group's files: name, value, and whether it is no limit without it."""
    if controller == "memory" and limits.memory_bytes is not None:
        size = str(limits.memory_bytes)
        if is_v2:
            return [("memory.max", size, True), ("memory.swap.max", "0", False)]
        both = ("memory.memsw.limit_in_bytes", size, False)
        return [("memory.limit_in_bytes", size, True), both]
    if controller == "pids" and limits.processes is not None:
        return [("pids.max", str(limits.processes), True)]
    if controller == "cpu" and limits.cpus is not None:
        quota = str(round(limits.cpus * _PERIOD_US))
        if is_v2:
            return [("cpu.max", f"{quota} {_PERIOD_US}", True)]
        period = ("cpu.cfs_period_us", str(_PERIOD_US), True)
        return [period, ("cpu.cfs_quota_us", quota, True)]
    return []


def _parents(root: Path) -> Mapping[str, Path]:
    """For each controller that there is, the directory in which our groups go."""
    found: dict[str, Path] = {}
    mounted = dict(mounts(root))
    for line in read(root / "proc/self/cgroup").splitlines():
        _number, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in _CONTROLLERS and name in mounted:
                found[name] = mounted[name] / path.lstrip("/")
        if names == "" and "" in mounted:
            # Beside our own group: one that has processes in it can have none below it with limits.
            own = mounted[""] / path.lstrip("/")
            parent = own if own == mounted[""] else own.parent
            enabled = read(parent / "cgroup.subtree_control").split()
            for name in set(_CONTROLLERS) & set(enabled) - set(found):
                found[name] = parent
    return found


def _counter(folder: Path) -> Path:
    v2 = folder / "memory.events"
    return v2 if v2.exists() else folder / "memory.oom_control"


def _write(path: Path, value: str, *, is_needed: bool) -> None:
    """Write a limit and read it back: the kernel may take another, but no higher one."""
    try:
        path.write_text(value, encoding="ascii")
        found = path.read_text(encoding="ascii").split()
        for word, wanted in zip(found, value.split(), strict=True):
            if int(word) > int(wanted):
                raise OSError(errno.EINVAL, "the kernel did not take it", str(path))
    except (OSError, ValueError) as error:
        if is_needed:
            raise OSError(errno.EINVAL, str(error), str(path)) from error


def _remove(folder: Path) -> None:
    """An empty group, and those inside for its commands."""
    for inside in (*folder.glob("*/*/"), *folder.glob("*/")):
        rmdir(inside)
    rmdir(folder)
