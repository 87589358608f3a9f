"""The program that runs before bubblewrap: it stages what to mount and drops root.

    python3 -I -S mount_stage.py SPEC PROGRAM ARGUMENT…

Standard library only, no import of kakoi: it is started by its path. In its own mount namespace it
opens every source as root, wherever the source is, and mounts it, including all mounts below it, in
a tmpfs at MOUNT_POINT, where an unprivileged user can reach it. No other process ever sees that
tmpfs. Then it switches to UID and GID permanently and executes PROGRAM.

SPEC is a descriptor with fields joined by NUL: UID, GID, MOUNT_POINT, and four for each source:

    its path
    its expected identity, `device inode owner group`: if it differs by now, staging fails
    its name at MOUNT_POINT, or an absolute path, where it is mounted instead
    `read`, `write`, or `data`: like `write`, but no program can be executed from there

A writable source that belongs to root, or to root's group, is mounted *idmapped*: root and UID
(GID) are swapped on it. UID can write root's files there, files that UID creates there belong to
root on the disk, and the process has no right of root. An optional last field names the control
groups to enter first, by the paths of their `cgroup.procs`, one per line.

A source with `cow work 3 2 1` is never written to. An overlay covers it, made of the directories
with these names in the source called `layers`: the first one is the kernel's own, the second one
receives all writes. Only for this, a normal user also starts this program: it then mounts in its
own user namespace, which contains no user but UID.

On failure it writes two lines to stderr: `staging: what failed` and `fix: what to do`.
"""

from __future__ import annotations

# Not `ctypes`: its classes would take a fifth of our start-up time.
import _ctypes
import errno
import os
import struct
import sys

TYPE_CHECKING = False  # `typing` would cost more than this whole module.
if TYPE_CHECKING:
    from typing import NoReturn

FAILED = 71  # EX_OSERR
LAYERS = "layers"
_ELSEWHERE = "set KAKOI_OVERLAYS to a directory on ext4, xfs or btrfs of this machine"

_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_AT_RECURSIVE = 0x8000
_CLONE_NEWNS = 0x20000
_CLONE_NEWUSER = 0x10000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 2, 4, 8
_MS_REC, _MS_PRIVATE, _MS_SLAVE = 0x4000, 1 << 18, 1 << 19
_MNT_DETACH = 2
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 0x1, 0x2, 0x4, 0x8
_ATTR_IDMAP = 0x100000
_OPEN_TREE_CLONE = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_PR_SET_NO_NEW_PRIVS = 38
_KEYCTL_JOIN_SESSION_KEYRING = 1
_ALL_IDS = 2**32 - 1

# The C library has no functions for these. Newer system calls have the same number on every
# architecture, older ones do not.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}


class _Function(_ctypes.CFuncPtr):
    """A function of the C library that returns an int and sets errno."""

    _flags_ = _ctypes.FUNCFLAG_CDECL | _ctypes.FUNCFLAG_USE_ERRNO


class Source:
    """A file or directory to stage, and the descriptor of its mount."""

    __slots__ = ("fd", "is_data", "layers", "name", "path", "seen", "writable")

    def __init__(self, path: str, seen: str, name: str, access: str) -> None:
        self.path, self.seen, self.name = path, seen, name
        kind, *self.layers = access.split(" ")
        self.writable, self.is_data = kind != "read", kind == "data"
        self.fd = -1


def main() -> None:
    """Stage the sources, drop root, and execute the program."""
    uid, gid, mount_point, sources, groups = _read_spec(int(sys.argv[1]))
    _enter(groups)
    is_root = os.geteuid() == 0
    try:
        _call("unshare", _CLONE_NEWNS | (0 if is_root else _CLONE_NEWUSER))
        if not is_root:
            _stay(uid, gid)
        # Later mounts and unmounts of the host still propagate to us, so that we keep no disk busy.
        # Our own mounts do not propagate to the host.
        _call("mount", None, b"/", None, _MS_REC | _MS_SLAVE, None)
    except OSError as error:
        who = "root" if is_root else "a normal user"
        _fail(
            f"{who} may not mount anything here ({error.strerror}); is this a container?",
            "run kakoi outside of the container, or give the container CAP_SYS_ADMIN"
            if is_root
            else "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or do without --cow",
        )
    # Open all sources before covering MOUNT_POINT: some may be below it.
    for source in sources:
        _open(source, uid, gid)
    try:
        _mount_all(mount_point, sources, uid, gid)
        if is_root:
            _leave_keys_behind()
            _give_root_up(uid, gid)
        os.chdir("/")
    except OSError as error:
        _fail(f"cannot stage the sandbox: {error}", "give the workspace to a normal user")
    program = sys.argv[2:]
    try:
        os.execv(program[0], program)  # noqa: S606 - no shell is what we want
    except OSError as error:
        _fail(
            f"user {uid} cannot start {program[0]}: {error.strerror}",
            f"chmod a+rx {program[0]}, and every directory above it",
        )


