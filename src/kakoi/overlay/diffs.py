"""Changes as unified diffs in git's format, in bounded time whatever the files contain."""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from kakoi._support.late import dataclass
from kakoi.overlay.changes import Change, ChangeKind, FoundChange
from kakoi.overlay.directories import file, folder, split
from kakoi.overlay.layers import Stack

_CONTEXT = 3
# Larger files are reported like binary ones. With more differences than this, no shortest edit
# script is computed: the lines in between are replaced as a whole.
_MOST_BYTES = 4 << 20
_MOST_STEPS = 600
_NO_NEWLINE = b"\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Difference:
    """A change, and its diff as lines of bytes with quoted names; binary files have no hunks."""

    change: Change
    lines: tuple[bytes, ...]
    added: int = 0
    removed: int = 0
    is_binary: bool = False


def differences(stack: Stack, found: Iterable[FoundChange]) -> Iterator[Difference]:
    """Yield the diff of each change but those of directories, which a diff cannot express."""
    for each in found:
        change, pair = each.change, each.pair
        if change.kind is ChangeKind.MODIFIED and change.was != change.type:
            # Like git: a deletion and an addition.
            gone = replace(change, kind=ChangeKind.DELETED, type=change.was)
            come = replace(change, kind=ChangeKind.ADDED, was="")
            if change.was != "directory":
                yield _difference(stack, FoundChange(replace(pair, inside=None), gone))
            if change.type != "directory":
                yield _difference(stack, FoundChange(replace(pair, outside=None), come))
        elif change.type != "directory":
            yield _difference(stack, each)


def _difference(stack: Stack, found: FoundChange) -> Difference:
    change, pair = found.change, found.pair
    if change.type not in ("file", "symlink"):
        words = f"{change.type} {change.kind.value}: ".encode("ascii")
        return Difference(change, (words + quoted(os.fsencode(change.path)) + b"\n",))
    old: bytes | None = b""
    new: bytes | None = b""
    if pair.outside is not None:
        old = _content(stack.project, pair.path, pair.outside, force_open=False)
    if pair.inside is not None:
        new = _content(stack.layers[pair.layer], pair.path, pair.inside, force_open=True)
    head = list(_header(found))
    if old is None or new is None or b"\0" in old[:8192] or b"\0" in new[:8192]:
        names = [_name(change, side) for side in (b"a/", b"b/")]
        head.append(b"Binary files %s and %s differ\n" % (names[0], names[1]))
        return Difference(change, tuple(head), is_binary=True)
    body, added, removed = _hunks(_lines(old), _lines(new))
    if body:
        head += [b"--- %s\n" % _name(change, b"a/"), b"+++ %s\n" % _name(change, b"b/")]
    return Difference(change, (*head, *body), added, removed)


def _content(root: int, path: bytes, status: os.stat_result, *, force_open: bool) -> bytes | None:
    """Return the content of a file or the target of a link; None if too large or unreadable."""
    above, name = split(path)
    if stat.S_ISLNK(status.st_mode):
        with folder(root, above, force_open=force_open) as parent:
            return os.readlink(name, dir_fd=parent)
    if not stat.S_ISREG(status.st_mode):
        return b""
    if status.st_size > _MOST_BYTES:
        return None
    try:
        with (
            folder(root, above, force_open=force_open) as parent,
            file(parent, name, force_open=force_open) as fd,
        ):
            text = b""
            while len(text) <= _MOST_BYTES and (part := os.read(fd, 1 << 20)):
                text += part
            return text
    except PermissionError:
        return None


def _header(found: FoundChange) -> Iterator[bytes]:
    change, pair = found.change, found.pair
    path = os.fsencode(change.path)
    yield b"diff --git %s %s\n" % (quoted(b"a/" + path), quoted(b"b/" + path))
    old = None if pair.outside is None else _git_mode(pair.outside.st_mode)
    new = None if pair.inside is None else _git_mode(pair.inside.st_mode)
    if old is None and new is not None:
        yield b"new file mode %s\n" % new
    elif new is None and old is not None:
        yield b"deleted file mode %s\n" % old
    elif old != new and old is not None and new is not None:
        yield b"old mode %s\nnew mode %s\n" % (old, new)


def _git_mode(mode: int) -> bytes:
    if stat.S_ISLNK(mode):
        return b"120000"
    return b"100%03o" % (mode & 0o777)


def _name(change: Change, side: bytes) -> bytes:
    nothing = ChangeKind.ADDED if side == b"a/" else ChangeKind.DELETED
    if change.kind is nothing:
        return b"/dev/null"
    return quoted(side + os.fsencode(change.path))


