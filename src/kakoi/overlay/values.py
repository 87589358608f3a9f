"""What is different inside, and what came of taking it over."""

import stat
from dataclasses import dataclass
from enum import StrEnum

# Of a file the bits that are taken over: never those that let it run as somebody else.
FILE_MODE = 0o1777
FOLDER_MODE = 0o3777


class Kind(StrEnum):
    """What happened to a path, seen from the project."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One path of the project that is not inside what it is outside. Times alone do not count.

    `path`: below the project, `.` for itself; bytes that are no text are surrogates.
    `type`: `file`, `directory`, `symlink`, `fifo`, `socket` or `device`; of what was deleted, if it
        was. `was`: the type in the project, empty if there is nothing.
    `mode`, `was_mode`: permissions inside and in the project; None if there is nothing.
    `renamed_from`: a deleted file with the same bytes.
    `conflict`: what happened in the project meanwhile; empty if nothing did.
    `never_applied`: why it stays in here; empty if it does not.
    """

    path: str
    kind: Kind
    type: str
    was: str = ""
    mode: int | None = None
    was_mode: int | None = None
    size: int = 0
    renamed_from: str = ""
    conflict: str = ""
    never_applied: str = ""


@dataclass(frozen=True, slots=True)
class Applied:
    """What was taken over into the project, and what was not: paths and why."""

    done: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Mounts:
    """What to mount on the project: directories of `folder`, the one that is written to first."""

    folder: str
    stack: tuple[str, ...]


def type_of(mode: int) -> str:
    """The word for what is there."""
    names = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symlink",
        stat.S_IFIFO: "fifo",
        stat.S_IFSOCK: "socket",
    }
    return names.get(stat.S_IFMT(mode), "device")


def permissions(mode: int) -> int:
    """What of a mode counts, and is taken over."""
    return mode & (FOLDER_MODE if stat.S_ISDIR(mode) else FILE_MODE)
