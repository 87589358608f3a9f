"""The program that keeps a disk of limited size mounted while its stdin is open.

    python3 -I -S limited_disk.py

Standard library only, no import of kakoi: it is started by its path, as root. It mounts directories
of a file system where a container engine of this machine can mount them from, writes `.` to stdout,
and waits. It unmounts them when it exits, and it exits when its parent closes its stdin or dies. A
container that has mounted a directory keeps the file system.

The file system is ext4 in an unnamed file, on a loop device that the kernel frees with its last
user. So nothing stays on the disk, no matter which process is killed.

It first reads a length in ten digits, then fields joined by NUL. MOUNT_POINT is where to mount; the
directories are MOUNT_POINT/0, MOUNT_POINT/1, …

    make   MOUNT_POINT SIZE FOLDER `exec` or `noexec` SAVED
                             then for each directory: UID GID MODE and the subdirectories to create,
                             separated by \\n. SAVED: a saved disk to start with, or empty
    again  MOUNT_POINT PID   then for each directory: where it is mounted in the container of PID
    save   FILE PID PATH     writes the disk that is mounted at PATH in the container of PID to
                             FILE, mounts nothing and does not wait. Nothing must write meanwhile

It reports errors as mount_stage.py does. The next one removes mounts left by a killed instance.
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
_LOOP_CTL_GET_FREE, _LOOP_CONFIGURE, _LOOP_GET_STATUS64 = 0x4C82, 0x4C0A, 0x4C05
_LOOP_INFO = "=5Q4I64s64s32s2Q"
_LOOP_NAME = b"kakoi"
_LOOP_MAJOR = 7
_BLKFLSBUF = 0x1261
_LO_FLAGS_AUTOCLEAR = 4
# Otherwise every block is cached twice, and writing back waits for itself. Where the file system
# below has no direct I/O, the kernel does without.
_LO_FLAGS_DIRECT_IO = 16
_TRIES = 64
_FOLDERS = ("/usr/sbin", "/sbin", "/usr/bin")
# No journal: after a crash of the machine, the data is gone anyway. No space reserved for root.
_OPTIONS = "-q -F -O ^has_journal -m 0 -E lazy_itable_init=1,nodiscard".split()


def main() -> None:
    """Mount, wait, unmount."""
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import idmapped_mount as view  # type: ignore[import-not-found]  # Same folder.
    import mount_stage as stage  # type: ignore[import-not-found]

    verb, mount_point, *rest = os.fsdecode(view._take(int(view._take(10)))).split("\0")
    if verb == "save":
        try:
            _save(stage, mount_point, *rest)
        except OSError as error:
            stage._fail(f"the disk of a container cannot be saved: {error}", "try again")
        os.write(1, b".")
        return
    parent = os.path.dirname(mount_point)
    # Only root can pass this folder: the directories in it belong to the unprivileged user.
    os.makedirs(parent, mode=0o700, exist_ok=True)
    _sweep(parent)
    lock = _lock(mount_point)
    try:
        os.makedirs(mount_point, exist_ok=True)
        try:
            if verb == "make":
                _make(stage, mount_point, int(rest[0]), *rest[1:])
            else:
                _again(stage, mount_point, int(rest[0]), rest[1:])
        except OSError as error:
            _unmount(mount_point)
            stage._fail(f"no disk of limited size can be created: {error}", "disk_limit: none")
        os.write(1, b".")
        while os.read(0, 4096):
            pass
    except OSError:
        pass  # The parent died before we had finished.
    finally:
        _unmount(mount_point)
        os.unlink(_lock_path(mount_point))
        os.close(lock)


# --- Create a file system --------------------------------------------------------------------


def _make(
    stage: ModuleType,
    mount_point: str,
    size: int,
    folder: str,
    programs: str,
    saved: str,
    *wanted: str,
) -> None:
    file = _nameless_file(folder)
    if saved:
        _copy(saved, file)
    os.truncate(file, size)
    number, loop = _loop_device(file)
    os.close(file)
    if not saved:
        _run(stage, "mkfs.ext4", *_OPTIONS, f"/dev/loop{number}")
    # The file is empty, so no inode table has to be cleared. Deleted files free space on the host.
    # Replacing a file does not wait for the disk: nothing survives a crash of the machine.
    options = b"noinit_itable,discard,noauto_da_alloc"
    source, target = f"/dev/loop{number}".encode(), os.fsencode(mount_point)
    flags = _MS_NOSUID | _MS_NODEV | (_MS_NOEXEC if programs == "noexec" else 0)
    stage._call("mount", source, target, b"ext4", flags, options)
    os.close(loop)
    for number, words in enumerate(wanted):
        uid, gid, mode, *below = words.split("\n")
        top = os.path.join(mount_point, str(number))
        if saved:
            _forget_runner(top)
            continue
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
    """Return a loop device for the file: its number, and a descriptor to close after mounting."""
    control = os.open("/dev/loop-control", os.O_RDWR)
    flags = _LO_FLAGS_AUTOCLEAR | _LO_FLAGS_DIRECT_IO
    info = struct.pack(_LOOP_INFO, *[0] * 8, flags, _LOOP_NAME, b"", b"", 0, 0)
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
                if error.errno != errno.EBUSY:  # Another process took it first.
                    raise
        raise OSError(errno.EBUSY, "no loop device is free")
    finally:
        os.close(control)


def _run(stage: ModuleType, name: str, *arguments: str) -> None:
    """Run a program of e2fsprogs."""
    paths = (f"{folder}/{name}" for folder in _FOLDERS)
    program = next((path for path in paths if os.access(path, os.X_OK)), "")
    if not program:
        stage._fail(f"{name} is not installed", "apt-get install e2fsprogs")
    # Our stdout is the stream to our parent, so the program writes to stderr.
    actions = [(os.POSIX_SPAWN_DUP2, 2, 1)]
    pid = os.posix_spawn(program, [program, *arguments], {}, file_actions=actions)
    if os.waitpid(pid, 0)[1] != 0:
        raise OSError(errno.EIO, f"{name} failed")


# --- Save a file system, and start with a saved one ------------------------------------------


def _save(stage: ModuleType, file: str, pid: str, path: str) -> None:
    """Write the used blocks of a disk to a file, which is sparse."""
    device = _device_of(pid, path)
    loop = os.open(device, os.O_RDONLY)
    info = fcntl.ioctl(loop, _LOOP_GET_STATUS64, bytes(struct.calcsize(_LOOP_INFO)))
    if struct.unpack(_LOOP_INFO, info)[9].rstrip(b"\0") != _LOOP_NAME:
        raise OSError(errno.EINVAL, f"{device} was not made by kakoi")
    # Writes what is in memory, and forgets what was read of it before.
    fcntl.ioctl(loop, _BLKFLSBUF)
    os.close(loop)
    _run(stage, "e2image", "-raf", device, file)


def _device_of(pid: str, path: str) -> str:
    with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        lines = [line.split(" ") for line in mounts]
    found = [fields[2] for fields in lines if fields[4] == path]
    major, _, minor = (found or [""])[-1].partition(":")
    if major != str(_LOOP_MAJOR):
        raise OSError(errno.EINVAL, f"there is no disk at {path}")
    return f"/dev/loop{minor}"


def _copy(saved: str, file: int) -> None:
    """Copy a sparse file."""
    source = os.open(saved, os.O_RDONLY)
    end = os.fstat(source).st_size
    at = 0
    while at < end:
        try:
            at = os.lseek(source, at, os.SEEK_DATA)
        except OSError:  # There is only a hole.
            break
        hole = os.lseek(source, at, os.SEEK_HOLE)
        while at < hole:
            at += os.copy_file_range(source, file, hole - at, at, at)
    os.close(source)


def _forget_runner(top: str) -> None:
    """Remove what the runner of the other container keeps there."""
    import shutil

    for name in os.listdir(top):
        path = os.path.join(top, name)
        if not name.startswith(".kakoi-"):
            continue
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)


# --- Mount a file system of a container ------------------------------------------------------


def _again(stage: ModuleType, mount_point: str, pid: int, paths: list[str]) -> None:
    """Mount here what is mounted in a container, so that it outlives the container."""
    ours = os.open("/proc/self/ns/mnt", os.O_RDONLY)
    root = os.open("/", os.O_RDONLY)
    theirs = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    stage._call("setns", theirs, _CLONE_NEWNS)
    try:
        flags = _OPEN_TREE_CLONE | os.O_CLOEXEC
        trees = [
            stage._call("syscall", _OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags)
            for path in paths
        ]
    finally:
        stage._call("setns", ours, _CLONE_NEWNS)
        os.fchdir(root)
    for number, tree in enumerate(trees):
        target = os.path.join(mount_point, str(number))
        os.mkdir(target)
        flags = _MOVE_MOUNT_F_EMPTY_PATH
        stage._call("syscall", _MOVE_MOUNT, tree, b"", _AT_FDCWD, os.fsencode(target), flags)
        os.close(tree)


# --- Clean up --------------------------------------------------------------------------------


def _lock_path(mount_point: str) -> str:
    return os.path.join(os.path.dirname(mount_point), f".{os.path.basename(mount_point)}")


def _lock(mount_point: str) -> int:
    """Take a lock until we exit. A mount point whose lock is free is a leftover."""
    lock = os.open(_lock_path(mount_point), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
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
            pass  # Its owner is alive, or another process is removing it.
        finally:
            os.close(lock)


def _unmount(mount_point: str) -> None:
    """Remove the mounts at and below the mount point, and the empty directories."""
    libc = ctypes.CDLL(None)
    libc.umount2(os.fsencode(mount_point), _MNT_DETACH)
    try:
        for name in os.listdir(mount_point):
            path = os.path.join(mount_point, name)
            libc.umount2(os.fsencode(path), _MNT_DETACH)
            os.rmdir(path)
        os.rmdir(mount_point)
    except OSError:
        pass


if __name__ == "__main__":
    main()
