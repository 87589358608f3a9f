"""Watches files with inotify and reports what happens to them, as far as the client reads.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import os
import stat
import struct

from kakoi.runner.file_trees import DIRECTORY

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from kakoi.runner.file_trees import Work

_MODIFY, _ATTRIB, _CLOSE_WRITE, _MOVED_FROM, _MOVED_TO = 0x2, 0x4, 0x8, 0x40, 0x80
_CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_UNMOUNT, _OVERFLOW, _IGNORED, _IS_DIRECTORY = 0x2000, 0x4000, 0x8000, 0x40000000
_ONLY_DIRECTORIES = 0x01000000
_WANTED = (
    _MODIFY | _ATTRIB | _CLOSE_WRITE | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF
    | _MOVE_SELF | _ONLY_DIRECTORIES
)  # fmt: skip
_HEAD = struct.Struct("iIII")
_READ_BYTES = 4096
_LONGEST_PATH = 4096
# Directories that are gone, are no longer directories, or cannot be read.
_PASSED_OVER = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES)


class Inotify:
    """The inotify instance of one watch."""

    def __init__(self) -> None:
        try:
            import ctypes

            self._libc = ctypes.CDLL(None, use_errno=True)
            self._errno = ctypes.get_errno
            self.fd: int = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        except (ImportError, AttributeError):
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from None
        if self.fd < 0:
            raise self._error("max_user_instances")

    def add(self, directory: int) -> int:
        """Watch an open directory. By descriptor: its name may stand for something else by now."""
        path = b"/proc/self/fd/%d" % directory
        found: int = self._libc.inotify_add_watch(self.fd, path, _WANTED)
        if found < 0:
            raise self._error("max_user_watches")
        return found

    def remove(self, watch: int) -> None:
        self._libc.inotify_rm_watch(self.fd, watch)

    def events(self) -> Iterator[tuple[int, int, str]]:
        """Yield the events that are there: the watch, what happened, and the name."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except BlockingIOError:
            return
        at = 0
        while at < len(data):
            watch, mask, _cookie, size = _HEAD.unpack_from(data, at)
            at += _HEAD.size
            yield watch, mask, os.fsdecode(data[at : at + size].rstrip(b"\0"))
            at += size

    def close(self) -> None:
        os.close(self.fd)

    def _error(self, setting: str) -> OSError:
        code: int = self._errno()
        if code in (errno.ENOSPC, errno.EMFILE):
            return OSError(code, f"the kernel allows no more watches (fs.inotify.{setting})")
        return OSError(code, os.strerror(code))


def watching(path: str, *, recursive: bool) -> Work:
    """Yield what happens to a file, or to a directory and its entries, until it is gone."""
    root = os.path.realpath(path)
    only = ""
    if not stat.S_ISDIR(os.stat(root).st_mode):
        # A file is watched through its directory: to write it anew is often to replace it.
        root, only = os.path.split(root)
    inotify = Inotify()
    try:
        yield from _Watch(inotify, root, only, recursive=recursive and not only).run()
    finally:
        inotify.close()


class _Watch:
    """`only`: report nothing but this entry of `root`."""

    def __init__(self, inotify: Inotify, root: str, only: str, *, recursive: bool) -> None:
        self._inotify = inotify
        self._root = root
        self._only = only
        self._recursive = recursive
        self._identity = (0, 0)
        self._paths: dict[int, str] = {}
        self._last: list[Any] = []

    def run(self) -> Work:
        root = os.open(self._root, DIRECTORY)
        try:
            found = os.fstat(root)
            self._identity = found.st_dev, found.st_ino
            # An error here is the caller's to know; below, unreadable directories are passed over.
            self._paths[self._inotify.add(root)] = ""
        finally:
            os.close(root)  # An open directory would not report its own removal.
        if self._recursive:
            yield from self._cover("", is_new=False)
        while True:
            yield self._inotify.fd
            self._last = []
            for watch, mask, name in self._inotify.events():
                if mask & _OVERFLOW:
                    raise OSError(errno.EOVERFLOW, "events were lost: more happened than was read")
                if self._paths.get(watch) == "" and mask & (_DELETE_SELF | _MOVE_SELF | _UNMOUNT):
                    yield ["renamed" if mask & _MOVE_SELF else "removed", ""]
                    return
                yield from self._report(watch, mask, name)

    def _report(self, watch: int, mask: int, name: str) -> Work:
        if mask & _IGNORED:
            self._paths.pop(watch, None)
        folder = self._paths.get(watch)
        if folder is None or (not name and (folder or not mask & _ATTRIB)):
            return  # What a directory says of itself, the one above it says too.
        path = f"{folder}/{name}" if folder else name
        if self._only and path != self._only:
            return
        is_directory = bool(mask & _IS_DIRECTORY)
        if is_directory and self._recursive and mask & _MOVED_FROM:
            self._forget(path)
        for kind in _kinds(mask):
            event = [kind, "" if self._only else path]
            if event != self._last:  # A file is usually modified many times before it is closed.
                self._last = event
                yield event
        if is_directory and self._recursive and mask & (_MOVED_TO | _CREATE):
            yield from self._cover(path, is_new=True)

    def _cover(self, path: str, *, is_new: bool) -> Work:
        """Watch a directory and all below it. What is in a new one was made unnoticed."""
        found = [path]
        while found:
            folder = found.pop()
            try:
                fd = self._open(folder)
            except OSError as error:
                if error.errno in _PASSED_OVER:
                    continue
                raise
            try:
                for name, kind in self._begin(fd, folder):
                    below = f"{folder}/{name}" if folder else name
                    if is_new:
                        yield ["created", below]
                    if is_new and kind == "file":
                        yield ["written", below]
                    if kind == "directory":
                        found.append(below)
                    yield None
            finally:
                os.close(fd)

    def _begin(self, fd: int, folder: str) -> Iterator[tuple[str, str]]:
        """Watch an open directory, then yield its entries: none can be missed in between."""
        if len(os.fsencode(folder)) > _LONGEST_PATH:
            raise OSError(errno.ENAMETOOLONG, "the tree is deeper than the longest path")
        self._paths[self._inotify.add(fd)] = folder
        with os.scandir(fd) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    yield entry.name, "directory"
                else:
                    yield entry.name, "file" if entry.is_file(follow_symlinks=False) else "other"

    def _open(self, folder: str) -> int:
        """Open a directory of the tree without following links."""
        fd = os.open(self._root, DIRECTORY)
        try:
            found = os.fstat(fd)
            if (found.st_dev, found.st_ino) != self._identity:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            for name in filter(None, folder.split("/")):
                below = os.open(name, DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)
                os.close(fd)
                fd = below
        except OSError:
            os.close(fd)
            raise
        return fd

    def _forget(self, path: str) -> None:
        """A directory has another name now: stop watching it and all below."""
        below = f"{path}/"
        for watch, folder in list(self._paths.items()):
            if folder == path or folder.startswith(below):
                del self._paths[watch]
                self._inotify.remove(watch)


def _kinds(mask: int) -> Iterator[str]:
    if mask & (_CREATE | _MOVED_TO):
        yield "created"
    if mask & (_MODIFY | _CLOSE_WRITE) or (mask & _MOVED_TO and not mask & _IS_DIRECTORY):
        yield "written"
    if mask & _MOVED_FROM:
        yield "renamed"
    if mask & _DELETE:
        yield "removed"
    if mask & _ATTRIB:
        yield "mode_changed"
