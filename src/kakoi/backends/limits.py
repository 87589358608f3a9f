"""Sets the kernel limits of a sandbox, and reports which of them are enforced.

A control group, of version 1 or 2, limits the sandbox as a whole. Root can create one, and so can
other users if a part of the tree is delegated to them (control_groups.py). Without a group,
per-process limits (rlimits) take its place, as far as they go.
"""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Final

from kakoi._support.late import dataclass, pattern
from kakoi.backends.adapter import LEAST, LimitReport, Limits
from kakoi.backends.bubblewrap.arguments import HOME
from kakoi.backends.control_groups import (
    Freezer,
    check_entrance,
    make_and_hold,
    mounts,
    read,
    rmdir,
    sweep,
)
from kakoi.channel.api import MIB
from kakoi.runner.memory import OomCounter

# If more commands than this run at a time, they share groups.
_COUNT: Final = 8
# The memory left for the others when one command fills its own group.
_LEAST_LEFT_BYTES: Final = 16 * MIB
# For the runner's interpreter, and the output of commands that it buffers.
_RUNNER_BYTES: Final = 64 * MIB
# In version 2, the rights of the process that opened `cgroup.procs` count since this kernel.
_FIRST_KERNEL: Final = (5, 16)
_OF_VERSION_1: Final = ("memory.oom_control", "memory.usage_in_bytes")
# Descriptors of one group: `cgroup.procs`, its OOM kill counter, and its memory usage.
Handed = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class JobGroups:
    """Separate groups for a few commands, inside the group of their sandbox.

        `outer`, the sandbox's group: the runner
        └── jobs: all commands together
            ├── 0: a keeper and its commands
            └── 1, 2, …

    When a command uses up its memory, including memory that belongs to no process, the kernel kills
    only within that command's group: neither the runner nor other commands are in it. All groups
    are created from outside. The runner gets descriptors, so neither it nor its commands need to
    see a control group.

    `entrance`: the group of the runner. `folders`: in the order in which they can be removed.
    `descriptors`: for each command's group.
    """

    outer: Path
    entrance: Path
    folders: tuple[Path, ...]
    descriptors: tuple[Handed, ...]

    def close(self) -> None:
        """Close the descriptors. The folders are removed with the outer one."""
        for each in self.descriptors:
            for descriptor in each:
                os.close(descriptor)


def make_job_groups(
    outer: Path,
    memory_bytes: int,
    scratch_bytes: int,
    *,
    mkdir: Callable[[Path], None] = Path.mkdir,
    kernel: tuple[int, int] | None = None,
) -> JobGroups | None:
    """Create groups inside `outer`, which has the memory limit until now; None if impossible.

    `scratch_bytes`: how much can be written to directories in memory. `mkdir`, `kernel`: for tests.
    """
    is_v2 = (outer / "memory.max").exists()
    if not (outer / "cgroup.procs").exists():
        return None
    if is_v2 and (kernel or _kernel()) < _FIRST_KERNEL:
        return None
    jobs = outer / "jobs"
    above = [outer / "runner"] if is_v2 else []
    each = [jobs / str(number) for number in range(_COUNT)]
    descriptors: list[Handed] = []
    left = max(memory_bytes // 8, _LEAST_LEFT_BYTES)
    try:
        for folder in (*above, jobs):
            mkdir(folder)
        _share_out(outer, is_v2=is_v2)
        _limit(jobs, memory_bytes + left, is_v2=is_v2)
        _share_out(jobs, is_v2=is_v2)
        for folder in each:
            mkdir(folder)
            _limit(folder, memory_bytes, is_v2=is_v2)
            descriptors.append(_open(folder, is_v2=is_v2))
        _limit(outer, memory_bytes + left + _RUNNER_BYTES + scratch_bytes, is_v2=is_v2)
    except OSError:
        _undo(outer, [*each, jobs, *above], descriptors, is_v2=is_v2)
        return None
    entrance = above[0] if is_v2 else outer
    return JobGroups(outer, entrance, (*each, jobs, *above), tuple(descriptors))


def _kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)


def _share_out(folder: Path, *, is_v2: bool) -> None:
    """Allow the groups inside to have their own limits; version 1 always does."""
    if is_v2:
        (folder / "cgroup.subtree_control").write_text("+memory", encoding="ascii")


