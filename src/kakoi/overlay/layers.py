"""Layers and a project, path by path. Nothing is written here, and nothing mounted.

A directory of a layer covers those at the same path in lower layers, and finally the project's. A
whiteout hides what lower layers have at its path, an opaque directory everything below it.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from kakoi._support.late import dataclass
from kakoi.errors import SandboxError
from kakoi.overlay.directories import folder, is_copied_up, is_opaque, is_whiteout, status_at

# No real project is this deep, and each directory is opened from the top.
_DEEPEST = 256


@dataclass(frozen=True, slots=True)
class Stack:
    """Descriptors of the layers, the top one first, and of the project."""

    layers: Sequence[int]
    project: int


@dataclass(frozen=True, slots=True)
class ComparedPath:
    """A path, its status inside (and in which layer), and its status in the project.

    `oldest`: the lowest layer that has this file; None if it cannot come from the project, because
    the directory does not, or because something else was there before.
    """

    path: bytes
    layer: int
    inside: os.stat_result | None
    outside: os.stat_result | None
    oldest: int | None = None


@dataclass(frozen=True, slots=True)
class _Folder:
    """A directory inside, the layers that have it, and whether the project's is visible below.

    `was_outside`: it came from the project when it was first written to; `is_outside`: the project
    still has it.
    """

    path: bytes
    layers: Sequence[int]
    shows_through: bool
    was_outside: bool
    is_outside: bool


def pairs(stack: Stack) -> Iterator[ComparedPath]:
    """Yield everything that layers contain or hide, each directory before its entries."""
    everything = range(len(stack.layers))
    yield ComparedPath(b"", 0, os.fstat(stack.layers[0]), os.fstat(stack.project))
    todo = [_Folder(b"", everything, shows_through=True, was_outside=True, is_outside=True)]
    while todo:
        at = todo.pop()
        if at.path.count(b"/") >= _DEEPEST:
            raise SandboxError(
                f"directories inside are nested too deeply: {os.fsdecode(at.path[:80])}…",
                hint="remove them with a command in the sandbox, or `kakoi copy discard`",
            )
        found = _entries(stack, at)
        outside = _outside(stack, at, found)
        for name in sorted({*found, *outside}):
            path = at.path + b"/" + name if at.path else name
            there = outside.get(name)
            layer, inside = found[name][0] if name in found else (0, None)
            if inside is None or is_whiteout(inside):
                if there is not None:
                    yield from _deleted(stack, path, there)
                continue
            yield ComparedPath(path, layer, inside, there, _oldest(at, found[name]))
            is_folder = there is not None and stat.S_ISDIR(there.st_mode)
            if stat.S_ISDIR(inside.st_mode):
                todo.append(_below(stack, at, path, found[name], is_outside=is_folder))
            elif is_folder:
                yield from _below_deleted(stack, path)


def _entries(stack: Stack, at: _Folder) -> dict[bytes, list[tuple[int, os.stat_result]]]:
    """Return the names in the layers of a directory, with their status, the top layer first."""
    found: dict[bytes, list[tuple[int, os.stat_result]]] = {}
    for layer in at.layers:
        with folder(stack.layers[layer], at.path, force_open=True) as fd, os.scandir(fd) as entries:
            for each in entries:
                try:
                    status = each.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # A running command has removed it.
                found.setdefault(os.fsencode(each.name), []).append((layer, status))
    return found


def _outside(
    stack: Stack, at: _Folder, names: Iterable[bytes]
) -> dict[bytes, os.stat_result | None]:
    """Return the project's entries of these names, and all others if they are hidden inside."""
    if not at.is_outside:
        return {}
    with folder(stack.project, at.path) as fd:
        if not at.shows_through:
            with os.scandir(fd) as entries:
                names = {*names, *(os.fsencode(each.name) for each in entries)}
        return {name: status_at(fd, name) for name in names}


def _below(
    stack: Stack,
    at: _Folder,
    path: bytes,
    found: Iterable[tuple[int, os.stat_result]],
    *,
    is_outside: bool,
) -> _Folder:
    layers: list[int] = []
    shows_through, was_outside = at.shows_through, at.was_outside
    for layer, status in found:
        if not stat.S_ISDIR(status.st_mode):
            shows_through = False
            break
        layers.append(layer)
        with folder(stack.layers[layer], path, force_open=True) as fd:
            # The lowest layer counts: the others were copied from it.
            was_outside = at.was_outside and is_copied_up(fd)
            if is_opaque(fd):
                shows_through = False
                break
    return _Folder(path, layers, shows_through, was_outside, is_outside)


def _oldest(at: _Folder, found: Iterable[tuple[int, os.stat_result]]) -> int | None:
    oldest = None
    for layer, status in found:
        if not stat.S_ISREG(status.st_mode):
            return None
        oldest = layer
    return oldest if at.shows_through and at.was_outside else None


def _deleted(stack: Stack, path: bytes, status: os.stat_result) -> Iterator[ComparedPath]:
    yield ComparedPath(path, 0, None, status)
    if stat.S_ISDIR(status.st_mode):
        yield from _below_deleted(stack, path)


def _below_deleted(stack: Stack, path: bytes) -> Iterator[ComparedPath]:
    todo = [path]
    while todo:
        at = todo.pop()
        with folder(stack.project, at) as fd, os.scandir(fd) as entries:
            found = [(os.fsencode(e.name), e.stat(follow_symlinks=False)) for e in entries]
        for name, status in sorted(found):
            yield ComparedPath(at + b"/" + name, 0, None, status)
            if stat.S_ISDIR(status.st_mode):
                todo.append(at + b"/" + name)