def quoted(path: bytes) -> bytes:
    """Return a path as git writes it: quoted if it contains anything that could be misread."""
    if re.fullmatch(rb"[^\x00-\x1f\x7f-\xff\"\\]*", path):
        return path
    plain = re.sub(rb"[\"\\]", lambda hit: b"\\" + hit[0], path)
    shown = re.sub(rb"[\x00-\x1f\x7f-\xff]", lambda hit: b"\\%03o" % hit[0][0], plain)
    return b'"' + shown + b'"'


def _lines(text: bytes) -> list[bytes]:
    """Split into lines with their ends; only a newline ends a line."""
    return re.findall(rb"[^\n]*\n|[^\n]+", text)


# --- The shortest edit script ----------------------------------------------------------------


def _hunks(old: Sequence[bytes], new: Sequence[bytes]) -> tuple[list[bytes], int, int]:
    """Return the hunks of a unified diff, and the numbers of added and removed lines."""
    steps = list(_steps(old, new))
    body: list[bytes] = []
    added = removed = before = after = done = 0
    for start, end in _groups([at for at, step in enumerate(steps) if step[0] != b" "], len(steps)):
        part = steps[start:end]
        before += start - done  # The lines in between are unchanged.
        after += start - done
        gone = sum(step[0] != b"+" for step in part)
        come = sum(step[0] != b"-" for step in part)
        spans = _span(before, gone), _span(after, come)
        body.append(b"@@ -%s +%s @@\n" % spans)
        for sign, line in part:
            body.append(sign + line if line.endswith(b"\n") else sign + line + b"\n")
            if not line.endswith(b"\n"):
                body.append(_NO_NEWLINE)
            added += sign == b"+"
            removed += sign == b"-"
        before, after, done = before + gone, after + come, end
    return body, added, removed


def _span(before: int, count: int) -> bytes:
    start = before + 1 if count else before
    return b"%d" % start if count == 1 else b"%d,%d" % (start, count)


def _groups(changed: Sequence[int], end: int) -> Iterator[tuple[int, int]]:
    """Yield ranges of steps around the changed ones; ranges that touch are joined."""
    start = last = None
    for at in changed:
        if last is not None and start is not None and at - last > 2 * _CONTEXT:
            yield start, last + _CONTEXT + 1
            start = None
        start = max(0, at - _CONTEXT) if start is None else start
        last = at
    if start is not None and last is not None:
        yield start, min(end, last + _CONTEXT + 1)


def _steps(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    """Yield unchanged, removed and added lines, in order."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    for line in old[:head]:
        yield b" ", line
    yield from _middle(old[head : len(old) - tail], new[head : len(new) - tail])
    for line in old[len(old) - tail :]:
        yield b" ", line


def _middle(old: Sequence[bytes], new: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    path = _shortest_edit(old, new)
    if path is None:
        yield from ((b"-", line) for line in old)
        yield from ((b"+", line) for line in new)
        return
    x = y = 0
    for to_x, to_y in path:
        # Each step removes or adds one line; equal lines follow.
        if to_x - x > to_y - y:
            yield b"-", old[x]
            x += 1
        elif to_y - y > to_x - x:
            yield b"+", new[y]
            y += 1
        for line in old[x:to_x]:
            yield b" ", line
        x, y = to_x, to_y


def _shortest_edit(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]] | None:
    """Return the turning points of Myers' shortest edit script; None if it is too long."""
    furthest = {1: 0}
    trace: list[dict[int, int]] = []
    for cost in range(min(len(old) + len(new), _MOST_STEPS) + 1):
        for diagonal in range(-cost, cost + 1, 2):
            down = diagonal == -cost or (
                diagonal != cost and furthest[diagonal - 1] < furthest[diagonal + 1]
            )
            x = furthest[diagonal + 1] if down else furthest[diagonal - 1] + 1
            y = x - diagonal
            while x < len(old) and y < len(new) and old[x] == new[y]:
                x, y = x + 1, y + 1
            furthest[diagonal] = x
            if x >= len(old) and y >= len(new):
                return _backtrack(trace, x, y)
        trace.append({at: furthest[at] for at in range(-cost, cost + 1, 2)})
    return None


def _backtrack(trace: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    points = [(x, y)]
    for before in reversed(trace):
        diagonal = x - y
        # A step comes from whichever neighbour was further.
        less, more = before.get(diagonal - 1, -1), before.get(diagonal + 1, -1)
        diagonal, x = (diagonal + 1, more) if less < more else (diagonal - 1, less)
        y = x - diagonal
        points.append((x, y))
    return points[::-1]
