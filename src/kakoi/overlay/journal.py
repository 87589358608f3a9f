"""The journal of `apply`: each step is written before it happens, so a killed apply can resume."""

import json
import os
from dataclasses import field
from pathlib import Path

from kakoi._support.late import dataclass

_Identity = tuple[int, ...]


@dataclass(slots=True)
class Journal:
    """A file of JSON lines. `name`: the temporary name of a file until it is complete."""

    path: Path
    name: bytes
    # As a dict, they keep their order.
    _folders: dict[bytes, None] = field(default_factory=dict)
    _known: dict[str, _Identity] = field(default_factory=dict)
    _touched: set[_Identity] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path, name: bytes) -> "Journal":
        """Read the existing journal; a killed process can have left a partial line."""
        journal = cls(path, name)
        text = path.read_bytes() if path.exists() else b""
        for line in text.split(b"\n"):
            try:
                entry = json.loads(line)
            except ValueError:
                continue
            if "in" in entry:
                journal._enter(os.fsencode(entry["in"]))
            elif "path" in entry:
                journal._known[entry["path"]] = tuple(entry["as"])
            else:
                journal._touched.add(tuple(entry["touched"]))
        return journal

    def last_folder(self) -> bytes | None:
        """Return the directory that can contain a partial file; None if nothing was started."""
        return next(reversed(self._folders), None)

    def was_in(self, folder: bytes) -> bool:
        """Tell if anything was done in the directory, so that it looks changed."""
        return folder in self._folders

    def enter(self, folder: bytes) -> None:
        """Record where the next file will be created or removed."""
        if folder != self.last_folder():
            self._enter(folder)
            self._write({"in": os.fsdecode(folder)})

    def _enter(self, folder: bytes) -> None:
        self._folders.pop(folder, None)
        self._folders[folder] = None

    def record(self, path: bytes, made: os.stat_result) -> None:
        """Record what is about to be put at the path, to recognize it later."""
        known = _identity(made)
        self._known[os.fsdecode(path)] = known
        self._write({"path": os.fsdecode(path), "as": known})

    def touch(self, status: os.stat_result) -> None:
        """Record that a hard link is about to be removed: the others will look changed."""
        known = _identity(status)
        if status.st_nlink > 1 and known not in self._touched:
            self._touched.add(known)
            self._write({"touched": known})

    def is_ours(self, path: bytes, status: os.stat_result) -> bool:
        """Tell if `apply` put this here, or removed one of its links, and nothing else changed."""
        known = _identity(status)
        return self._known.get(os.fsdecode(path)) == known or known in self._touched

    def _write(self, entry: dict[str, object]) -> None:
        line = b"\n" + json.dumps(entry).encode("ascii") + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)


def _identity(status: os.stat_result) -> _Identity:
    """Return what identifies a file on disk, whatever its name is."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)