def _read_spec(fd: int) -> tuple[int, int, str, list[Source], list[str]]:
    with open(fd, encoding="utf-8", errors="surrogateescape") as spec:
        uid, gid, mount_point, *fields = spec.read().split("\0")
    groups = fields.pop().splitlines() if len(fields) % 4 == 1 else []
    sources = [Source(*fields[start : start + 4]) for start in range(0, len(fields), 4)]
    return int(uid), int(gid), mount_point, sources, groups


def _enter(groups: list[str]) -> None:
    """Enter the control groups, or fail: better no sandbox than one without its limits."""
    for path in groups:
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write("0")
        except OSError as error:
            _fail(f"cannot enter the control group {path}: {error.strerror}", "start it again")


def _open(source: Source, uid: int, gid: int) -> None:
    """Open a detached copy of the mount tree at the source, with the mount flags it needs."""
    try:
        path = os.fsencode(source.path)
        flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | _AT_RECURSIVE
        source.fd = _call("syscall", _OPEN_TREE, _AT_FDCWD, path, flags)
    except OSError as error:
        _refuse_old_kernel(error)
        _fail(f"cannot open {source.path}: {error.strerror}", f"ls -d {source.path}")
    status = os.fstat(source.fd)
    is_root = os.geteuid() == 0
    now = f"{status.st_dev} {status.st_ino} {status.st_uid} {status.st_gid}"
    # In the user namespace of a normal user, other owners have no numbers.
    if now.split()[: 4 if is_root else 2] != source.seen.split()[: 4 if is_root else 2]:
        _fail(f"{source.path} was replaced while it was being opened", "try again")
    # Flags that root sets here are locked: a process with capabilities in bubblewrap's namespaces
    # cannot clear them.
    given = _ATTR_NOSUID | _ATTR_NODEV | (0 if source.writable else _ATTR_RDONLY)
    given |= _ATTR_NOEXEC if source.is_data else 0
    swapped = (uid if status.st_uid == 0 else 0, gid if status.st_gid == 0 else 0)
    try:
        if source.writable and is_root and any(swapped):
            namespace = _swapping_namespace(*swapped)
            _set(source.fd, given | _ATTR_IDMAP, namespace)
            os.close(namespace)
        else:
            _set(source.fd, given)
    except OSError as error:
        _refuse_old_kernel(error)
        if source.name == LAYERS:
            _fail(
                f"copy-on-write is unavailable: {source.path} cannot be lent to user {uid}",
                _ELSEWHERE,
            )
        _fail(
            f"{source.path} belongs to root, and neither it nor what is mounted below it can be "
            f"lent to an unprivileged user: no idmapped mounts there ({error.strerror})",
            f"chown -R {uid}:{gid} {source.path}",
        )


def _refuse_old_kernel(error: OSError) -> None:
    if error.errno == errno.ENOSYS:
        _fail("root needs Linux 5.12 or newer for this sandbox", "run kakoi as a normal user")


def _set(fd: int, attributes: int, namespace: int = 0) -> None:
    # struct mount_attr: what to set, what to clear, propagation, user namespace.
    wanted = struct.pack("=QQQQ", attributes, 0, _MS_PRIVATE, namespace)
    flags = _AT_EMPTY_PATH | _AT_RECURSIVE
    _call("syscall", _MOUNT_SETATTR, fd, b"", flags, wanted, len(wanted))


def _swapping_namespace(uid: int, gid: int) -> int:
    """Return a user namespace in which root and `uid`, and root's group and `gid`, are swapped."""
    ready, their_ready = os.pipe()
    their_hold, hold = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hold)
            _call("unshare", _CLONE_NEWUSER)
            os.write(their_ready, b".")
            os.read(their_hold, 1)  # Until the parent has opened the namespace, or is dead.
        finally:
            os._exit(0)
    try:
        os.close(their_ready)
        if not os.read(ready, 1):
            raise OSError(errno.EPERM, "no user namespace could be created")
        for name, other in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                file.write(swap_with_root(other))
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for fd in (ready, their_hold, hold):
            os.close(fd)
        os.waitpid(pid, 0)


def swap_with_root(other: int) -> str:
    """Return the lines of a uid_map or gid_map that swap 0 and `other`; 0 swaps nothing."""
    if other == 0:
        return f"0 0 {_ALL_IDS}\n"
    behind = other + 1
    extents = [(0, other, 1), (1, 1, other - 1), (other, 0, 1), (behind, behind, _ALL_IDS - behind)]
    return "".join(f"{on_disk} {seen} {count}\n" for on_disk, seen, count in extents if count)


