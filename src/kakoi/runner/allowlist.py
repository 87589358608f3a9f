"""Finds the files of the allowed programs, inside the sandbox, along PATH.

A name stands for its file, with links followed, and for every file needed to run it: the loader
that an ELF file names, the interpreter on the first line of a script, and so on.
Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import os
import struct

from kakoi.runner.keeper import find_program
from kakoi.runner.restrictions import EXECUTE, READ_FILE, REFER

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from kakoi.runner.resident_keeper import CommandRecord

    Words = tuple[list[bytes], dict[bytes, bytes], bytes]

_USUAL = """/bin /sbin /usr/bin /usr/sbin /usr/local/bin /usr/local/sbin /usr/games
    /usr/local/games /usr/libexec /usr/local/libexec""".split()
_FIRST_LINE = 256
_PT_INTERP = 3
_BIGGEST_TABLE = 64 * 1024
# The interpreter of a script can be a script itself. The kernel allows fewer levels than this.
_DEPTH = 6
# The reasons why a file was not executed, as they appear in answers.
UNLISTED, WRITABLE = "unlisted", "writable"
# A shell could not execute some program. Only the shell knows which.
SOMETHING = "something"
_SHELLS_STATUS = 126


class Programs:
    """The files of the programs `names`. Names without a file are ignored.

    `folders` contain programs. Other files in them must not be readable either, because the loader
    could run them. Files in a `writable` folder are never allowed: commands could change them.
    `helpers`: patterns of folders with helper programs of allowed programs.
    """

    def __init__(
        self,
        names: Iterable[str],
        path: str,
        writable: Iterable[str] = (),
        helpers: Iterable[str] = (),
    ) -> None:
        self._path = [folder for folder in path.split(":") if folder.startswith("/")]
        self._writable = [os.path.realpath(folder) + "/" for folder in writable]
        every = {os.path.realpath(folder) for folder in (*_USUAL, *self._path)}
        self.folders = {folder for folder in every if not self._is_writable(folder)}
        self.files: set[str] = set()
        for name in names:
            for file in self._named(name):
                self._take(file, _DEPTH)
        import glob  # Imported here: it loads regular expressions, and few sandboxes need it.

        own = {os.path.realpath(found) for pattern in helpers for found in glob.glob(pattern)}
        self._executable = self.files | own

    def keeps_out(self, program: bytes) -> str:
        """Return which rule prevented this file from being executed: UNLISTED or WRITABLE.

        Never a guess: returns an empty string if the file could not have been executed anyway.
        """
        file = os.path.realpath(os.fsdecode(program))
        if any((file + "/").startswith(each + "/") for each in self._executable):
            return ""
        if self._is_writable(file):
            # `access` fails for every file on a noexec mount, so check the mode instead.
            return WRITABLE if os.path.isfile(file) and _may_by_mode(file) else ""
        return UNLISTED if os.path.isfile(file) and os.access(file, os.X_OK) else ""

    def _is_writable(self, path: str) -> bool:
        return (path + "/").startswith(tuple(self._writable))

    def _named(self, name: str) -> list[str]:
        """Return every file of that name on PATH; the command decides which one it uses."""
        paths = [name] if name.startswith("/") else [f"{each}/{name}" for each in self._path]
        return [path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK)]

    def _take(self, path: str, depth: int) -> None:
        file = os.path.realpath(path)
        if file in self.files or not depth or self._is_writable(file):
            return
        self.files.add(file)
        for needed in _needs(file):
            for each in self._named(needed):
                self._take(each, depth - 1)

    def grants(self) -> list[tuple[str, int]]:
        """Return Landlock rights: execute these files, and read everything but other programs."""
        granted = [("/", REFER)]
        granted += [(folder, READ_FILE) for folder in _outside("/", self.folders)]
        return granted + [(file, EXECUTE | READ_FILE) for file in sorted(self._executable)]


def find_programs(restrictions: dict[str, Any], path: str, shell: str) -> Programs | None:
    """Find the files of the requested programs, and add their Landlock rules to `restrictions`.

    Returns None if there is no allowlist.
    """
    wanted = restrictions.get("programs")
    if wanted is None:
        return None
    found = Programs([*wanted["names"], shell], path, wanted["writable"], wanted["helpers"])
    restrictions["allowlist"] = {"handled": EXECUTE | READ_FILE | REFER, "paths": found.grants()}
    return found


def kept_out(
    programs: Programs | None, record: CommandRecord, words: Words, *, is_text: bool
) -> str:
    """Return how the allowlist affected a failed command: UNLISTED, WRITABLE or SOMETHING.

    Empty if that is not known.
    `words`: the command's argv, environment and working directory.
    """
    if programs is None:
        return ""
    if is_text:
        return SOMETHING if (record.kind, record.number) == ("exited", _SHELLS_STATUS) else ""
    if (record.kind, record.number) != ("no_start", errno.EACCES):
        return ""
    argv, env, cwd = words
    try:
        found = find_program(argv[0], env.get(b"PATH", os.defpath.encode()))
    except OSError:
        return ""
    return programs.keeps_out(os.path.join(cwd, found))


def _may_by_mode(file: str) -> bool:
    try:
        status = os.stat(file)
    except OSError:
        return False
    is_ours = status.st_uid == os.getuid() and status.st_mode & 0o100 != 0
    return is_ours or status.st_mode & 0o111 == 0o111


def _outside(folder: str, hidden: set[str]) -> Iterator[str]:
    below = folder.rstrip("/") + "/"
    if not any(each.startswith(below) for each in hidden):
        yield folder
        return
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return
    for entry in entries:
        if entry.path not in hidden and not entry.is_symlink():
            if entry.is_dir(follow_symlinks=False):
                yield from _outside(entry.path, hidden)
            else:
                yield entry.path


def _needs(file: str) -> list[str]:
    """Return the programs that the kernel, or `env`, starts to run this file."""
    try:
        with open(file, "rb") as opened:
            head = opened.read(_FIRST_LINE)
            if head.startswith(b"\x7fELF"):
                return _loader(opened.fileno(), head)
    except (OSError, struct.error, IndexError, OverflowError):  # Unreadable or malformed.
        return []
    if not head.startswith(b"#!"):
        return []
    words = os.fsdecode(head[2:].split(b"\n")[0]).split()
    by_env = words[1:] if words and os.path.basename(words[0]) == "env" else []
    return words[:1] + [word for word in by_env if word[0] != "-" and "=" not in word][:1]


def _loader(fd: int, head: bytes) -> list[str]:
    """Return the loader that an ELF file names."""
    order, is_64 = "<" if head[5] == 1 else ">", head[4] == 2
    word, table_at, size_at = ("Q", 32, 54) if is_64 else ("I", 28, 42)
    offset_at, length_at = (8, 32) if is_64 else (4, 16)
    (start,) = struct.unpack_from(order + word, head, table_at)
    size, count = struct.unpack_from(order + "HH", head, size_at)
    table = os.pread(fd, min(size * count, _BIGGEST_TABLE), start)
    for at in range(0, len(table) - length_at - 8, size or 1):
        if struct.unpack_from(order + "I", table, at)[0] == _PT_INTERP:
            (where,) = struct.unpack_from(order + word, table, at + offset_at)
            (length,) = struct.unpack_from(order + word, table, at + length_at)
            return [os.fsdecode(os.pread(fd, min(length, 4096), where).rstrip(b"\0"))]
    return []
