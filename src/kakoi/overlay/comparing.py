"""What of all that layers hold is a change? A file that was opened for writing may be none."""

import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from kakoi.overlay.trees import (
    attributes,
    file,
    folder,
    is_copied_up,
    same_bytes,
    split,
)
from kakoi.overlay.values import Change, Kind, permissions, type_of
from kakoi.overlay.walking import Pair, Stack, pairs

_NEVER = "it is never taken over: it means nothing outside of the sandbox"
# How many deleted files of one size are compared with an added one.
_CANDIDATES = 16


@dataclass(frozen=True, slots=True)
class Found:
    """A change, and where it was found."""

    pair: Pair
    change: Change


def find_changes(stack: Stack, conflict: Callable[[Pair, bool], str]) -> list[Found]:
    """What is different inside, by path. `conflict` says what happened to a path meanwhile, told
    whether it was copied from the project inside."""
    every = list(pairs(stack))
    links = hard_links(every)
    found = []
    for pair in every:
        change = _change(stack, pair, links)
        if change is not None:
            came = pair.inside is not None and _came_from_project(stack, pair)
            found.append(Found(pair, replace(change, conflict=conflict(pair, came))))
    return _with_renames(stack, sorted(found, key=lambda each: each.pair.path))


def hard_links(found: Iterable[Pair]) -> Mapping[bytes, Sequence[Pair]]:
    """Files that have more than one name inside: each name → all of them."""
    groups: dict[tuple[int, int], list[Pair]] = {}
    for pair in found:
        inside = pair.inside
        if inside is not None and stat.S_ISREG(inside.st_mode) and inside.st_nlink > 1:
            groups.setdefault((inside.st_dev, inside.st_ino), []).append(pair)
    return {pair.path: group for group in groups.values() if len(group) > 1 for pair in group}


def _change(stack: Stack, pair: Pair, links: Mapping[bytes, Sequence[Pair]]) -> Change | None:
    inside, outside = pair.inside, pair.outside
    path = os.fsdecode(pair.path) or "."
    was = "" if outside is None else type_of(outside.st_mode)
    was_mode = None if outside is None else permissions(outside.st_mode)
    if inside is None:
        return Change(path=path, kind=Kind.DELETED, type=was, was=was, was_mode=was_mode)
    kind = type_of(inside.st_mode)
    if outside is not None and kind == was and _is_same(stack, pair, links):
        return None
    return Change(
        path=path,
        kind=Kind.ADDED if outside is None else Kind.MODIFIED,
        type=kind,
        was=was,
        mode=permissions(inside.st_mode),
        was_mode=was_mode,
        size=inside.st_size if kind == "file" else 0,
        never_applied=_NEVER if kind in ("socket", "device") else "",
    )


def _is_same(stack: Stack, pair: Pair, links: Mapping[bytes, Sequence[Pair]]) -> bool:
    """Is it inside what it is in the project? Both are there, and of one type."""
    inside, outside = pair.inside, pair.outside
    assert inside is not None and outside is not None  # noqa: S101, PT018 - the caller has looked
    if stat.S_ISLNK(inside.st_mode):
        return _target(stack.layers[pair.layer], pair.path) == _target(stack.project, pair.path)
    if permissions(inside.st_mode) != permissions(outside.st_mode):
        return False
    # For anybody but root all that is made is one's own.
    owners = {(each.st_uid, each.st_gid) for each in (inside, outside)}
    if os.geteuid() == 0 and len(owners) > 1:
        return False
    outer = {each.outside.st_ino for each in links.get(pair.path, ()) if each.outside is not None}
    if pair.path in links and (len(outer) > 1 or any(not p.outside for p in links[pair.path])):
        return False
    if stat.S_ISDIR(inside.st_mode):
        with (
            folder(stack.layers[pair.layer], pair.path, pry=True) as one,
            folder(stack.project, pair.path) as other,
        ):
            return attributes(one) == attributes(other)
    return not stat.S_ISREG(inside.st_mode) or _same_file(stack, pair.layer, pair.path, pair.path)


def _target(root: int, path: bytes) -> bytes:
    above, name = split(path)
    with folder(root, above, pry=True) as parent:
        return os.readlink(name, dir_fd=parent)


def _same_file(
    stack: Stack, layer: int, path: bytes, other: bytes, *, with_attributes: bool = True
) -> bool:
    """Does the file at `path` in a layer hold the same as the one at `other` in the project?"""
    above, name = split(path)
    their_above, their_name = split(other)
    try:
        with (
            folder(stack.layers[layer], above, pry=True) as ours,
            folder(stack.project, their_above) as theirs,
            file(ours, name, pry=True) as one,
            file(theirs, their_name) as two,
        ):
            if with_attributes and attributes(one) != attributes(two):
                return False
            return same_bytes(one, two)
    except PermissionError:
        return False  # We may not read the project's, so nobody can say that it is the same.


def _came_from_project(stack: Stack, pair: Pair) -> bool:
    """Was it copied from the project at this path, or moved there? Nobody can tell these apart."""
    if pair.outside is not None or pair.oldest is None:
        return False
    above, name = split(pair.path)
    with (
        folder(stack.layers[pair.oldest], above, pry=True) as parent,
        file(parent, name, pry=True) as fd,
    ):
        return is_copied_up(fd)


def _with_renames(stack: Stack, found: Sequence[Found]) -> list[Found]:
    """Say of an added file which deleted one it was, if the bytes are the same."""
    gone: dict[int, list[bytes]] = {}
    for each in found:
        outside = each.pair.outside
        is_file = each.change.kind is Kind.DELETED and each.change.type == "file"
        if is_file and outside is not None and outside.st_size:
            gone.setdefault(outside.st_size, []).append(each.pair.path)
    return [_renamed(stack, each, gone) for each in found]


def _renamed(stack: Stack, found: Found, gone: Mapping[int, list[bytes]]) -> Found:
    change, pair = found.change, found.pair
    if change.kind is not Kind.ADDED or change.type != "file":
        return found
    candidates = gone.get(change.size, [])
    for other in candidates[:_CANDIDATES]:
        if _same_file(stack, pair.layer, pair.path, other, with_attributes=False):
            candidates.remove(other)
            return Found(pair, replace(change, renamed_from=os.fsdecode(other)))
    return found
