"""System call filters: they deny calls that no command needs and nothing else blocks.

A filter is a classic BPF program that the kernel runs before each system call in the sandbox. It is
a deny list, like that of container engines: changing mounts, modules, clocks and keys, the most
common targets of kernel exploits (io_uring, userfaultfd, bpf), new namespaces, unusual sockets.
"""

import errno
import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Final

from kakoi._support.late import dataclass

# --- BPF instructions --------------------------------------------------------------------------

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
# Offsets in `struct seccomp_data`: the call's number, the architecture, the low half of each
# argument.
_NUMBER, _ARCHITECTURE = 0, 4
_ARGUMENTS: Final = tuple(16 + 8 * index for index in range(6))
_X32: Final = 0x40000000  # Marks the x32 call numbers of x86-64.

# --- Denied calls ------------------------------------------------------------------------------

# EPERM, as if a privilege were missing.
DENIED: Final = """
    acct add_key bpf clock_adjtime clock_settime create_module delete_module fanotify_init
    finit_module fsconfig fsmount fsopen fspick get_kernel_syms init_module ioperm iopl kcmp
    kexec_file_load kexec_load keyctl lookup_dcookie memfd_secret mount mount_setattr move_mount
    nfsservctl open_by_handle_at open_tree open_tree_attr perf_event_open pivot_root query_module
    quotactl quotactl_fd reboot request_key setdomainname sethostname setns settimeofday swapoff
    swapon sysfs syslog umount2 unshare uselib userfaultfd ustat vhangup _sysctl
""".split()
# ENOSYS, as on an older kernel: libraries fall back to calls whose arguments a filter can see.
ABSENT: Final = "clone3 io_uring_enter io_uring_register io_uring_setup".split()
_NEW_NAMESPACES: Final = 0x7E020080
# AF_UNIX, AF_INET, AF_INET6, AF_NETLINK: others bypass namespaces, or have many security bugs.
FAMILIES: Final = (1, 2, 10, 16)
# IPC that processes of one user share without namespaces; Landlock does not cover it.
SHARED: Final = "mq_open msgget semget shmget".split()
# Watching a directory reveals the names in it, and Landlock does not cover that either.
WATCHING: Final = "inotify_init inotify_init1".split()
# A datagram socket from a pair can send to any other socket. SOCK_DGRAM with and without flags.
_DATAGRAM_PAIRS: Final = (0x2, 0x802, 0x80002, 0x80802)
# TIOCSTI types into a terminal, TIOCLINUX controls the console's selection.
_IOCTLS: Final = (0x5412, 0x541C)
_SETUID_OR_SETGID: Final = 0o6000
_CREATE: Final = 0o100 | 0o20000000  # O_CREAT, and O_TMPFILE.

# Call → the index of the argument with the file mode.
_MODES: Final = {
    "chmod": 1,
    "fchmod": 1,
    "fchmodat": 2,
    "fchmodat2": 2,
    "mknod": 1,
    "mknodat": 2,
    "creat": 1,
}
# Call → the indexes of flags and mode; the mode only matters if the call can create a file.
_OPENS: Final = {"open": (1, 2), "openat": (2, 3)}

