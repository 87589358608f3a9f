"""Kernel restrictions on commands, applied from inside the sandbox: Landlock, a system call filter,
noexec mounts, no capabilities.

The runner first restricts itself (`restrict_runner`), then its commands, in the process that forks
all keepers (`restrict_commands`). `restrictions` comes from backends/landlock.py.
Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
REFER, TRUNCATE, IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
# Rights that can be granted on something other than a directory.
_OF_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV

# The same numbers on every architecture.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _MOUNT_SETATTR = 444, 445, 446, 442
_VERSION = 1
_RULE_PATH, _RULE_PORT = 1, 2
_BIND, _CONNECT = 1, 2
_AT_FDCWD, _ATTR_NOEXEC = -100, 8
_PR_SET_SECCOMP, _PR_CAPBSET_READ, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 22, 23, 24, 38
_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_CLONE_NEWUSER = 0x10000000
_CAPABILITY_VERSION = 0x20080522


class RestrictionError(Exception):
    """A requested restriction cannot be enforced here. `fix` says what to do."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.fix = fix


def landlock_abi() -> int:
    """Return the Landlock version that can be used here; 0: none."""
    try:
        return _call("syscall", _CREATE_RULESET, None, 0, _VERSION)
    except OSError:
        return 0


def restrict_runner(restrictions: dict[str, Any]) -> None:
    """Apply the restrictions on the runner itself, which also cover its file operations."""
    needed = restrictions.get("needs_abi", 0)
    found = landlock_abi() if needed else 0
    if found < needed:
        have = f"it has ABI {found}" if found else "it is not there, or a filter forbids it"
        raise RestrictionError(
            f"this needs Landlock ABI {needed} from the kernel, and {have}",
            "boot a newer kernel with landlock in lsm=; in a container allow the landlock_* calls",
        )
    filters = [restrictions.get(who, {}).get("filter") for who in ("runner", "commands")]
    machine = os.uname().machine
    if needed and any(each and machine not in each for each in filters):
        raise RestrictionError(
            f"the system calls of {machine} are unknown", "use bubblewrap or docker"
        )
    try:
        for path in restrictions.get("noexec", ()):
            _forbid_programs(path)
        if restrictions.get("become"):
            _become(*restrictions["become"])
        _apply(restrictions.get("runner") or {})
    except OSError as error:
        raise RestrictionError(
            f"the kernel refused a restriction: {error}", "kakoi doctor"
        ) from None


def restrict_commands(restrictions: dict[str, Any]) -> None:
    """Apply the restrictions on commands, for this process and all its descendants."""
    _apply(restrictions.get("commands") or {})
    if "allowlist" in restrictions:
        restrict(**restrictions["allowlist"])


def _apply(rules: dict[str, Any]) -> None:
    if rules.get("landlock") and landlock_abi():
        restrict(**rules["landlock"])
    # The machine type is known only inside the sandbox.
    program = (rules.get("filter") or {}).get(os.uname().machine)
    if program:
        _filter_calls(program)


def restrict(
    handled: int = 0,
    paths: list[tuple[str, int]] | None = None,
    ports: tuple[list[int], list[int]] | None = None,
    scopes: int = 0,
) -> None:
    """Put this process into a Landlock domain.

    `handled`: file rights that are denied, except where `paths` grant them: (path, rights).
    `ports`: TCP ports that can be bound, and connected to; None: all.
    Rights that this kernel does not know are left out.
    """
    abi = landlock_abi()
    files = handled & _known_rights(abi)
    net = _BIND | _CONNECT if ports is not None and abi >= 4 else 0
    kept = scopes if abi >= 6 else 0
    if not files and not net and not kept:
        return
    attributes = struct.pack("=QQQ", files, net, kept)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    ruleset = _call("syscall", _CREATE_RULESET, attributes, size, 0)
    try:
        for path, rights in paths or ():
            _grant(ruleset, path, rights & files)
        if net and ports is not None:
            for right, numbers in zip((_BIND, _CONNECT), ports):  # noqa: B905 - Python 3.8
                for number in numbers:
                    rule = struct.pack("=QQ", right, number)
                    _call("syscall", _ADD_RULE, ruleset, _RULE_PORT, rule, 0)
        _call("syscall", _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _known_rights(abi: int) -> int:
    if abi < 1:
        return 0
    return (1 << (13 + min(abi - 1, 2) + (abi >= 5))) - 1


def _grant(ruleset: int, path: str, rights: int) -> None:
    """Grant rights on a path. A path that does not exist or cannot be entered needs no grant."""
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return
    try:
        if not os.path.isdir(f"/proc/self/fd/{opened}"):
            rights &= _OF_FILES
        if rights:
            rule = struct.pack("=Qi", rights, opened)
            _call("syscall", _ADD_RULE, ruleset, _RULE_PATH, rule, 0)
    finally:
        os.close(opened)


def _filter_calls(program: bytes) -> None:
    import ctypes

    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        """struct sock_fprog"""

        _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))

    wanted = Program(len(program) // 8, ctypes.cast(code, ctypes.c_void_p))
    _call("prctl", _PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    _call("prctl", _PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(wanted), 0, 0)


def _forbid_programs(path: str) -> None:
    """Make a mount noexec: no file on it can be executed or mapped as code."""
    wanted = struct.pack("=QQQQ", _ATTR_NOEXEC, 0, 0, 0)
    name = path.encode("utf-8", "surrogateescape")
    _call("syscall", _MOUNT_SETATTR, _AT_FDCWD, name, 0, wanted, len(wanted))


def _become(uid: int, gid: int) -> None:
    """Become `uid` in a new user namespace, without any capability."""
    outer = (os.getuid(), os.getgid())
    _call("unshare", _CLONE_NEWUSER)
    for name, inside, outside in (("uid_map", uid, outer[0]), ("gid_map", gid, outer[1])):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(f"{inside} {outside} 1\n")
    number = 0
    while _has_capability(number):
        _call("prctl", _PR_CAPBSET_DROP, number, 0, 0, 0)
        number += 1
    _call("prctl", _PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0)
    _call("capset", struct.pack("=Ii", _CAPABILITY_VERSION, 0), bytes(24))


def _has_capability(number: int) -> bool:
    try:
        return _call("prctl", _PR_CAPBSET_READ, number, 0, 0, 0) >= 0
    except OSError:  # Beyond the last one.
        return False


def _call(name: str, *arguments: Any) -> int:
    import ctypes  # Here, because most sandboxes are restricted from outside.

    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    result: int = getattr(libc, name)(*words)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result
