"""The program that goes before bubblewrap: it stages what to mount, and gives root up.

    python3 -I -S staging.py SPEC PROGRAM ARGUMENT…

Standard library only, no import of kakoi: it is started by its path. In a mount namespace of its
own it opens every source as root, wherever that is, and mounts it, with all that is mounted below
it, in a tmpfs at PLACE, where an unprivileged user can reach it; nobody else ever sees that tmpfs.
Then it becomes UID and GID for good and turns into PROGRAM.

SPEC is a descriptor with fields joined by NUL: UID, GID, PLACE, and for each source: its path; what
is known of it, as `device inode owner group` (it is refused if it is another by now); its name at
PLACE, or a full path, where it is then mounted instead; and `read`, `write` or `data`, which is
`write` without a program being executed from there. A writable source that belongs to root, or to
root's group, is mounted *idmapped*: root and UID (GID) change places on it. What is root's there is
UID's to write, what UID makes there is root's on the disk, and the process has nothing of root. A
field at the end, if there is one, names the control groups to enter first, by their `cgroup.procs`,
one in a line.

A source with `cow 3 2 1` is not written to: an overlay covers it, of the directories with these
names in the source called `layers`, the first of which takes what is written. For that alone a
normal user starts this program, too: it mounts in a user namespace of its own, as nobody but UID.

A failure is two lines on standard error, `staging: what failed` and `fix: a way out`.
"""

from __future__ import annotations

import ctypes
import errno
import os
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

# The C library has no function for these. New calls have one number everywhere, old ones not.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "ppc64le": 271, "s390x": 280}


class _Attributes(ctypes.Structure):
    """struct mount_attr"""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


class Source:
    """One thing to stage, and the descriptor of its mount."""

    __slots__ = ("fd", "is_data", "layers", "name", "path", "seen", "writable")

    def __init__(self, path: str, seen: str, name: str, access: str) -> None:
        self.path, self.seen, self.name = path, seen, name
        kind, *self.layers = access.split(" ")
        self.writable, self.is_data = kind != "read", kind == "data"
        self.fd = -1


def main() -> None:
    """Stage, give root up, and become the program."""
    uid, gid, place, sources, groups = _read_spec(int(sys.argv[1]))
    _enter(groups)
    is_root = os.geteuid() == 0
    try:
        _call("unshare", _CLONE_NEWNS | (0 if is_root else _CLONE_NEWUSER))
        if not is_root:
            _stay(uid, gid)
        # What the host mounts and unmounts still comes in, so that we keep no disk busy; nothing
        # that we mount goes out.
        _call("mount", None, b"/", None, _MS_REC | _MS_SLAVE, None)
    except OSError as error:
        who = "root" if is_root else "a normal user"
        _fail(
            f"{who} may not mount anything here ({error.strerror}); is this a container?",
            "run kakoi outside of the container, or give the container CAP_SYS_ADMIN"
            if is_root
            else "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0, or do without --cow",
        )
    # All are opened before PLACE is covered: some may lie below it.
    for source in sources:
        _open(source, uid, gid)
    try:
        _mount_all(place, sources, uid, gid)
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
        uid, gid, place, *fields = spec.read().split("\0")
    groups = fields.pop().splitlines() if len(fields) % 4 == 1 else []
    sources = [Source(*fields[start : start + 4]) for start in range(0, len(fields), 4)]
    return int(uid), int(gid), place, sources, groups


def _enter(groups: list[str]) -> None:
    """What cannot be entered keeps nothing: better no sandbox than one without its limits."""
    for path in groups:
        try:
            with open(path, "w", encoding="ascii") as file:
                file.write("0")
        except OSError as error:
            _fail(f"cannot enter the control group {path}: {error.strerror}", "start it again")


def _open(source: Source, uid: int, gid: int) -> None:
    """Open a copy of the mount tree at the source, set for this sandbox and attached nowhere."""
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
    # In the namespace of a normal user, other owners have no numbers.
    if now.split()[: 4 if is_root else 2] != source.seen.split()[: 4 if is_root else 2]:
        _fail(f"{source.path} was replaced while it was being opened", "try again")
    # Flags that root sets here are locked for whoever comes to power in bubblewrap's namespaces.
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
            _fail(f"no copy-on-write here: {source.path} cannot be lent to user {uid}", _ELSEWHERE)
        _fail(
            f"{source.path} belongs to root, and neither it nor what is mounted below it can be "
            f"lent to an unprivileged user: no idmapped mounts there ({error.strerror})",
            f"chown -R {uid}:{gid} {source.path}",
        )


def _refuse_old_kernel(error: OSError) -> None:
    if error.errno == errno.ENOSYS:
        _fail("root needs Linux 5.12 or newer for this sandbox", "run kakoi as a normal user")