def _mount_all(mount_point: str, sources: list[Source], uid: int, gid: int) -> None:
    _cover(mount_point)
    for source in sources:
        target = os.fsencode(os.path.join(mount_point, source.name))
        if os.path.isabs(source.name):
            _make_way(source.name, uid, gid)
        elif os.path.isdir(f"/proc/self/fd/{source.fd}"):
            os.mkdir(target)
        else:
            os.close(os.open(target, os.O_CREAT | os.O_EXCL))
        flags = _MOVE_MOUNT_F_EMPTY_PATH
        _call("syscall", _MOVE_MOUNT, source.fd, b"", _AT_FDCWD, target, flags)
        os.close(source.fd)
    for source in sources:
        if source.layers:
            _overlay(mount_point, source)


def _overlay(mount_point: str, source: Source) -> None:
    """Mount an overlay on the source. Its layers are not reachable by any other path afterwards."""
    os.chdir(mount_point)  # Relative names: the kernel accepts at most a page of options.
    work, upper, *lower = [f"{LAYERS}/{name}" for name in source.layers]
    options = (
        f"userxattr,index=off,lowerdir={':'.join([*lower, source.name])},"
        f"upperdir={upper},workdir={work}"
    )
    name = os.fsencode(source.name)
    try:
        flags = _MS_NOSUID | _MS_NODEV
        token = f"kakoi:{_id(work)}".encode("ascii")
        _call("mount", token, name, b"overlay", flags, options.encode("ascii"))
    except OSError as error:
        _fail(
            f"copy-on-write is unavailable: the kernel cannot put an overlay on {source.path} "
            f"({error.strerror})",
            _ELSEWHERE,
        )
    _call("umount2", LAYERS.encode("ascii"), _MNT_DETACH)
    os.rmdir(LAYERS)


def _id(work: str) -> str:
    """Return an id by which the overlay can be found in the mount list of any process."""
    status = os.stat(work)
    return f"{status.st_dev}:{status.st_ino}"


def _stay(uid: int, gid: int) -> None:
    """Stay the same user in the new user namespace, and map no other user into it."""
    for name, line in (
        ("setgroups", "deny"),
        ("uid_map", f"{uid} {uid} 1"),
        ("gid_map", f"{gid} {gid} 1"),
    ):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(line)


def _cover(folder: str) -> None:
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _call("mount", b"tmpfs", os.fsencode(folder), b"tmpfs", flags, b"mode=0755,size=1m")


def _make_way(path: str, uid: int, gid: int) -> None:
    """Let the user reach `path`: cover the first ancestor that it cannot enter with an open one."""
    above = os.path.dirname(path)
    ancestors = [
        above[:end] for end in range(2, len(above) + 1) if above[end : end + 1] in ("", "/")
    ]
    for folder in ancestors:
        status = os.stat(folder)
        bit = 0o100 if status.st_uid == uid else 0o010 if status.st_gid == gid else 0o001
        if not status.st_mode & bit:
            _cover(folder)
            break
    previous = os.umask(0o022)
    os.makedirs(path, exist_ok=True)
    os.umask(previous)


def _leave_keys_behind() -> None:
    """Join a new session keyring: every process with the old one can use its keys."""
    machine = os.uname().machine
    if machine not in _KEYCTL:
        _fail(f"the keys of this session cannot be hidden on {machine}", "use docker")
    try:
        _call("syscall", _KEYCTL[machine], _KEYCTL_JOIN_SESSION_KEYRING, None)
    except OSError as error:
        # The kernel has no keyrings, or an inherited system call filter forbids them.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise


def _give_root_up(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # Inherited "securebits" can preserve root's capabilities after its uid is dropped. Read as
    # bytes: a text encoding is a file of our Python, which this user may be unable to read.
    with open("/proc/self/status", "rb") as status:
        kept = [line for line in status if line.startswith((b"CapPrm", b"CapEff", b"CapAmb"))]
    powerless = len(kept) == 3 and all(int(line.split()[1], 16) == 0 for line in kept)
    if not powerless or 0 in (*os.getresuid(), *os.getresgid()) or os.getgroups():
        _fail("root privileges could not be dropped", "run kakoi as a normal user")


def _call(name: str, *arguments: object) -> int:
    library = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # None: this program.
    result: int = _Function(_ctypes.dlsym(library, name))(*arguments)
    if result == -1:
        number = _ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _fail(what: str, fix: str) -> NoReturn:
    lines = f"staging: {what}\nfix: {fix}\n"
    os.write(2, lines.encode("utf-8", "surrogateescape"))
    os._exit(FAILED)


if __name__ == "__main__":
    main()
