"""Removes trees that strangers have made: however deep, and whatever is shut in them."""

import itertools
import os
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: str | os.PathLike[str]) -> None:
    """Remove `path` and all that is in it; links are not followed. What is not there is removed.

    OSError: something stays.
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
    """Remove all that is in an open directory.

    However deep it is, it costs no more descriptors: each directory is moved to the top before it
    is opened.
    """
    todo = _remove_files(folder)
    given = set(todo)
    names = (name for name in (b"%d" % each for each in itertools.count()) if name not in given)
    while todo:
        name = todo.pop()
        fd = _open_shut(folder, name)
        try:
            for each in _remove_files(fd):
                os.close(_open_shut(fd, each))  # One that is shut cannot be moved.
                todo.append(next(names))
                os.rename(each, todo[-1], src_dir_fd=fd, dst_dir_fd=folder)
        finally:
            os.close(fd)
        os.rmdir(name, dir_fd=folder)


def _remove_files(folder: int) -> list[bytes]:
    """Remove all but the directories, whose names it returns."""
    with os.scandir(folder) as entries:
        inside = [(os.fsencode(each.name), each.is_dir(follow_symlinks=False)) for each in entries]
    for name, is_folder in inside:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in inside if is_folder]


def _open_shut(parent: int, name: bytes) -> int:
    """Open a directory, also one that its owner may not enter."""
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(held).st_mode & 0o700 != 0o700:
            os.chmod(f"/proc/self/fd/{held}", 0o700)
        return os.open(name, _FOLDER, dir_fd=parent)
    finally:
        os.close(held)
