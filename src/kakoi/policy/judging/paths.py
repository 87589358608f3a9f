"""Where a path points, from its text alone: inside the workspace, outside, a device.

No file is examined, so symbolic links are not followed here: the sandbox enforces that boundary.
The text is enough for a clear early answer.
"""

import posixpath
import re
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Final

from kakoi._support.late import pattern
from kakoi.policy.parsing.words import Expands, Expansion, Literal, Word

# Always writable: temporary files, and the folders of a task's container.
SCRATCH: Final = ("/tmp", "/var/tmp", "/dev/shm", "/workspace/project", "/workspace/tmp")  # noqa: S108 (judged, not used)
_HARMLESS_DEVICES: Final = frozenset(
    "/dev/null /dev/stdout /dev/stderr /dev/stdin /dev/tty /dev/zero /dev/random /dev/urandom "
    "/dev/full".split()
)
_GIT_INTERNALS: Final = pattern(
    r"(?:^|/)\.git(?:/(?:hooks|config(?:\.worktree)?|commondir|info|modules|worktrees|objects|refs)(?:/|$)|/?$)"
    # git takes a directory with a HEAD for a repository with settings of its own.
    r"|/HEAD$",
    # On some systems `.GIT` is `.git`.
    re.IGNORECASE,
)
# A pattern that bash before 5.2 and every other shell can expand to the parent directory.
_CLIMBING: Final = pattern(r"(?:^|/)(\.[^/]*[*?\[][^/]*)(?=/|$)")


class Location(StrEnum):
    """What a path points to, as far as its text shows."""

    INSIDE = "inside"
    OUTSIDE = "outside"
    UNCLEAR = "unclear"
    NETWORK = "network"
    DEVICE = "device"
    GIT = "git"


def locate(word: Word, cwd: str | None, roots: tuple[str, ...]) -> Location:
    """Return where a write to `word` would go. `cwd` is None if the directory is unknown."""
    known = word.shape if word.shape is not None else word.prefix
    if word.tilde:
        return Location.OUTSIDE
    if re.match(r"/dev/(?:tcp|udp)(?:/|$)", known) or (word.shape is None and known == "/dev/"):
        return Location.NETWORK
    if not known:
        return Location.UNCLEAR if word.shape is None else Location.INSIDE
    if cwd is None and not known.startswith("/"):
        return Location.UNCLEAR
    if word.glob and any(fnmatchcase("..", name) for name in _CLIMBING.findall(known)):
        return Location.UNCLEAR
    path = absolute(known, cwd or "/")
    if within(path, "/dev") and not within(path, "/dev/shm"):  # noqa: S108
        return _device(path)
    if not _settled(word, path, roots):
        return Location.UNCLEAR
    if not any(within(path, root) for root in (*roots, *SCRATCH)):
        return Location.OUTSIDE
    return Location.GIT if _GIT_INTERNALS.search(path) else Location.INSIDE


def _settled(word: Word, path: str, roots: tuple[str, ...]) -> bool:
    """Whether the known part of the word is enough to say where it points."""
    if word.shape is not None:
        return True
    first = word.parts[0]
    begins_unknown = isinstance(first, Expansion) and first.kind is not Expands.SHAPE
    literals = "".join(part.text for part in word.parts if isinstance(part, Literal))
    if begins_unknown or ".." in literals:
        return False
    # `/` or `/t` could still go anywhere; a whole first directory cannot.
    return "/" in word.prefix.lstrip("/") or any(within(path, root) for root in roots)


def _device(path: str) -> Location:
    if path in _HARMLESS_DEVICES or re.fullmatch(r"/dev/fd/\d+", path):
        return Location.INSIDE
    return Location.DEVICE


def absolute(path: str, cwd: str) -> str:
    """Return the path, absolute and normalized, from its text alone."""
    joined = posixpath.normpath(posixpath.join(cwd, path))
    return "/" + joined.lstrip("/")


def within(path: str, root: str) -> bool:
    """Whether `path` is `root` or below it. Always False if `root` is `/` or empty."""
    return root not in ("", "/") and (path == root or path.startswith(root.rstrip("/") + "/"))
