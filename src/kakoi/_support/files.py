"""Blocking reads and writes on shared descriptors, and removal of directory trees."""

import itertools
import os
import select
from typing import Final


def write_whole(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data`, even if another process has made the descriptor non-blocking."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            _wait(fd, select.POLLOUT)


def read_some(fd: int, most: int) -> bytes:
    """Return at least one byte, waiting if needed; empty at the end of the file."""
    while True:
        try:
            return os.read(fd, most)
        except BlockingIOError:
            _wait(fd, select.POLLIN)


def _wait(fd: int, event: int) -> None:
    # `poll`, because `select` cannot take a descriptor above 1023.
    waiting = select.poll()
    waiting.register(fd, event)
    waiting.poll()


_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove `path` and everything in it without following links. A missing path is not an error.

    OSError: something could not be removed.
    """
    above, name = os.path.split(os.fsencode(path))
    try:
        parent = os.open(above or b".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        fd = _open_shut(parent, name)
        try:
            empty(fd)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        os.unlink(name, dir_fd=parent)
    finally:
        os.close(parent)


def empty(folder: int) -> None:
    """Remove everything in an open directory.

    The number of descriptors does not grow with the depth: each directory is moved to the top
    before it is opened.
    """
    todo = _remove_files(folder)
    existing = set(todo)
    names = (name for name in (b"%d" % each for each in itertools.count()) if name not in existing)
    while todo:
        name = todo.pop()
        fd = _open_shut(folder, name)
        try:
            for each in _remove_files(fd):
                os.close(_open_shut(fd, each))  # A directory without permissions cannot be moved.
                todo.append(next(names))
                os.rename(each, todo[-1], src_dir_fd=fd, dst_dir_fd=folder)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=folder)


def _remove_files(folder: int) -> list[bytes]:
    """Remove everything but directories; return their names."""
    with os.scandir(folder) as entries:
        inside = [(os.fsencode(each.name), each.is_dir(follow_symlinks=False)) for each in entries]
    for name, is_folder in inside:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in inside if is_folder]


def _open_shut(parent: int, name: bytes) -> int:
    """Open a directory, changing its mode if its owner cannot enter it."""
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(held).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{held}", 0o700)
        return os.open(name, _FOLDER, dir_fd=parent)
    finally:
        os.close(held)