_X86_64: Final[Mapping[str, int]] = {
    "acct": 163, "add_key": 248, "bpf": 321, "clock_adjtime": 305, "clock_settime": 227,
    "clone": 56, "clone3": 435, "create_module": 174, "creat": 85, "chmod": 90,
    "delete_module": 176, "fanotify_init": 300, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452,
    "finit_module": 313, "fsconfig": 431, "fsmount": 432, "fsopen": 430, "fspick": 433,
    "get_kernel_syms": 177, "init_module": 175, "io_uring_enter": 426, "io_uring_register": 427,
    "io_uring_setup": 425, "inotify_init": 253, "inotify_init1": 294, "ioctl": 16, "ioperm": 173,
    "iopl": 172, "kcmp": 312,
    "kexec_file_load": 320, "kexec_load": 246, "keyctl": 250, "lookup_dcookie": 212,
    "memfd_create": 319, "memfd_secret": 447, "mq_open": 240, "msgget": 68, "prlimit64": 302,
    "semget": 64, "shmget": 29, "socketpair": 53, "mknod": 133,
    "mknodat": 259, "mount": 165, "mount_setattr": 442,
    "move_mount": 429, "nfsservctl": 180, "open": 2, "open_by_handle_at": 304, "open_tree": 428,
    "open_tree_attr": 467, "openat": 257, "openat2": 437, "perf_event_open": 298,
    "pivot_root": 155, "query_module": 178,
    "quotactl": 179, "quotactl_fd": 443, "reboot": 169, "request_key": 249, "setdomainname": 171,
    "sethostname": 170, "setns": 308, "settimeofday": 164, "socket": 41, "swapoff": 168,
    "swapon": 167, "sysfs": 139, "syslog": 103, "umount2": 166, "unshare": 272, "uselib": 134,
    "userfaultfd": 323, "ustat": 136, "vhangup": 153, "_sysctl": 156,
}  # fmt: skip
# The numbers that newer architectures share.
_GENERIC: Final[Mapping[str, int]] = {
    "acct": 89, "add_key": 217, "bpf": 280, "clock_adjtime": 266, "clock_settime": 112,
    "clone": 220, "clone3": 435, "delete_module": 106, "fanotify_init": 262, "fchmod": 52,
    "fchmodat": 53, "fchmodat2": 452, "finit_module": 273, "fsconfig": 431, "fsmount": 432,
    "fsopen": 430, "fspick": 433, "init_module": 105, "io_uring_enter": 426,
    "io_uring_register": 427, "io_uring_setup": 425, "inotify_init1": 26, "ioctl": 29, "kcmp": 272,
    "kexec_file_load": 294, "kexec_load": 104, "keyctl": 219, "lookup_dcookie": 18,
    "memfd_create": 279, "memfd_secret": 447, "mq_open": 180, "msgget": 186, "prlimit64": 261,
    "semget": 190, "shmget": 194, "socketpair": 199, "mknodat": 33, "mount": 40,
    "mount_setattr": 442, "move_mount": 429,
    "nfsservctl": 42, "open_by_handle_at": 265, "open_tree": 428,
    "open_tree_attr": 467, "openat": 56, "openat2": 437,
    "perf_event_open": 241, "pivot_root": 41, "quotactl": 60, "quotactl_fd": 443, "reboot": 142,
    "request_key": 218, "setdomainname": 162, "sethostname": 161, "setns": 268,
    "settimeofday": 170, "socket": 198, "swapoff": 225, "swapon": 224, "syslog": 116, "umount2": 39,
    "unshare": 97, "userfaultfd": 282, "vhangup": 58,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """An architecture: the kernel's constant for it, and its system call numbers."""

    architecture: int
    numbers: Mapping[str, int]


MACHINES: Final[Mapping[str, Machine]] = {
    "x86_64": Machine(0xC000003E, _X86_64),
    "aarch64": Machine(0xC00000B7, _GENERIC),
    "riscv64": Machine(0xC00000F3, _GENERIC),
}


def system_call_filters(
    *,
    deny_setuid: bool,
    families: Sequence[int] = FAMILIES,
    among_others: bool = False,
) -> dict[str, bytes]:
    """Return the filter as the kernel takes it, for each machine whose call numbers we know.

    `deny_setuid`: no file can get the setuid or setgid bit. In a directory that root lends, such a
        file would belong to root.
    `families`: the address families of sockets that can be created.
    `among_others`: there are no namespaces, so the filter must isolate commands from other
        processes of this user.
    """
    return {
        name: _system_calls(
            name, deny_setuid=deny_setuid, families=tuple(families), among_others=among_others
        )
        for name in MACHINES
    }


def system_call_filter(machine: str, *, deny_setuid: bool) -> bytes | None:
    """Return the filter for one machine, None if its call numbers are unknown."""
    if machine not in MACHINES:
        return None
    return _system_calls(machine, deny_setuid=deny_setuid, families=FAMILIES, among_others=False)


def memory_file_filters() -> dict[str, bytes]:
    """Filters that deny memfd_create: a program in such a file runs whatever the path rules say."""
    return {name: _memory_files(machine) for name, machine in MACHINES.items()}


@cache  # Every sandbox gets one of a few.
def _system_calls(
    name: str, *, deny_setuid: bool, families: tuple[int, ...], among_others: bool
) -> bytes:
    machine = MACHINES[name]
    program = _Program()
    program.head(machine)
    numbers = machine.numbers
    program.refuse((numbers[name] for name in DENIED if name in numbers), errno.EPERM)
    program.refuse((numbers[name] for name in ABSENT if name in numbers), errno.ENOSYS)
    program.refuse_bits(numbers["clone"], 0, _NEW_NAMESPACES)
    program.refuse_values(numbers["ioctl"], 1, _IOCTLS)
    program.only_values(numbers["socket"], 0, families)
    # Setting another process's limits can kill it, and that process can be the runner.
    program.only_values(numbers["prlimit64"], 0, [0], error=errno.EPERM)
    if among_others:
        program.refuse((numbers[name] for name in SHARED), errno.EPERM)
        program.refuse((numbers[name] for name in WATCHING if name in numbers), errno.ENOSYS)
        program.refuse_values(numbers["socketpair"], 1, _DATAGRAM_PAIRS)
    if deny_setuid:
        for call, index in _MODES.items():
            if call in numbers:
                program.refuse_bits(numbers[call], index, _SETUID_OR_SETGID)
        for call, (flags, mode) in _OPENS.items():
            if call in numbers:
                program.refuse_creation(numbers[call], flags, mode)
        # Its mode is behind a pointer, which a filter cannot follow.
        program.refuse([numbers["openat2"]], errno.ENOSYS)
    return program.end()


def _memory_files(machine: Machine) -> bytes:
    program = _Program()
    program.head(machine)
    program.refuse([machine.numbers["memfd_create"]], errno.ENOSYS)
    return program.end()


class _Program:
    """A list of instructions. Each part starts and ends with the call's number loaded."""

    def __init__(self) -> None:
        self._code: list[bytes] = []

    def head(self, machine: Machine) -> None:
        """Kill a process that makes calls of another architecture; refuse x32 calls."""
        self._add(_LOAD, _ARCHITECTURE)
        self._add(_JUMP_EQUAL, machine.architecture, yes=1)
        self._add(_RETURN, _KILL)
        self._add(_LOAD, _NUMBER)
        self._add(_JUMP_AT_LEAST, _X32, no=1)
        self._add(_RETURN, _ERROR | errno.ENOSYS)

    def refuse(self, numbers: Iterable[int], error: int) -> None:
        """Refuse these calls, whatever their arguments."""
        for number in numbers:
            self._add(_JUMP_EQUAL, number, no=1)
            self._add(_RETURN, _ERROR | error)

    def refuse_bits(self, number: int, argument: int, bits: int) -> None:
        """Refuse the call if its argument has any of these bits."""
        self._add(_JUMP_EQUAL, number, no=4)
        self._add(_LOAD, _ARGUMENTS[argument])
        self._add(_JUMP_SET, bits, no=1)
        self._add(_RETURN, _ERROR | errno.EPERM)
        self._add(_LOAD, _NUMBER)

    def refuse_values(self, number: int, argument: int, values: Iterable[int]) -> None:
        """Refuse the call if its argument is one of these values."""
        given = list(values)
        self._add(_JUMP_EQUAL, number, no=2 + 2 * len(given))
        self._add(_LOAD, _ARGUMENTS[argument])
        for value in given:
            self._add(_JUMP_EQUAL, value, no=1)
            self._add(_RETURN, _ERROR | errno.EPERM)
        self._add(_LOAD, _NUMBER)

    def only_values(
        self,
        number: int,
        argument: int,
        values: Iterable[int],
        *,
        error: int = errno.EAFNOSUPPORT,
    ) -> None:
        """Refuse the call unless its argument is one of these values."""
        given = list(values)
        self._add(_JUMP_EQUAL, number, no=3 + len(given))
        self._add(_LOAD, _ARGUMENTS[argument])
        for left, value in zip(range(len(given), 0, -1), given, strict=True):
            self._add(_JUMP_EQUAL, value, yes=left)
        self._add(_RETURN, _ERROR | error)
        self._add(_LOAD, _NUMBER)

    def refuse_creation(self, number: int, flags: int, mode: int) -> None:
        """Refuse the call if it can create a file with the setuid or setgid bit."""
        self._add(_JUMP_EQUAL, number, no=6)
        self._add(_LOAD, _ARGUMENTS[flags])
        self._add(_JUMP_SET, _CREATE, no=3)
        self._add(_LOAD, _ARGUMENTS[mode])
        self._add(_JUMP_SET, _SETUID_OR_SETGID, no=1)
        self._add(_RETURN, _ERROR | errno.EPERM)
        self._add(_LOAD, _NUMBER)

    def end(self) -> bytes:
        """Allow every other call, and return the program."""
        self._add(_RETURN, _ALLOW)
        return b"".join(self._code)

    def _add(self, code: int, value: int, *, yes: int = 0, no: int = 0) -> None:
        self._code.append(struct.pack("=HBBI", code, yes, no, value))
