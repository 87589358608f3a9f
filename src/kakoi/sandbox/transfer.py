"""Copies files and directories between this machine and a sandbox, in parts of bounded size.

What comes out of a sandbox is not trusted: names are checked, and nothing here is followed.
"""

import asyncio
import contextlib
import errno
import logging
import os
import posixpath
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from kakoi._support.asyncio import wait_done
from kakoi._support.text import short_repr
from kakoi.backends.workspace import is_within
from kakoi.channel.api import MIB, Channel, FileInfo
from kakoi.errors import ConfigurationError, FileError, SandboxError

_log = logging.getLogger(__name__)
_PART_BYTES: Final = MIB
_AT_ONCE: Final = 8
_READING: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY
_DEEPEST: Final = 1024
MOST_FILES: Final = 1_000_000
_Item = TypeVar("_Item")


# --- Paths of this machine -------------------------------------------------------------------


def _below(path: str, workspace: str) -> Sequence[str] | None:
    """Return the names that lead from the workspace to an absolute path; None if it is elsewhere.

    Commands can put a link there at any time, so these names must not be followed.
    """
    parts = Path(path).parts
    for count in range(1, len(parts) + 1):
        real = os.path.realpath(os.path.join(*parts[:count]))
        if is_within(real, workspace):
            inside = os.path.relpath(real, workspace).split(os.sep) if real != workspace else []
            return [*inside, *parts[count:]]
    return None


