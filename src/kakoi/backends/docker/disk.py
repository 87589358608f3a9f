"""The disk limit of a container, enforced by one disk of limited size, or by memory.

With a limit, the container's own file system is read-only. Every writable directory is on the
limited disk (process/limited_disk.py), or on a sized tmpfs where we cannot make such a disk. A
directory of this machine that is mounted as the workspace does not count: we cannot limit it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import PurePosixPath
from typing import Final

from kakoi._support.late import dataclass
from kakoi.backends.adapter import Limits

_VOLUMES: Final = "/run/kakoi/volumes"
TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108


@dataclass(frozen=True, slots=True)
class DiskPlan:
    """Where a container can write, and how much.

    `sizes`: directories in memory, each with its size in bytes. `volume_bytes`: the size of one
    disk for all of `tops`; `below` names the directories to create in each. `copied`: those of
    `tops` that start with the image's files. Without `sizes` and `volume_bytes` the limit is not
    enforced, and `why` gives the reason. `saved`: a file with the disk to start with (`save_disk`).
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    volume_bytes: int = 0
    tops: Sequence[str] = ()
    below: Mapping[str, Sequence[str]] = field(default_factory=dict)
    copied: Sequence[str] = ()
    why: str = ""
    saved: str = ""

    @property
    def is_kept(self) -> bool:
        """Whether the limit is enforced."""
        return bool(self.sizes or self.volume_bytes)

    @property
    def by(self) -> str:
        """A description of what enforces the limit."""
        paths = " ".join(self.sizes or self.tops)
        return f"{'an ext4 volume for' if self.volume_bytes else 'sized tmpfs:'} {paths}"


def plan_disk(
    limits: Limits,
    directories: Sequence[str],
    *,
    main: str | None,
    home: str,
    volumes: Sequence[str],
    why_no_volume: str,
) -> DiskPlan | None:
    """Plan how to enforce the disk limit; None if there is no limit.

    `directories`: those that the container needs besides /tmp. `main`: the one of them that is the
    workspace; None if the workspace is a directory of this machine. `home`, `volumes`: directories
    in the image that must be writable: the home of its user, and its volumes. `why_no_volume`: why
    we cannot make a disk of limited size; empty if we can.
    """
    if limits.disk_bytes is None:
        return None
    paths = list(dict.fromkeys([*directories, *TEMPORARY]))
    copied = [path for path in (home, *volumes) if path and path not in paths]
    if main is None and not copied:
        memory = limits.memory_bytes or 2 * limits.disk_bytes
        return DiskPlan(sizes=_shares(paths, min(limits.disk_bytes, memory * 3 // 4)))
    if not why_no_volume:
        return _one_volume(limits.disk_bytes, [*paths, *copied], copied)
    if copied:
        return DiskPlan(why=f"{why_no_volume}, and {copied[0]} of the image is written to")
    if limits.memory_bytes is not None and limits.disk_bytes > limits.memory_bytes // 2:
        return DiskPlan(why=f"{why_no_volume}, and it is too large to be kept in memory")
    return DiskPlan(sizes=_shares(paths, limits.disk_bytes, main))


def _shares(paths: Sequence[str], total: int, main: str | None = None) -> dict[str, int]:
    """Half for the workspace, the rest divided evenly; parents come before their children."""
    others = len(paths) - (main in paths)
    half = total // 2 if main in paths else total
    return {path: half if path == main else half // others for path in sorted(paths)}


def _one_volume(size: int, paths: Sequence[str], copied: Sequence[str]) -> DiskPlan:
    tops = [
        path
        for path in paths
        if not any(str(above) in paths for above in PurePosixPath(path).parents)
    ]
    below = {top: _parts_below(top, paths) for top in tops}
    return DiskPlan(
        volume_bytes=size,
        tops=tuple(tops),
        below=below,
        copied=[path for path in copied if path in tops],
    )


def _parts_below(top: str, paths: Sequence[str]) -> list[str]:
    """The paths below `top` and the directories between, relative to `top`, parents first."""
    found = {
        str(each)
        for path in paths
        if path.startswith(f"{top}/")
        for inner in [PurePosixPath(path.removeprefix(f"{top}/"))]
        for each in (inner, *inner.parents)
    }
    return sorted(found - {"."})


def volume_path(name: str, number: int | None = None) -> str:
    """Where the disk of container `name` is mounted; with `number`, one of its directories."""
    return f"{_VOLUMES}/{name}" if number is None else f"{_VOLUMES}/{name}/{number}"
