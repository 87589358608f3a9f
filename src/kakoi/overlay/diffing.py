"""Changes as unified diffs, in the words of git. However a file looks, it takes bounded time."""

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from kakoi.overlay.comparing import Found
from kakoi.overlay.trees import file, folder, split
from kakoi.overlay.values import Change, Kind
from kakoi.overlay.walking import Stack

_CONTEXT = 3
# Bigger files are named as binary ones are. Below it, more differences than that are not searched
# for the shortest way: the lines in between are replaced as a whole.
_MOST_BYTES = 4 << 20
_MOST_STEPS = 600
_NO_NEWLINE = b"\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Difference:
    """A change, and its lines as bytes; the names in them are quoted. Binary files have none."""

    change: Change
    lines: tuple[bytes, ...]
    added: int = 0
    removed: int = 0
    is_binary: bool = False


def differences(stack: Stack, found: Iterable[Found]) -> Iterator[Difference]:
    """Each change but those of directories, of which a diff has no words."""
    for each in found:
        change, pair = each.change, each.pair
        if change.kind is Kind.MODIFIED and change.was != change.type:
            # As git tells it: one thing is gone, and another has come.
            gone = replace(change, kind=Kind.DELETED, type=change.was)
            come = replace(change, kind=Kind.ADDED, was="")
            if change.was != "directory":
                yield _difference(stack, Found(replace(pair, inside=None), gone))
            if change.type != "directory":
                yield _difference(stack, Found(replace(pair, outside=None), come))
        elif change.type != "directory":
            yield _difference(stack, each)


def _difference(stack: Stack, found: Found) -> Difference:
    change, pair = found.change, found.pair
    if change.type not in ("file", "symlink"):
        words = f"{change.type} {change.kind.value}: ".encode("ascii")
        return Difference(change, (words + quoted(os.fsencode(change.path)) + b"\n",))
    old: bytes | None = b""
    new: bytes | None = b""
    if pair.outside is not None:
        old = _content(stack.project, pair.path, pair.outside, pry=False)
    if pair.inside is not None:
        new = _content(stack.layers[pair.layer], pair.path, pair.inside, pry=True)
    head = list(_header(found))
    if old is None or new is None or b"\0" in old[:8192] or b"\0" in new[:8192]:
        names = [_name(change, side) for side in (b"a/", b"b/")]
        head.append(b"Binary files %s and %s differ\n" % (names[0], names[1]))
        return Difference(change, tuple(head), is_binary=True)
    body, added, removed = _hunks(_lines(old), _lines(new))
    if body:
        head += [b"--- %s\n" % _name(change, b"a/"), b"+++ %s\n" % _name(change, b"b/")]
    return Difference(change, (*head, *body), added, removed)


def _content(root: int, path: bytes, status: os.stat_result, *, pry: bool) -> bytes | None:
    """What a diff compares: the text of a file, the target of a link; None if it is too big."""
    above, name = split(path)
    if stat.S_ISLNK(status.st_mode):
        with folder(root, above, pry=pry) as parent:
            return os.readlink(name, dir_fd=parent)
    if not stat.S_ISREG(status.st_mode):
        return b""
    if status.st_size > _MOST_BYTES:
        return None
    try:
        with folder(root, above, pry=pry) as parent, file(parent, name, pry=pry) as fd:
            text = b""
            while len(text) <= _MOST_BYTES and (part := os.read(fd, 1 << 20)):
                text += part
            return text
    except PermissionError:
        return None


def _header(found: Found) -> Iterator[bytes]:
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
    nothing = Kind.ADDED if side == b"a/" else Kind.DELETED
    if change.kind is nothing:
        return b"/dev/null"
    return quoted(side + os.fsencode(change.path))


def quoted(path: bytes) -> bytes:
    """A path as git writes it: in quotes if there is anything in it that could be misread."""
    if re.fullmatch(rb"[^\x00-\x1f\x7f-\xff\"\\]*", path):
        return path
    plain = re.sub(rb"[\"\\]", lambda hit: b"\\" + hit[0], path)
    shown = re.sub(rb"[\x00-\x1f\x7f-\xff]", lambda hit: b"\\%03o" % hit[0][0], plain)
    return b'"' + shown + b'"'


def _lines(text: bytes) -> list[bytes]:
    """Lines with their ends; only a newline ends one."""
    return re.findall(rb"[^\n]*\n|[^\n]+", text)


# --- The shortest way from one text to another -----------------------------------------------


def _hunks(old: Sequence[bytes], new: Sequence[bytes]) -> tuple[list[bytes], int, int]:
    """The hunks of a unified diff, and how many lines were added and removed."""
    steps = list(_steps(old, new))
    body: list[bytes] = []
    added = removed = before = after = done = 0
    for start, end in _groups([at for at, step in enumerate(steps) if step[0] != b" "], len(steps)):
        part = steps[start:end]
        before += start - done  # In between there are only lines that stay.
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
    """Ranges of steps around the changed ones, those that touch joined."""
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
    """Lines that stay, go and come, in order."""
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
    way = _shortest(old, new)
    if way is None:
        yield from ((b"-", line) for line in old)
        yield from ((b"+", line) for line in new)
        return
    x = y = 0
    for to_x, to_y in way:
        # Each step is one line less or more, and then all that is the same.
        if to_x - x > to_y - y:
            yield b"-", old[x]
            x += 1
        elif to_y - y > to_x - x:
            yield b"+", new[y]
            y += 1
        for line in old[x:to_x]:
            yield b" ", line
        x, y = to_x, to_y


def _shortest(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int]] | None:
    """The points where Myers' shortest edit script turns; None if it is too long to look for."""
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
                return _way_back(trace, x, y)
        trace.append({at: furthest[at] for at in range(-cost, cost + 1, 2)})
    return None


def _way_back(trace: Sequence[dict[int, int]], x: int, y: int) -> list[tuple[int, int]]:
    points = [(x, y)]
    for before in reversed(trace):
        diagonal = x - y
        # A step comes from whichever neighbour was further.
        less, more = before.get(diagonal - 1, -1), before.get(diagonal + 1, -1)
        diagonal, x = (diagonal + 1, more) if less < more else (diagonal - 1, less)
        y = x - diagonal
        points.append((x, y))
    return points[::-1]