@contextlib.contextmanager
def _opened_below(
    path: str, names: Sequence[str], workspace: str, flags: int, *, make: bool = False
) -> Iterator[int]:
    """Open what is at these names in the workspace, following no link. `make`: directories."""
    step = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(workspace, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in names or ["."]:
            if make:
                _make_folder(name, folder)
            last = name is names[-1] if names else True
            try:
                below = os.open(name, flags | os.O_NOFOLLOW if last else step, dir_fd=folder)
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                    raise FileError(
                        f"local {short_repr(path)}: {error.strerror}",
                        number=error.errno or 0,
                        path=path,
                    ) from error
                raise ConfigurationError(
                    f"local is {short_repr(path)}, which leads through a link or a file",
                    hint="links in the workspace are not followed: commands can change them",
                ) from None
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


def _opened_source(path: str, workspace: str) -> contextlib.AbstractContextManager[int]:
    """Open the file or directory to copy."""
    names = _below(os.path.abspath(path), workspace)
    if names is None:
        return _opened(path, _READING)
    return _opened_below(path, names, workspace, _READING | os.O_CLOEXEC)


@contextlib.contextmanager
def _opened_parent(path: str, workspace: str) -> Iterator[int]:
    """Open the directory to copy into; make it if it is missing."""
    flags = os.O_PATH | os.O_DIRECTORY
    names = _below(path, workspace)
    if names is not None:
        with _opened_below(path, names, workspace, flags | os.O_CLOEXEC, make=True) as folder:
            yield folder
        return
    with _naming(path):
        os.makedirs(path, exist_ok=True)
    with _opened(path, flags) as folder:
        yield folder


def _real_path(descriptor: int) -> str:
    """Return where the kernel finds what is open, whatever name it was opened by."""
    return os.readlink(f"/proc/self/fd/{descriptor}")


# --- Into the sandbox ------------------------------------------------------------------------


async def send_tree(channel: Channel, source: str, target: str, *, workspace: str) -> None:
    """Copy a local file, or a directory with everything in it, to `target`.

    `workspace`: where commands can write; a `source` there must not be or lead through a link.
    """
    with _opened_source(source, workspace) as root:
        if not stat.S_ISDIR(os.fstat(root).st_mode):
            await channel.make_dir(posixpath.dirname(target))
            await _send_file(channel, root, source, target)
            return
        folders, files = await asyncio.to_thread(_local_tree, root, source)
        for folder in folders:
            await channel.make_dir(posixpath.normpath(posixpath.join(target, folder)))

        async def send(relative: str) -> None:
            path = os.path.join(source, relative)
            with _opened(relative, _READING, root) as descriptor:
                _check_within(descriptor, root, path)
                await _send_file(channel, descriptor, path, posixpath.join(target, relative))

        await _for_each(files, send)


def _local_tree(root: int, source: str) -> tuple[list[str], list[str]]:
    """Return the directories and files in an open directory, relative to it."""
    folders, files = ["."], []
    for where, below, names, folder in os.fwalk(".", dir_fd=root):
        for name in [*below, *names]:
            relative = os.path.normpath(os.path.join(where, name))
            kind = _kind(name, folder, root, os.path.join(source, relative))
            if kind == "folder":
                folders.append(relative)
            elif kind == "file":
                files.append(relative)
            else:
                full = os.path.join(source, relative)
                _log.warning("not copied, because it is not a file: %s", short_repr(full))
    return folders, files


def _kind(name: str, folder: int, root: int, path: str) -> str:
    """Return "file", also for a link to one in `root`, "folder", or "" for anything else."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISLNK(found.st_mode):
            return "folder" if stat.S_ISDIR(found.st_mode) else _file_or_none(found.st_mode)
        descriptor = os.open(name, os.O_PATH | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    try:
        _check_within(descriptor, root, path)
        return _file_or_none(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)


def _file_or_none(mode: int) -> str:
    return "file" if stat.S_ISREG(mode) else ""


def _check_within(descriptor: int, root: int, path: str) -> None:
    """Raise ConfigurationError if what is open is not in the open directory `root`."""
    if not is_within(_real_path(descriptor), _real_path(root)):
        raise ConfigurationError(
            f"{short_repr(path)} is a link that leads out of the directory",
            hint="upload what it points to by itself",
        )


async def _send_file(channel: Channel, descriptor: int, source: str, target: str) -> None:
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        raise ConfigurationError(f"local is {short_repr(source)}, which is not a regular file")
    mode = stat.S_IMODE(found.st_mode) & 0o777
    if found.st_size <= _PART_BYTES:
        data = await asyncio.to_thread(os.read, descriptor, _PART_BYTES + 1)
        if len(data) <= _PART_BYTES:
            await channel.write_file(target, data, mode=mode)
            return
        os.lseek(descriptor, 0, os.SEEK_SET)
    await channel.write_file(target, _parts(descriptor), mode=mode)


async def _parts(descriptor: int) -> AsyncIterator[bytes]:
    while data := await asyncio.to_thread(os.read, descriptor, _PART_BYTES):
        yield data


# --- Out of the sandbox ----------------------------------------------------------------------


async def receive_tree(channel: Channel, source: str, target: str, *, workspace: str) -> None:
    """Copy a file of the sandbox, or a directory with everything in it, to `target` here.

    `workspace`: where commands can write; a `target` there must not be or lead through a link.
    """
    found = await channel.stat_file(source)
    place = Path(os.path.abspath(target))  # noqa: ASYNC240 - it does not touch the disk
    if await asyncio.to_thread(place.is_dir):
        place /= _checked_name(posixpath.basename(source) or "root")
    if found.kind == "link":
        is_folder = await _is_folder(channel, source)
    else:
        is_folder = found.kind == "directory"
    name = place.name
    with _opened_parent(str(place.parent), workspace) as folder:
        if not is_folder:
            await _receive_file(channel, source, folder, name, found.mode)
            return
        entries = await channel.list_files(source, depth=_DEEPEST, limit=MOST_FILES)
        _make_folder(name, folder)
        with _opened(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, folder) as root:
            await _receive_entries(channel, source, entries, root)


async def _is_folder(channel: Channel, path: str) -> bool:
    try:
        await channel.list_files(path, limit=0)
    except NotADirectoryError:
        return False
    except OSError as error:
        if error.errno != errno.EOVERFLOW:
            raise
    return True


async def _receive_entries(
    channel: Channel, source: str, entries: Sequence[FileInfo], root: int
) -> None:
    prefix = source.rstrip("/") + "/"
    files: list[tuple[FileInfo, list[str]]] = []
    for entry in entries:
        if not entry.path.startswith(prefix):
            raise SandboxError(f"the sandbox names {short_repr(entry.path)} as a part of {source}")
        names = [_checked_name(name) for name in entry.path[len(prefix) :].split("/")]
        if entry.kind == "directory":
            with _folder_of(root, names) as folder:
                _make_folder(names[-1], folder)
        elif entry.kind == "file":
            files.append((entry, names))
        else:
            _log.warning("not copied, because it is not a file: %s", short_repr(entry.path))

    async def receive(item: tuple[FileInfo, list[str]]) -> None:
        entry, names = item
        with _folder_of(root, names) as folder:
            await _receive_file(channel, entry.path, folder, names[-1], entry.mode)

    await _for_each(files, receive)


async def _receive_file(channel: Channel, source: str, folder: int, name: str, mode: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with _opened(name, flags, folder, mode & 0o777 | 0o200) as descriptor:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigurationError(f"local {short_repr(name)} is not a regular file")
        async for part in channel.stream_file(source):
            await asyncio.to_thread(_write_all, descriptor, part, name)


def _write_all(descriptor: int, data: bytes, name: str) -> None:
    view = memoryview(data)
    with _naming(name):
        while view:
            view = view[os.write(descriptor, view) :]


def _checked_name(name: str) -> str:
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise SandboxError(f"the sandbox has a file named {short_repr(name)}, which is not a name")
    return name


def _make_folder(name: str, folder: int) -> None:
    with _naming(name), contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=folder)


@contextlib.contextmanager
def _folder_of(root: int, names: Sequence[str]) -> Iterator[int]:
    """Open the directory in `root` that the last of `names` is in, without following a link."""
    folder = os.dup(root)
    try:
        for name in names[:-1]:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            with _naming(name):
                below = os.open(name, flags, dir_fd=folder)
            os.close(folder)
            folder = below
        yield folder
    finally:
        os.close(folder)


@contextlib.contextmanager
def _opened(path: str, flags: int, folder: int | None = None, mode: int = 0o644) -> Iterator[int]:
    with _naming(path):
        descriptor = os.open(path, flags | os.O_CLOEXEC, mode, dir_fd=folder)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _naming(name: str) -> Iterator[None]:
    """Raise an error of this machine's file system as one that says so."""
    try:
        yield
    except FileExistsError:
        raise
    except OSError as error:
        raise FileError(
            f"local {short_repr(name)}: {error.strerror}", number=error.errno or 0, path=name
        ) from error


async def _for_each(items: Sequence[_Item], work: Callable[[_Item], Awaitable[None]]) -> None:
    """Do `work` for every item, a few at a time. The first failure ends the others."""
    waiting = iter(items)

    async def worker() -> None:
        for item in waiting:
            await work(item)

    workers = [asyncio.ensure_future(worker()) for _ in range(min(_AT_ONCE, len(items)))]
    # Not a TaskGroup: before Python 3.13, it can leave a cancellation in the task of our caller.
    try:
        await asyncio.gather(*workers)
    finally:
        for each in workers:
            each.cancel()
        if workers:
            await wait_done(asyncio.wait(workers))
