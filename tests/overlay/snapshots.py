"""A directory tree as a value. The source in `SNAPSHOT` also runs inside sandboxes."""

from pathlib import Path
from typing import Any

SNAPSHOT = """
import hashlib, os, stat
def snapshot(root):
    found, inodes = {}, {}
    for above, folders, files in os.walk(root):
        for name in [".", *folders, *files] if above == root else [*folders, *files]:
            path = os.path.join(above, name)
            status = os.lstat(path)
            kind = stat.S_IFMT(status.st_mode)
            what = [kind, 0 if kind == stat.S_IFLNK else status.st_mode & 0o1777]
            if kind == stat.S_IFLNK:
                what.append(os.readlink(path))
            if kind == stat.S_IFREG:
                with open(path, "rb") as file:
                    what += [status.st_size, hashlib.sha256(file.read()).hexdigest()]
                inodes.setdefault(status.st_ino, []).append(os.path.relpath(path, root))
            found[os.path.relpath(path, root)] = what
    for names in inodes.values():
        for name in names:
            found[name].append(sorted(names))
    return found
"""


def snapshot(root: Path) -> dict[str, list[Any]]:
    """Return the contents of the tree: types, modes, bytes, link targets, and hard links."""
    space: dict[str, Any] = {}
    exec(SNAPSHOT, space)  # noqa: S102 - our own source, which must also run elsewhere
    found: dict[str, list[Any]] = space["snapshot"](str(root))
    return found


def exactly(root: Path) -> dict[str, tuple[int, ...]]:
    """Return all metadata of each path except the access time, so that any change is visible."""
    found = {}
    for path in [root, *root.rglob("*")]:
        status = path.lstat()
        names = ("st_mode", "st_ino", "st_nlink", "st_uid", "st_gid", "st_size")
        times = ("st_mtime_ns", "st_ctime_ns")
        found[str(path)] = tuple(int(getattr(status, name)) for name in (*names, *times))
    return found
