"""What apply does, written down before it does it: after a kill the next one knows."""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

_Identity = tuple[int, ...]


@dataclass(slots=True)
class Journal:
    """Lines of JSON. `name`: what a file is called until it is whole."""

    path: Path
    name: bytes
    # As a dict, they keep their order.
    _folders: dict[bytes, None] = field(default_factory=dict)
    _known: dict[str, _Identity] = field(default_factory=dict)
    _touched: set[_Identity] = field(default_factory=set)

    @classmethod
    def read(cls, path: Path, name: bytes) -> "Journal":
        """What is there already; where somebody was killed, there may be half a line."""
        journal = cls(path, name)
        text = path.read_bytes() if path.exists() else b""
        for line in text.split(b"\n"):
            try:
                told = json.loads(line)
            except ValueError:
                continue
            if "in" in told:
                journal._enter(os.fsencode(told["in"]))
            elif "path" in told:
                journal._known[told["path"]] = tuple(told["as"])
            else:
                journal._touched.add(tuple(told["touched"]))
        return journal

    def last_folder(self) -> bytes | None:
        """The directory in which half a file may lie; None if nothing was ever begun."""
        return next(reversed(self._folders), None)

    def was_in(self, folder: bytes) -> bool:
        """Has anything been done in the directory? Then it looks changed."""
        return folder in self._folders

    def enter(self, folder: bytes) -> None:
        """Say where the next file will be made, or removed."""
        if folder != self.last_folder():
            self._enter(folder)
            self._write({"in": os.fsdecode(folder)})

    def _enter(self, folder: bytes) -> None:
        self._folders.pop(folder, None)
        self._folders[folder] = None

    def record(self, path: bytes, made: os.stat_result) -> None:
        """Say what is about to be put at the path: later it is known as ours."""
        known = _identity(made)
        self._known[os.fsdecode(path)] = known
        self._write({"path": os.fsdecode(path), "as": known})

    def touch(self, status: os.stat_result) -> None:
        """Say that a file with other names is about to lose one: they will look changed."""
        known = _identity(status)
        if status.st_nlink > 1 and known not in self._touched:
            self._touched.add(known)
            self._write({"touched": known})

    def is_ours(self, path: bytes, status: os.stat_result) -> bool:
        """Was this put there by us, or lost a name to us, and was nothing else since?"""
        known = _identity(status)
        return self._known.get(os.fsdecode(path)) == known or known in self._touched

    def _write(self, told: dict[str, object]) -> None:
        line = b"\n" + json.dumps(told).encode("ascii") + b"\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        fd = os.open(self.path, flags, 0o600)
        try:
            os.write(fd, line)
        finally:
            os.close(fd)


def _identity(status: os.stat_result) -> _Identity:
    """A file as it is on the disk, whatever name it has by now."""
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode)
