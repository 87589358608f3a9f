"""The filter of system calls, call by call: read as the kernel reads it, and tried in a sandbox."""

import errno
import os
import platform
import struct
from collections.abc import Iterator

import pytest

from kakoi.backends.seccomp import (
    ABSENT,
    DENIED,
    FAMILIES,
    MACHINES,
    SHARED,
    WATCHING,
    memory_file_filters,
    system_call_filters,
)
from tests.backends.boxes import KINDS, Box, a_box, require_bubblewrap

ALLOWED, KILLED = 0, -1
BELOW_X32 = 0x40000000


def verdict(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """What the kernel would say: 0, -1 for a kill, or the number of an error."""
    words = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *words)
    code = list(struct.iter_unpack("=HBBI", program))
    at = value = 0
    while True:
        kind, yes, no, operand = code[at]
        at += 1
        if kind == 0x20:
            value = struct.unpack_from("=I", data, operand)[0]
        elif kind == 0x06:
            break
        else:
            holds = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}
            at += yes if holds[kind] else no
    said: int = {0x7FFF0000: ALLOWED, 0x80000000: KILLED}.get(operand, operand & 0xFFFF)
    return said


@pytest.fixture(params=list(MACHINES))
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[False, True], ids=["ours", "lent"])
def program(request: pytest.FixtureRequest, machine: str) -> bytes:
    return system_call_filters(deny_setuid=request.param)[machine]


def test_exactly_the_listed_calls_are_refused_whatever_they_are_given(
    machine: str, program: bytes
) -> None:
    known = MACHINES[machine]
    refused = {
        number: said
        for number in range(600)
        if (said := verdict(program, known.architecture, number, 0, 0, 0, 0, 0, 0)) != ALLOWED
    }
    wanted = {known.numbers[name]: errno.EPERM for name in DENIED if name in known.numbers}
    wanted |= {known.numbers[name]: errno.ENOSYS for name in ABSENT if name in known.numbers}
    # With no family at all.
    wanted[known.numbers["socket"]] = errno.EAFNOSUPPORT
    refused.pop(known.numbers["openat2"], None)  # Where setuid is denied: see below.
    assert refused == wanted


def test_other_numbers_than_the_machines_own_do_not_get_through(
    machine: str, program: bytes
) -> None:
    for other in {each.architecture for each in MACHINES.values()} | {0x40000003, 0}:
        if other != MACHINES[machine].architecture:
            assert verdict(program, other, 1) == KILLED
    x32 = BELOW_X32 + 1
    assert verdict(program, MACHINES[machine].architecture, x32) == errno.ENOSYS


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (0x10000000, errno.EPERM),  # CLONE_NEWUSER
        (0x00020000, errno.EPERM),  # CLONE_NEWNS
        (0x40000000, errno.EPERM),  # CLONE_NEWNET
        (0x20000000 | 17, errno.EPERM),  # CLONE_NEWPID, and SIGCHLD
        (0x02000000, errno.EPERM),  # CLONE_NEWCGROUP
        (0x003D0F00, ALLOWED),  # A thread.
        (0x01200011, ALLOWED),  # fork
        (0x00004111, ALLOWED),  # vfork
    ],
)
def test_no_namespace_is_made_by_clone(machine: str, program: bytes, flag: int, said: int) -> None:
    known = MACHINES[machine]
    assert verdict(program, known.architecture, known.numbers["clone"], flag) == said


def test_only_the_usual_sockets_are_made(machine: str, program: bytes) -> None:
    known = MACHINES[machine]
    allowed = [
        family
        for family in range(64)
        if verdict(program, known.architecture, known.numbers["socket"], family) == ALLOWED
    ]
    assert tuple(allowed) == FAMILIES


def test_nobody_types_into_a_terminal(machine: str, program: bytes) -> None:
    known = MACHINES[machine]
    for request, said in ((0x5412, errno.EPERM), (0x541C, errno.EPERM), (0x5413, ALLOWED)):
        assert verdict(program, known.architecture, known.numbers["ioctl"], 0, request) == said


