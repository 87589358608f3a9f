"""Directories by descriptors: nothing in here ever follows a link, or blocks on an open."""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_CHUNK = 1 << 20
_OURS = "user.overlay."
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")


@contextlib.contextmanager
def held_folder(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yield a path to this very directory, even if something else takes its place meanwhile.

    Works without permission to read it. Raises NotADirectoryError for a link or anything else.
    """
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def open_layer(path: str | os.PathLike[str]) -> int:
    """Open a layer's directory, whose permissions a command inside can have removed."""
    try:
        return os.open(path, FOLDER)
    except PermissionError:
        with held_folder(path) as held:
            mode = stat.S_IMODE(os.stat(held).st_mode)
            os.chmod(held, 0o700)
            try:
                return os.open(path, FOLDER)
            finally:
                os.chmod(held, mode)


@contextlib.contextmanager
def folder(root: int, path: bytes, *, force_open: bool = False) -> Iterator[int]:
    """Yield a descriptor of the directory at `path` below `root`, opened name by name.

    `force_open`: also open directories whose permissions forbid it, which we own; only for the
    overlay's own layers. Their permissions are restored at the end.
    """
    with contextlib.ExitStack() as shut:
        fd = os.dup(root)
        try:
            _force_open(fd, shut, force_open=force_open)
            for name in filter(None, path.split(b"/")):
                inner = _open(name, FOLDER, fd, force_open=force_open)
                os.close(fd)
                fd = inner
                _force_open(fd, shut, force_open=force_open)
            yield fd
        finally:
            os.close(fd)


def _force_open(fd: int, shut: contextlib.ExitStack, *, force_open: bool) -> None:
    """Make an open directory searchable and writable until the end."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode) if force_open and os.geteuid() != 0 else 0o700
    if mode & 0o700 != 0o700:
        held = os.dup(fd)
        shut.callback(os.close, held)
        os.fchmod(held, mode | 0o700)
        shut.callback(os.fchmod, held, mode)


@contextlib.contextmanager
def file(parent: int, name: bytes, *, force_open: bool = False) -> Iterator[int]:
    """Yield a descriptor of a regular file for reading."""
    fd = _open(name, FILE, parent, force_open=force_open)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no longer a file")
        yield fd
    finally:
        os.close(fd)


def _open(name: bytes, flags: int, parent: int, *, force_open: bool) -> int:
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        if not force_open:
            raise
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        status = os.fstat(held)
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        # By the descriptor, because the name could have become a link meanwhile.
        os.chmod(f"/proc/self/fd/{held}", 0o700)
        try:
            return os.open(name, flags, dir_fd=parent)
        finally:
            os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(status.st_mode))
    finally:
        os.close(held)


def split(path: bytes) -> tuple[bytes, bytes]:
    """Split a path into its directory and its name."""
    above, _, name = path.rpartition(b"/")
    return above, name


def status_at(parent: int, name: bytes) -> os.stat_result | None:
    """Return the status of a path, without following a link; None if it does not exist."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_whiteout(status: os.stat_result) -> bool:
    """Tell if this is a whiteout, which marks a deleted path."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(fd: int) -> bool:
    """Tell if the directory hides what lower layers have at its path."""
    with contextlib.suppress(OSError):
        return os.getxattr(fd, f"{_OURS}opaque") == b"y"
    return False


def is_copied_up(fd: int) -> bool:
    """Tell if the file was copied from a lower layer or the project when it was first written."""
    with contextlib.suppress(OSError):
        return f"{_OURS}origin" in os.listxattr(fd)
    return False


def attributes(fd: int) -> dict[str, bytes]:
    """Return the extended attributes that users can set, without those of the overlay."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listxattr(fd):
            if (name.startswith("user.") and not name.startswith(_OURS)) or name in _ACLS:
                found[name] = os.getxattr(fd, name)
    return found


def same_bytes(one: int, other: int) -> bool:
    """Tell if two files have the same content."""
    if os.fstat(one).st_size != os.fstat(other).st_size:
        return False
    at = 0
    while part := os.pread(one, _CHUNK, at):
        if part != os.pread(other, len(part), at):
            return False
        at += len(part)
    return True


def copy_bytes(source: int, target: int) -> None:
    """Copy the content of `source`; holes stay holes."""
    size = os.fstat(source).st_size
    at = 0
    while at < size:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # A hole up to the end.
        end = os.lseek(source, at, os.SEEK_HOLE)
        while at < end:
            part = os.pread(source, min(_CHUNK, end - at), at)
            if not part:
                break
            at += os.pwrite(target, part, at)
        if at < end:
            break
    os.ftruncate(target, size)