def _set(fd: int, attributes: int, namespace: int = 0) -> None:
    wanted = _Attributes(attributes, 0, _MS_PRIVATE, namespace)
    flags = _AT_EMPTY_PATH | _AT_RECURSIVE
    size = ctypes.sizeof(wanted)
    _call("syscall", _MOUNT_SETATTR, fd, b"", flags, ctypes.byref(wanted), size)


def _swapping_namespace(uid: int, gid: int) -> int:
    """A user namespace in which root and `uid`, and root's group and `gid`, have changed places."""
    ready, their_ready = os.pipe()
    their_hold, hold = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(hold)
            _call("unshare", _CLONE_NEWUSER)
            os.write(their_ready, b".")
            os.read(their_hold, 1)  # Until they have it, or are dead.
        finally:
            os._exit(0)
    try:
        os.close(their_ready)
        if not os.read(ready, 1):
            raise OSError(errno.EPERM, "no user namespace could be made")
        for name, other in (("uid_map", uid), ("gid_map", gid)):
            with open(f"/proc/{pid}/{name}", "w", encoding="ascii") as file:
                file.write(swap_with_root(other))
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        for fd in (ready, their_hold, hold):
            os.close(fd)
        os.waitpid(pid, 0)


def swap_with_root(other: int) -> str:
    """The lines of a uid_map or gid_map by which 0 and `other` change places; 0: nothing does."""
    if other == 0:
        return f"0 0 {_ALL_IDS}\n"
    behind = other + 1
    extents = [(0, other, 1), (1, 1, other - 1), (other, 0, 1), (behind, behind, _ALL_IDS - behind)]
    return "".join(f"{on_disk} {seen} {count}\n" for on_disk, seen, count in extents if count)


def _mount_all(place: str, sources: list[Source], uid: int, gid: int) -> None:
    _cover(place)
    for source in sources:
        target = os.fsencode(os.path.join(place, source.name))
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
            _overlay(place, source)


def _overlay(place: str, source: Source) -> None:
    """Mount an overlay on the source. What it is made of has no other name afterwards."""
    os.chdir(place)  # Relative names: the kernel takes no more than a page of options.
    upper, *lower = [f"{LAYERS}/{name}" for name in source.layers]
    options = (
        f"userxattr,index=off,lowerdir={':'.join([*lower, source.name])},"
        f"upperdir={upper},workdir={LAYERS}/work"
    )
    name = os.fsencode(source.name)
    try:
        flags = _MS_NOSUID | _MS_NODEV
        token = f"kakoi:{_layers_id()}".encode("ascii")
        _call("mount", token, name, b"overlay", flags, options.encode("ascii"))
    except OSError as error:
        _fail(
            f"no copy-on-write here: the kernel cannot put an overlay on {source.path} "
            f"({error.strerror})",
            _ELSEWHERE,
        )
    _call("umount2", LAYERS.encode("ascii"), _MNT_DETACH)
    os.rmdir(LAYERS)


def _layers_id() -> str:
    """By this name the mount can be found in the lists of mounts, whoever has it."""
    status = os.stat(LAYERS)
    return f"{status.st_dev}:{status.st_ino}"


def _stay(uid: int, gid: int) -> None:
    """Be the same user in the new user namespace as before, and have nobody else in it."""
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
    """Let the user get to `path`: a directory above it that is closed is covered by an open one."""
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
    """Begin a new session of the kernel's keyrings: whoever is in the old one has its keys."""
    machine = os.uname().machine
    if machine not in _KEYCTL:
        _fail(f"the keys of this session cannot be kept back on {machine}", "use docker")
    try:
        _call("syscall", _KEYCTL[machine], _KEYCTL_JOIN_SESSION_KEYRING, None)
    except OSError as error:
        # No keyrings here; or a filter of system calls refuses, and those are inherited.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise


def _give_root_up(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # Inherited "securebits" can make root's capabilities outlive its uid. As bytes: we may not be
    # able any more to reach the files of our own Python, and an encoding is one.
    with open("/proc/self/status", "rb") as status:
        kept = [line for line in status if line.startswith((b"CapPrm", b"CapEff", b"CapAmb"))]
    powerless = len(kept) == 3 and all(int(line.split()[1], 16) == 0 for line in kept)
    if not powerless or 0 in (*os.getresuid(), *os.getresgid()) or os.getgroups():
        _fail("root could not be given up for certain", "run kakoi as a normal user")


def _call(name: str, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result: int = getattr(libc, name)(*words)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


def _fail(what: str, fix: str) -> NoReturn:
    lines = f"staging: {what}\nfix: {fix}\n"
    os.write(2, lines.encode("utf-8", "surrogateescape"))
    os._exit(FAILED)


if __name__ == "__main__":
    main()