@pytest.mark.parametrize("lent", [False, True])
def test_the_setuid_bit_is_refused_where_it_would_be_roots(machine: str, lent: bool) -> None:
    program = system_call_filters(deny_setuid=lent)[machine]
    known = MACHINES[machine]

    def said(name: str, *arguments: int) -> int:
        return verdict(program, known.architecture, known.numbers[name], *arguments)

    refused = errno.EPERM if lent else ALLOWED
    for bit in (0o4000, 0o2000, 0o6755):
        assert said("fchmod", 3, bit) == refused
        assert said("fchmodat", 3, 0, bit) == refused
        assert said("fchmodat2", 3, 0, bit) == refused
        assert said("mknodat", 3, 0, 0o100000 | bit) == refused
        assert said("openat", 3, 0, os.O_CREAT | os.O_WRONLY, bit) == refused
        assert said("openat", 3, 0, 0o20200000, bit) == refused  # O_TMPFILE
        assert said("openat", 3, 0, os.O_RDONLY, bit) == ALLOWED
    assert said("fchmod", 3, 0o755) == ALLOWED
    assert said("openat", 3, 0, os.O_CREAT, 0o644) == ALLOWED
    assert said("openat2", 3) == (errno.ENOSYS if lent else ALLOWED)


# --- In a sandbox ------------------------------------------------------------------------------


@pytest.fixture(params=KINDS)
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    require_bubblewrap()
    with a_box(request.param) as box:
        yield box


CALLS = """
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
for pair in sys.argv[1:]:
    name, number = pair.split("=")
    ctypes.set_errno(0)
    said = libc.syscall(int(number), 0, 0, 0, 0, 0, 0)
    print(name, errno.errorcode.get(ctypes.get_errno(), "none") if said == -1 else "done")
"""


def test_every_denied_call_is_refused_by_the_kernel(box: Box) -> None:
    numbers = MACHINES[platform.machine()].numbers
    names = [name for name in (*DENIED, *ABSENT) if name in numbers]
    said = box.python(CALLS, *(f"{name}={numbers[name]}" for name in names))
    found = dict(line.split() for line in said.lines)
    assert found == {name: "ENOSYS" if name in ABSENT else "EPERM" for name in names}


def test_everyday_work_is_not_disturbed(box: Box) -> None:
    said = box.python(
        "import multiprocessing as m, os, pty, socket, subprocess, tempfile, threading\n"
        "thread = threading.Thread(target=lambda: print('thread')); thread.start(); thread.join()\n"
        "print(subprocess.run(['echo', 'child'], capture_output=True, text=True).stdout.strip())\n"
        "print(os.waitpid(pty.fork()[0] or os._exit(0), 0)[1])\n"
        "socket.socketpair(); socket.socket(); socket.socket(type=socket.SOCK_DGRAM)\n"
        "tempfile.TemporaryFile(); os.memfd_create('x'); os.eventfd(0)\n"
        "with m.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))\n"
    )
    assert said.lines == ["thread", "child", "0", "[1, 2]"], said.stderr


# --- Without namespaces ----------------------------------------------------------------------


def test_among_others_no_socket_and_nothing_shared_is_left(machine: str) -> None:
    known = MACHINES[machine]
    alone = system_call_filters(deny_setuid=False, families=(), among_others=True)[machine]

    def said(name: str, *arguments: int) -> int:
        return verdict(alone, known.architecture, known.numbers[name], *arguments)

    assert {said("socket", family) for family in range(64)} == {errno.EAFNOSUPPORT}
    assert {said(name) for name in SHARED} == {errno.EPERM}
    assert {said(name) for name in WATCHING if name in known.numbers} == {errno.ENOSYS}
    stream, datagram, flags = 1, 2, (0, 0x800, 0x80000, 0x80800)
    assert {said("socketpair", 1, stream | flag) for flag in flags} == {ALLOWED}
    assert {said("socketpair", 1, datagram | flag) for flag in flags} == {errno.EPERM}
    assert said("mount") == errno.EPERM


def test_limits_of_other_processes_are_nobodys_to_set(machine: str) -> None:
    known = MACHINES[machine]
    program = system_call_filters(deny_setuid=False)[machine]
    number = known.numbers["prlimit64"]
    assert verdict(program, known.architecture, number, 0) == ALLOWED
    assert {verdict(program, known.architecture, number, pid) for pid in (1, 2, 4711)} == {
        errno.EPERM
    }


def test_files_in_memory_are_as_if_the_kernel_had_none(machine: str) -> None:
    known = MACHINES[machine]
    program = memory_file_filters()[machine]
    refused = [n for n in range(600) if verdict(program, known.architecture, n) != ALLOWED]
    assert refused == [known.numbers["memfd_create"]]
