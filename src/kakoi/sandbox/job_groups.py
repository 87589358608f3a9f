"""A control group for each of a few commands, inside the group of their sandbox.

    the sandbox's group: the runner
    └── jobs: all commands together
        ├── 0: a keeper and its commands
        └── 1, 2, …

A command that fills its memory, also with memory that belongs to no process, is ended in its own
group: neither the runner nor other commands are there to be killed. All is made from outside; the
runner gets descriptors, so neither it nor its commands need to see a control group.
"""

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kakoi.runner.commands import MIB

# More commands at a time share groups.
_COUNT: Final = 8
# What the others have left beside one that fills its own group.
_LEAST_LEFT_BYTES: Final = 16 * MIB
# For the interpreter of the runner, and what it holds of commands' output.
_RUNNER_BYTES: Final = 64 * MIB
# Since then, who opened `cgroup.procs` of version 2 decides whether a process may be moved by it.
_FIRST_KERNEL: Final = (5, 16)
_OF_VERSION_1: Final = ("memory.oom_control", "memory.usage_in_bytes")
# Descriptors of one group: `cgroup.procs`, the count of kills, and how much it uses.
Handed = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class JobGroups:
    """The groups inside `outer`.

    `entrance`: where the runner goes. `folders`: in the order in which they can be removed.
    `descriptors`: of each group for a command.
    """

    outer: Path
    entrance: Path
    folders: tuple[Path, ...]
    descriptors: tuple[Handed, ...]

    def close(self) -> None:
        """Give the descriptors up. The folders go with the outer one."""
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
    """Groups inside `outer`, which has the limit on memory until now; None where there can't be.

    `scratch_bytes`: how much the runner may write to directories that are in memory. `mkdir`,
    `kernel`: for tests.
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
    """Let groups inside have limits of their own; in version 1 they always may."""
    if is_v2:
        (folder / "cgroup.subtree_control").write_text("+memory", encoding="ascii")


def _limit(folder: Path, size: int, *, is_v2: bool) -> None:
    if is_v2:
        (folder / "memory.max").write_text(str(size), encoding="ascii")
        with contextlib.suppress(OSError):  # Where there is no swap, there is no such file.
            (folder / "memory.swap.max").write_text("0", encoding="ascii")
        return
    both, memory = folder / "memory.memsw.limit_in_bytes", folder / "memory.limit_in_bytes"
    with contextlib.suppress(OSError):  # First to raise both, which is never below the other.
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