def _limit(folder: Path, size: int, *, is_v2: bool) -> None:
    if is_v2:
        (folder / "memory.max").write_text(str(size), encoding="ascii")
        with contextlib.suppress(OSError):  # This file does not exist without swap.
            (folder / "memory.swap.max").write_text("0", encoding="ascii")
        return
    both, memory = folder / "memory.memsw.limit_in_bytes", folder / "memory.limit_in_bytes"
    with contextlib.suppress(OSError):  # First, because it must never be below the other.
        both.write_text(str(size), encoding="ascii")
    memory.write_text(str(size), encoding="ascii")
    with contextlib.suppress(OSError):
        both.write_text(str(size), encoding="ascii")


def _open(folder: Path, *, is_v2: bool) -> Handed:
    names = ("memory.events", "memory.current") if is_v2 else _OF_VERSION_1
    with contextlib.ExitStack() as opened:
        descriptors = []
        for name, flags in (
            ("cgroup.procs", os.O_WRONLY),
            *((name, os.O_RDONLY) for name in names),
        ):
            descriptors.append(os.open(folder / name, flags | os.O_CLOEXEC))
            opened.callback(os.close, descriptors[-1])
        opened.pop_all()
        entrance, counter, used = descriptors
        return entrance, counter, used


def _undo(outer: Path, folders: list[Path], descriptors: list[Handed], *, is_v2: bool) -> None:
    JobGroups(outer, outer, (), tuple(descriptors)).close()
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()
    if is_v2:
        with contextlib.suppress(OSError):
            (outer / "cgroup.subtree_control").write_text("-memory", encoding="ascii")


