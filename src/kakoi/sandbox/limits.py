"""Limits that the kernel keeps for a sandbox of bubblewrap: a control group of its own.

Version 1 and 2 of control groups, as far as we may write to them. A group is a directory. Its name
says who made it, so that the next one to come removes what a killed kakoi has left.
"""

import contextlib
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from kakoi.sandbox.adapter import Limits

_PERIOD_US: Final = 100_000
_NAME: Final = re.compile(r"kakoi-(\d+)-[0-9a-f]+")
_CONTROLLERS: Final = ("memory", "pids", "cpu")
_REMOVAL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Group:
    """A control group: one directory, or in version 1 one for each controller.

    `kept`: which limits it has. `oom_counter`: the file that counts kills for want of memory.
    """

    folders: tuple[Path, ...]
    kept: frozenset[str] = field(default_factory=frozenset)
    oom_counter: str = ""

    @property
    def entries(self) -> list[str]:
        """Where a process writes a 0 to enter."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    def remove(self) -> None:
        """Take it away; its processes may take a moment to be gone."""
        give_up = time.monotonic() + _REMOVAL_S
        for folder in self.folders:
            while not _rmdir(folder) and time.monotonic() < give_up:
                time.sleep(0.01)


def make_group(limits: Limits, *, root: Path = Path("/")) -> Group | None:
    """A group with these limits, as far as this machine lets us; None if it does not at all.

    `root`: where the file system of this machine begins; for tests.
    """
    name = f"kakoi-{os.getpid()}-{secrets.token_hex(4)}"
    made: dict[Path, None] = {}
    kept: set[str] = set()
    counter = ""
    for controller, parent in _parents(root).items():
        wanted = _settings(controller, limits, is_v2=(parent / "cgroup.controllers").exists())
        if not wanted:
            continue
        folder = parent / name
        try:
            _sweep(parent)
            folder.mkdir(exist_ok=True)
            made[folder] = None
            for file, value, is_needed in wanted:
                _write(folder / file, value, is_needed=is_needed)
        except OSError:
            continue
        kept.add(_LIMIT[controller])
        if controller == "memory":
            counter = str(_counter(folder))
    if not kept:
        for folder in made:
            _rmdir(folder)
        return None
    return Group(tuple(made), frozenset(kept), counter)


_LIMIT: Final = {"memory": "memory", "pids": "processes", "cpu": "cpus"}


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
    mounts = dict(_mounts(root))
    for line in _read(root / "proc/self/cgroup").splitlines():
        _number, names, path = line.split(":", 2)
        for name in names.split(","):
            if name in _CONTROLLERS and name in mounts:
                found[name] = mounts[name] / path.lstrip("/")
        if names == "" and "" in mounts:
            # Beside our own group: one that has processes in it can have none below it with limits.
            own = mounts[""] / path.lstrip("/")
            parent = own if own == mounts[""] else own.parent
            enabled = _read(parent / "cgroup.subtree_control").split()
            for name in set(_CONTROLLERS) & set(enabled) - set(found):
                found[name] = parent
    return found


def _mounts(root: Path) -> Iterator[tuple[str, Path]]:
    """Where each controller of version 1 is mounted, and as "" the one tree of version 2."""
    for line in _read(root / "proc/self/mounts").splitlines():
        _source, place, kind, options, *_ = line.split(" ")
        at = root / place.lstrip("/")
        if kind == "cgroup2":
            yield "", at
        elif kind == "cgroup":
            for name in options.split(","):
                yield name, at


def _counter(folder: Path) -> Path:
    v2 = folder / "memory.events"
    return v2 if v2.exists() else folder / "memory.oom_control"


def _sweep(parent: Path) -> None:
    """Remove the empty groups of those who were killed."""
    for folder in parent.iterdir():
        match = _NAME.fullmatch(folder.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _rmdir(folder)


def _write(path: Path, value: str, *, is_needed: bool) -> None:
    try:
        path.write_text(value, encoding="ascii")
    except OSError:
        if is_needed:
            raise


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    return ""


def _rmdir(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True
