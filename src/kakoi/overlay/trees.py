"""Directories by descriptors: nothing in here ever follows a link, or blocks on what it opens."""

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
    """A name for that very directory, also if another one or a link takes its place, and if it is
    shut. NotADirectoryError: it is a link, or something else."""
    fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


@contextlib.contextmanager
def folder(root: int, path: bytes, *, pry: bool = False) -> Iterator[int]:
    """The directory at `path` below the descriptor `root`, walked to link by link.

    `pry`: open also what its owner, which is us, has shut: only for directories of our own keeping.
    They are shut again at the end.
    """
    with contextlib.ExitStack() as shut:
        fd = os.dup(root)
        try:
            _pry(fd, shut, pry=pry)
            for name in filter(None, path.split(b"/")):
                inner = _open(name, FOLDER, fd, pry=pry)
                os.close(fd)
                fd = inner
                _pry(fd, shut, pry=pry)
            yield fd
        finally:
            os.close(fd)


def _pry(fd: int, shut: contextlib.ExitStack, *, pry: bool) -> None:
    """What can be opened need not let us at what is in it."""
    mode = stat.S_IMODE(os.fstat(fd).st_mode) if pry and os.geteuid() != 0 else 0o700
    if mode & 0o700 != 0o700:
        held = os.dup(fd)
        shut.callback(os.close, held)
        os.fchmod(held, mode | 0o700)
        shut.callback(os.fchmod, held, mode)


@contextlib.contextmanager
def file(parent: int, name: bytes, *, pry: bool = False) -> Iterator[int]:
    """The regular file of that name, for reading."""
    fd = _open(name, FILE, parent, pry=pry)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is no file any more")
        yield fd
    finally:
        os.close(fd)


def _open(name: bytes, flags: int, parent: int, *, pry: bool) -> int:
    try:
        return os.open(name, flags, dir_fd=parent)
    except PermissionError:
        if not pry:
            raise
    held = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        status = os.fstat(held)
        if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        # By the descriptor: a name could have become a link meanwhile.
        os.chmod(f"/proc/self/fd/{held}", 0o700)
        try:
            return os.open(name, flags, dir_fd=parent)
        finally:
            os.chmod(f"/proc/self/fd/{held}", stat.S_IMODE(status.st_mode))
    finally:
        os.close(held)


def split(path: bytes) -> tuple[bytes, bytes]:
    """The directory of a path, and its name in there."""
    above, _, name = path.rpartition(b"/")
    return above, name


def status_at(parent: int, name: bytes) -> os.stat_result | None:
    """What is there, itself and not what it points to."""
    try:
        return os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_whiteout(status: os.stat_result) -> bool:
    """Does it stand for what was deleted?"""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(fd: int) -> bool:
    """Does the directory hide what is below it?"""
    with contextlib.suppress(OSError):
        return os.getxattr(fd, f"{_OURS}opaque") == b"y"
    return False


def is_copied_up(fd: int) -> bool:
    """Was it there, in a lower layer or the project, before it was written to?"""
    with contextlib.suppress(OSError):
        return f"{_OURS}origin" in os.listxattr(fd)
    return False


def attributes(fd: int) -> dict[str, bytes]:
    """The extended attributes that are the user's to set, those of the overlay left out."""
    found = {}
    with contextlib.suppress(OSError):
        for name in os.listxattr(fd):
            if (name.startswith("user.") and not name.startswith(_OURS)) or name in _ACLS:
                found[name] = os.getxattr(fd, name)
    return found


def same_bytes(one: int, other: int) -> bool:
    """Do two files hold the same?"""
    if os.fstat(one).st_size != os.fstat(other).st_size:
        return False
    at = 0
    while part := os.pread(one, _CHUNK, at):
        if part != os.pread(other, len(part), at):
            return False
        at += len(part)
    return True


def copy_bytes(source: int, target: int) -> None:
    """All that is in `source`; its holes stay holes."""
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
