"""What is different inside the overlay, and the result of applying it."""

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

from kakoi._support.late import dataclass
from kakoi.overlay.directories import (
    attributes,
    file,
    folder,
    is_copied_up,
    same_bytes,
    split,
)
from kakoi.overlay.layers import ComparedPath, Stack, pairs

# The mode bits that are applied: never setuid, and setgid only on directories.
FILE_MODE = 0o1777
FOLDER_MODE = 0o3777


class ChangeKind(StrEnum):
    """What happened to a path, compared with the project."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A path that is different inside and in the project. A changed time alone does not count.

    `path`: relative to the project, `.` for the project itself; undecodable bytes are surrogates.
    `type`: `file`, `directory`, `symlink`, `fifo`, `socket` or `device`; of a deleted path, what it
        was. `was`: the type in the project, empty if it does not exist there.
    `mode`, `was_mode`: permissions inside and in the project; None if it does not exist.
    `renamed_from`: a deleted file with the same content.
    `conflict`: what happened in the project meanwhile; empty if nothing did.
    `never_applied`: why it cannot be applied; empty if it can.
    """

    path: str
    kind: ChangeKind
    type: str
    was: str = ""
    mode: int | None = None
    was_mode: int | None = None
    size: int = 0
    renamed_from: str = ""
    conflict: str = ""
    never_applied: str = ""


@dataclass(frozen=True, slots=True)
class ApplyResult:
    """The paths that were applied to the project, and those that were refused, with the reason."""

    done: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Mounts:
    """What to mount on the workspace: directories in `folder`, the writable one first.

    `work`: the kernel's own directory in `folder`. `base`: the directory below all of them.
    """

    folder: str
    stack: tuple[str, ...]
    work: str
    base: str


def type_of(mode: int) -> str:
    """Return the type of a file as a word."""
    names = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symlink",
        stat.S_IFIFO: "fifo",
        stat.S_IFSOCK: "socket",
    }
    return names.get(stat.S_IFMT(mode), "device")


def permissions(mode: int) -> int:
    """Return the bits of a mode that are compared and applied."""
    return mode & (FOLDER_MODE if stat.S_ISDIR(mode) else FILE_MODE)


_NEVER = "it is never applied: it has no meaning outside the sandbox"
# The number of deleted files of the same size that are compared with an added one.
_CANDIDATES = 16


@dataclass(frozen=True, slots=True)
class FoundChange:
    """A change and where it was found."""

    pair: ComparedPath
    change: Change


def find_changes(stack: Stack, conflict: Callable[[ComparedPath, bool], str]) -> list[FoundChange]:
    """Return what is different inside, by path.

    `conflict`: returns what happened to a path in the project meanwhile. Its second argument tells
    if the file inside was copied from the project.
    """
    every = list(pairs(stack))
    links = hard_links(every)
    found = []
    for pair in every:
        change = _change(stack, pair, links)
        if change is not None:
            came = pair.inside is not None and _came_from_project(stack, pair)
            found.append(FoundChange(pair, replace(change, conflict=conflict(pair, came))))
    return _with_renames(stack, sorted(found, key=lambda each: each.pair.path))


def hard_links(found: Iterable[ComparedPath]) -> Mapping[bytes, Sequence[ComparedPath]]:
    """Map each name of a file with several hard links inside to all of its names."""
    groups: dict[tuple[int, int], list[ComparedPath]] = {}
    for pair in found:
        inside = pair.inside
        if inside is not None and stat.S_ISREG(inside.st_mode) and inside.st_nlink > 1:
            groups.setdefault((inside.st_dev, inside.st_ino), []).append(pair)
    return {pair.path: group for group in groups.values() if len(group) > 1 for pair in group}


