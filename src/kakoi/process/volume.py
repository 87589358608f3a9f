"""The program that has a disk of limited size mounted while its input is open.

    python3 -I -S volume.py

Standard library only, no import of kakoi: it is started by its path, as root. It mounts directories
of a file system where a container engine of this machine can take them from, writes `.` on its
output, and waits. What it mounted is gone when it exits, and it exits when whoever started it
closes its input, or dies. A container that has mounted a directory keeps the file system.

The file system is ext4 in a file that has no name, on a loop device that the kernel frees with its
last user. So nothing is left on the disk, whoever is killed.

What it reads first is a length of ten digits and fields joined by NUL. PLACE is where to mount; the
directories are PLACE/0, PLACE/1, …

    make   PLACE SIZE FOLDER EXEC (or NOEXEC, in small letters)
                             then for each directory: UID GID MODE, and those to make in it, by \\n
    again  PLACE PID         then for each directory: where it is mounted in the container of PID

Failures are told as in staging.py. What a killed one has left mounted goes with the next one.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType

_AT_FDCWD = -100
_OPEN_TREE, _MOVE_MOUNT = 428, 429
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MNT_DETACH = 2
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE = 0x4C82, 0x4C0A
_LO_FLAGS_AUTOCLEAR = 4
_TRIES = 64
_MKFS = ("/usr/sbin/mkfs.ext4", "/sbin/mkfs.ext4", "/usr/bin/mkfs.ext4")
# No journal: what is lost with a crash of the machine is lost anyway. No space for root alone.
_OPTIONS = "-q -F -O ^has_journal -m 0 -E lazy_itable_init=1,nodiscard".split()


def main() -> None:
    """Mount, wait, unmount."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import lending  # type: ignore[import-not-found]  # They are beside us.
    import staging  # type: ignore[import-not-found]

    verb, place, *rest = os.fsdecode(lending._take(int(lending._take(10)))).split("\0")
    parent = os.path.dirname(place)
    # Nobody but root gets past it: the directories in there are the unprivileged user's.
    os.makedirs(parent, mode=0o700, exist_ok=True)
    _sweep(parent)
    lock = _lock(place)
    try:
        os.makedirs(place, exist_ok=True)
        try:
            if verb == "make":
                _make(staging, place, int(rest[0]), *rest[1:])
            else:
                _again(staging, place, int(rest[0]), rest[1:])
        except OSError as error:
            _unmount(place)
            staging._fail(f"no disk of limited size can be made: {error}", "disk_limit: none")
        os.write(1, b".")
        while os.read(0, 4096):
            pass
    except OSError:
        pass  # Whoever started us is gone, in the middle of something.
    finally:
        _unmount(place)
        os.unlink(_lock_path(place))
        os.close(lock)


# --- A fresh one -----------------------------------------------------------------------------


def _make(
    staging: ModuleType, place: str, size: int, folder: str, programs: str, *wanted: str
) -> None:
    file = _nameless_file(folder)
    os.truncate(file, size)
    number, loop = _loop_device(file)
    os.close(file)
    _format(staging, f"/dev/loop{number}")
    # The file is empty, so nothing has to be cleared later; and what is deleted gives room back.
    options = b"noinit_itable,discard"
    source, target = f"/dev/loop{number}".encode(), os.fsencode(place)
    flags = _MS_NOSUID | _MS_NODEV | (_MS_NOEXEC if programs == "noexec" else 0)
    staging._call("mount", source, target, b"ext4", flags, options)
    os.close(loop)
    for number, words in enumerate(wanted):
        uid, gid, mode, *below = words.split("\n")
        top = os.path.join(place, str(number))
        for path in [top, *(os.path.join(top, each) for each in below)]:
            os.mkdir(path)
            os.chown(path, int(uid), int(gid))
            os.chmod(path, int(mode, 8))


def _nameless_file(folder: str) -> int:
    try:
        return os.open(folder, os.O_TMPFILE | os.O_RDWR, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR):
            raise
    path = os.path.join(folder, f".kakoi-{os.getpid()}")
    file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    os.unlink(path)
    return file


def _loop_device(file: int) -> tuple[int, int]:
    """A free loop device over the file: its number and, as long as it must stay, a descriptor."""
    control = os.open("/dev/loop-control", os.O_RDWR)
    info = struct.pack("=5Q4I64s64s32s2Q", *[0] * 8, _LO_FLAGS_AUTOCLEAR, b"kakoi", b"", b"", 0, 0)
    config = struct.pack("=2I", file, 0) + info + bytes(64)
    try:
        for _ in range(_TRIES):
            number = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
            loop = os.open(f"/dev/loop{number}", os.O_RDWR)
            try:
                fcntl.ioctl(loop, _LOOP_CONFIGURE, config)
                return number, loop
            except OSError as error:
                os.close(loop)
                if error.errno != errno.EBUSY:  # Somebody else was faster.
                    raise
        raise OSError(errno.EBUSY, "there is no free loop device")
    finally:
        os.close(control)


def _format(staging: ModuleType, device: str) -> None:
    program = next((path for path in _MKFS if os.access(path, os.X_OK)), "")
    if not program:
        staging._fail("mkfs.ext4 is not installed", "apt-get install e2fsprogs")
    # Our output is a stream to somebody else.
    actions = [(os.POSIX_SPAWN_DUP2, 2, 1)]
    pid = os.posix_spawn(program, [program, *_OPTIONS, device], {}, file_actions=actions)
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError(errno.EIO, "mkfs.ext4 failed")


# --- One that a container has ----------------------------------------------------------------


def _again(staging: ModuleType, place: str, pid: int, paths: list[str]) -> None:
    """Have what is mounted in a container mounted here as well, so that it outlives its end."""
    ours = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    root = os.open("/", os.O_RDONLY)
    theirs = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    staging._call("setns", theirs, _CLONE_NEWNS)
    try:
        flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
        trees = [
            staging._call("syscall", _OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)
            for path in paths
        ]
    finally:
        staging._call("setns", ours, _CLONE_NEWNS)
        os.fchdir(root)
    for number, tree in enumerate(trees):
        target = os.path.join(place, str(number))
        os.mkdir(target)
        flags = _MOVE_MOUNT_F_EMPTY_PATH
        staging._call("syscall", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), flags)
        os.close(tree)


# --- What goes at the end --------------------------------------------------------------------


def _lock_path(place: str) -> str:
    return os.path.join(os.path.dirname(place), f".{os.path.basename(place)}")


def _lock(place: str) -> int:
    """Held as long as we live: what nobody holds any more is a leftover."""
    lock = os.open(_lock_path(place), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def _sweep(parent: str) -> None:
    for name in os.listdir(parent):
        path = os.path.join(parent, name)
        if not name.startswith("."):
            continue
        try:
            lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _unmount(os.path.join(parent, name[1:]))
            os.unlink(path)
        except OSError:
            pass  # Its owner lives, or another one sweeps.
        finally:
            os.close(lock)


def _unmount(place: str) -> None:
    """Take away what is mounted at and below the place, and the empty directories."""
    libc = ctypes.CDLL(None)
    libc.umount2(os.fsencode(place), _MNT_DETACH)
    try:
        for name in os.listdir(place):
            path = os.path.join(place, name)
            libc.umount2(os.fsencode(path), _MNT_DETACH)
            os.rmdir(path)
        os.rmdir(place)
    except OSError:
        pass


if __name__ == "__main__":
    main()
