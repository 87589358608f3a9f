"""How much may be written in a container, and what keeps it: one disk of limited size, or memory.

The container's own file system is read-only then, and every place that can be written lies on the
limited disk (process/volume.py), or in sized memory where none can be made. A directory of this
machine that is mounted as the workspace is not in the limit: nothing can be put upon it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Final

from kakoi.sandbox.adapter import Limits

_PLACE: Final = "/run/kakoi/volumes"
TEMPORARY: Final = ("/tmp", "/var/tmp")  # noqa: S108


@dataclass(frozen=True, slots=True)
class Disk:
    """Where a container can write, and how much.

    `sizes`: directories in memory, each with its bytes. `volume_bytes`: the size of one disk for
    all of `tops`, in which `below` names the directories to make. `copied`: those of `tops` that
    begin with what the image has there. Neither: nothing is kept, and `why` says why not.
    """

    sizes: Mapping[str, int] = field(default_factory=dict)
    volume_bytes: int = 0
    tops: Sequence[str] = ()
    below: Mapping[str, Sequence[str]] = field(default_factory=dict)
    copied: Sequence[str] = ()
    why: str = ""

    @property
    def is_kept(self) -> bool:
        """Is there a limit that holds?"""
        return bool(self.sizes or self.volume_bytes)

    @property
    def by(self) -> str:
        """What keeps it, in words."""
        places = " ".join(self.sizes or self.tops)
        return f"{'an ext4 volume for' if self.volume_bytes else 'sized tmpfs:'} {places}"


def plan_disk(
    limits: Limits,
    directories: Sequence[str],
    *,
    main: str | None,
    home: str,
    volumes: Sequence[str],
    why_no_volume: str,
) -> Disk | None:
    """What keeps the limit; None if there is none.

    `directories`: what the container needs, besides /tmp. `main`: the one of them that is the
    workspace, None if that is a directory of this machine. `home`, `volumes`: what the image has
    for its own user, and expects to be written.
    """
    if limits.disk_bytes is None:
        return None
    places = list(dict.fromkeys([*directories, *TEMPORARY]))
    copied = [path for path in (home, *volumes) if path and path not in places]
    if main is None and not copied:
        memory = limits.memory_bytes or 2 * limits.disk_bytes
        return Disk(sizes=_shares(places, min(limits.disk_bytes, memory * 3 // 4)))
    if not why_no_volume:
        return _one_volume(limits.disk_bytes, [*places, *copied], copied)
    if copied:
        return Disk(why=f"{why_no_volume}, and {copied[0]} of the image is written to")
    if limits.memory_bytes is not None and limits.disk_bytes > limits.memory_bytes // 2:
        return Disk(why=f"{why_no_volume}, and it is too large to be kept in memory")
    return Disk(sizes=_shares(places, limits.disk_bytes, main))


def _shares(places: Sequence[str], total: int, main: str | None = None) -> dict[str, int]:
    """Half for the workspace, and the rest shared out evenly; a parent comes before its child."""
    others = len(places) - (main in places)
    half = total // 2 if main in places else total
    return {path: half if path == main else half // others for path in sorted(places)}


def _one_volume(size: int, places: Sequence[str], copied: Sequence[str]) -> Disk:
    tops = [
        path
        for path in places
        if not any(str(above) in places for above in PurePosixPath(path).parents)
    ]
    below = {top: _parts_below(top, places) for top in tops}
    return Disk(
        volume_bytes=size,
        tops=tuple(tops),
        below=below,
        copied=[path for path in copied if path in tops],
    )


def _parts_below(top: str, places: Sequence[str]) -> list[str]:
    """The places within `top`, and what is between, by their paths from there; parents first."""
    found = {
        str(each)
        for path in places
        if path.startswith(f"{top}/")
        for inner in [PurePosixPath(path.removeprefix(f"{top}/"))]
        for each in (inner, *inner.parents)
    }
    return sorted(found - {"."})


def volume_path(name: str, number: int | None = None) -> str:
    """Where the disk of the container of that name is mounted; with a number, one of its places."""
    return f"{_PLACE}/{name}" if number is None else f"{_PLACE}/{name}/{number}"