def _change(
    stack: Stack, pair: ComparedPath, links: Mapping[bytes, Sequence[ComparedPath]]
) -> Change | None:
    inside, outside = pair.inside, pair.outside
    path = os.fsdecode(pair.path) or "."
    was = "" if outside is None else type_of(outside.st_mode)
    was_mode = None if outside is None else permissions(outside.st_mode)
    if inside is None:
        return Change(path=path, kind=ChangeKind.DELETED, type=was, was=was, was_mode=was_mode)
    kind = type_of(inside.st_mode)
    if outside is not None and kind == was and _is_same(stack, pair, links):
        return None
    return Change(
        path=path,
        kind=ChangeKind.ADDED if outside is None else ChangeKind.MODIFIED,
        type=kind,
        was=was,
        mode=permissions(inside.st_mode),
        was_mode=was_mode,
        size=inside.st_size if kind == "file" else 0,
        never_applied=_NEVER if kind in ("socket", "device") else "",
    )


def _is_same(
    stack: Stack, pair: ComparedPath, links: Mapping[bytes, Sequence[ComparedPath]]
) -> bool:
    """Tell if a path is the same inside and in the project. Both exist and have the same type."""
    inside, outside = pair.inside, pair.outside
    assert inside is not None and outside is not None  # noqa: S101, PT018 - the caller has looked
    if stat.S_ISLNK(inside.st_mode):
        return _target(stack.layers[pair.layer], pair.path) == _target(stack.project, pair.path)
    if permissions(inside.st_mode) != permissions(outside.st_mode):
        return False
    # Files that a user other than root creates are always the user's own.
    owners = {(each.st_uid, each.st_gid) for each in (inside, outside)}
    if os.geteuid() == 0 and len(owners) > 1:
        return False
    outer = {each.outside.st_ino for each in links.get(pair.path, ()) if each.outside is not None}
    if pair.path in links and (len(outer) > 1 or any(not p.outside for p in links[pair.path])):
        return False
    if stat.S_ISDIR(inside.st_mode):
        with (
            folder(stack.layers[pair.layer], pair.path, force_open=True) as one,
            folder(stack.project, pair.path) as other,
        ):
            return attributes(one) == attributes(other)
    return not stat.S_ISREG(inside.st_mode) or _same_file(stack, pair.layer, pair.path, pair.path)


def _target(root: int, path: bytes) -> bytes:
    above, name = split(path)
    with folder(root, above, force_open=True) as parent:
        return os.readlink(name, dir_fd=parent)


def _same_file(
    stack: Stack, layer: int, path: bytes, other: bytes, *, with_attributes: bool = True
) -> bool:
    """Tell if the file at `path` in a layer has the content of `other` in the project."""
    above, name = split(path)
    their_above, their_name = split(other)
    try:
        with (
            folder(stack.layers[layer], above, force_open=True) as ours,
            folder(stack.project, their_above) as theirs,
            file(ours, name, force_open=True) as one,
            file(theirs, their_name) as two,
        ):
            if with_attributes and attributes(one) != attributes(two):
                return False
            return same_bytes(one, two)
    except PermissionError:
        return False  # The project's file is unreadable, so it cannot be known to be the same.


def _came_from_project(stack: Stack, pair: ComparedPath) -> bool:
    """Tell if the file was copied from the project, or moved there; these look the same."""
    if pair.outside is not None or pair.oldest is None:
        return False
    above, name = split(pair.path)
    with (
        folder(stack.layers[pair.oldest], above, force_open=True) as parent,
        file(parent, name, force_open=True) as fd,
    ):
        return is_copied_up(fd)


def _with_renames(stack: Stack, found: Sequence[FoundChange]) -> list[FoundChange]:
    """Mark an added file as renamed if a deleted one has the same content."""
    gone: dict[int, list[bytes]] = {}
    for each in found:
        outside = each.pair.outside
        is_file = each.change.kind is ChangeKind.DELETED and each.change.type == "file"
        if is_file and outside is not None and outside.st_size:
            gone.setdefault(outside.st_size, []).append(each.pair.path)
    return [_renamed(stack, each, gone) for each in found]


def _renamed(stack: Stack, found: FoundChange, gone: Mapping[int, list[bytes]]) -> FoundChange:
    change, pair = found.change, found.pair
    if change.kind is not ChangeKind.ADDED or change.type != "file":
        return found
    candidates = gone.get(change.size, [])
    for other in candidates[:_CANDIDATES]:
        if _same_file(stack, pair.layer, pair.path, other, with_attributes=False):
            candidates.remove(other)
            return FoundChange(pair, replace(change, renamed_from=os.fsdecode(other)))
    return found