_PERIOD_US: Final = 100_000
_NAME: Final = pattern(r"kakoi-\d+-[0-9a-f]+")
_CONTROLLERS: Final = ("memory", "pids", "cpu", "freezer")
_REMOVAL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """A control group: one directory, or in version 1 one for each controller.

    `locks`: descriptors that keep other kakoi processes from removing it as abandoned.
    `kept`: the limits that it enforces. `oom_counter`: the file that counts OOM kills; `memory`
    reads it. `jobs`: groups inside, for its commands. `freezer`: stops everything in it.
    """

    folders: tuple[Path, ...]
    locks: tuple[int, ...] = ()
    kept: frozenset[str] = field(default_factory=frozenset)
    oom_counter: str = ""
    memory: OomCounter | None = None
    jobs: JobGroups | None = None
    freezer: Freezer | None = None

    @property
    def entries(self) -> list[str]:
        """The files to which a process writes 0 to enter."""
        inside = {self.jobs.outer: self.jobs.entrance} if self.jobs else {}
        return [str(inside.get(folder, folder) / "cgroup.procs") for folder in self.folders]

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that the runner inherits."""
        handed = self.jobs.descriptors if self.jobs else ()
        return tuple(descriptor for each in handed for descriptor in each)

    def for_runner(self) -> dict[str, Any]:
        """The settings by which the runner notices that memory ran out."""
        if self.jobs:
            return {"job_groups": self.jobs.descriptors}
        return {"oom_counter": self.oom_counter}

    async def ran_out(self) -> bool:
        """Whether the kernel killed something other than a command because memory ran out."""
        return self.memory is not None and self.memory.ran_out()

    def remove(self) -> None:
        """Remove it; waits briefly until its processes are gone."""
        if self.freezer:
            self.freezer.thaw()  # In version 1, nothing frozen can be killed.
        give_up = time.monotonic() + _REMOVAL_S
        if self.jobs:
            self.jobs.close()
        for folder in (*(self.jobs.folders if self.jobs else ()), *self.folders):
            while not rmdir(folder) and time.monotonic() < give_up:
                time.sleep(0.01)
        for lock in self.locks:
            os.close(lock)


def make_group(limits: Limits, *, root: Path = Path("/")) -> ControlGroup | None:
    """Create a group with as many of these limits as this machine allows, and a freezer.

    None if this machine allows none of it.

    `root`: the root of the file system, for tests.
    """
    name = f"kakoi-{os.getpid()}-{os.urandom(4).hex()}"
    made: dict[Path, int] = {}
    kept: set[str] = set()
    counter = ""
    freezer: Freezer | None = None
    for controller, parent in _parents(root).items():
        wanted = _settings(controller, limits, is_v2=(parent / "cgroup.controllers").exists())
        if not wanted and controller != "freezer":
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
        if controller == "freezer":
            freezer = Freezer.of(folder)
            continue
        kept.add(_LIMIT[controller])
        if controller == "memory":
            counter = str(_counter(folder))
    watcher = OomCounter(counter) if counter else None
    jobs = None
    if counter and limits.memory_bytes is not None:
        scratch_bytes = sum(scratch_sizes(limits).values())
        jobs = make_job_groups(Path(counter).parent, limits.memory_bytes, scratch_bytes)
    group = ControlGroup(
        tuple(made), tuple(made.values()), frozenset(kept), counter, watcher, jobs, freezer
    )
    if not kept and freezer is None:
        group.remove()
        return None
    return group


_LIMIT: Final = {"memory": "memory_bytes", "pids": "processes", "cpu": "cpus"}
# How `disk_bytes` is divided among the private directories.
_SHARES: Final = {"/tmp": 6, HOME: 6, "/var/tmp": 2, "/dev/shm": 1, "/run": 1}  # noqa: S108
_NO_GROUP: Final = "no control group can be made here"
_NO_DISK: Final = "all that it writes is on file systems of this machine"


def scratch_sizes(limits: Limits) -> dict[str, int]:
    """The maximum size of each private directory; empty without a limit.

    They are in memory, so together they must leave some for the commands.
    """
    if limits.disk_bytes is None:
        return {}
    memory = limits.memory_bytes or limits.disk_bytes
    total = min(limits.disk_bytes, memory * 3 // 4)
    return {path: total * share // sum(_SHARES.values()) for path, share in _SHARES.items()}


def rlimits_for(limits: Limits, kept: Collection[str]) -> dict[str, int]:
    """The limits of each process; `kept`: the limits that a group already enforces."""
    found = limits.rlimits
    if "memory_bytes" not in kept and limits.memory_bytes is not None:
        found["data_bytes"] = limits.memory_bytes
    return found


# What enforces a limit without a group and without namespaces.
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


def make_limit_report(
    limits: Limits, kept: Collection[str], by: Mapping[str, str], *, cpus: int
) -> LimitReport:
    """Report which limits are enforced.

    `kept`: those the group enforces. `by`: those enforced by other means. `cpus`: the machine's.
    """
    group = dict.fromkeys(kept, "control group")
    alone = dict(by)
    if limits.cpus is not None and limits.cpus >= cpus:
        alone["cpus"] = "the machine has no more"
    wanted = [name for name in LEAST if getattr(limits, name) is not None]
    keepers = {**alone, **group}
    return LimitReport(
        {name: keepers[name] for name in wanted if name in keepers},
        {
            name: _NO_DISK if name == "disk_bytes" else _NO_GROUP
            for name in wanted
            if name not in keepers
        },
    )


def _settings(controller: str, limits: Limits, *, is_v2: bool) -> list[tuple[str, str, bool]]:
    """What to write to a group's files: name, value, and whether the limit depends on it."""
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
    """For each available controller, the directory for our groups."""
    found: dict[str, Path] = {}
    mounted = dict(mounts(root))
    for line in read(root / "proc/self/cgroup").splitlines():
        _number, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in _CONTROLLERS and name in mounted:
                found[name] = mounted[name] / path.lstrip("/")
        if names == "" and "" in mounted:
            # Beside our own group: a group with processes cannot have groups with limits below it.
            own = mounted[""] / path.lstrip("/")
            parent = own if own == mounted[""] else own.parent
            enabled = {*read(parent / "cgroup.subtree_control").split(), "freezer"}
            for name in set(_CONTROLLERS) & enabled - set(found):
                found[name] = parent
    return found


def _counter(folder: Path) -> Path:
    v2 = folder / "memory.events"
    return v2 if v2.exists() else folder / "memory.oom_control"


def _write(path: Path, value: str, *, is_needed: bool) -> None:
    """Write a limit and read it back: the kernel may round it down, but not up."""
    try:
        path.write_text(value, encoding="ascii")
        found = path.read_text(encoding="ascii").split()
        for word, wanted in zip(found, value.split(), strict=True):
            if int(word) > int(wanted):
                raise OSError(errno.EINVAL, "the kernel did not accept it", str(path))
    except (OSError, ValueError) as error:
        if is_needed:
            raise OSError(errno.EINVAL, str(error), str(path)) from error


def _remove(folder: Path) -> None:
    """Remove an empty group, including the groups inside it for commands.

    If something in it is still frozen, let it end; the next sweep removes the group.
    """
    if freezer := Freezer.of(folder):
        freezer.thaw()
    for inside in (*folder.glob("*/*/"), *folder.glob("*/")):
        rmdir(inside)
    rmdir(folder)
