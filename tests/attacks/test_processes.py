"""Seeing, signalling, tracing and changing processes that are not its own."""

import os
import resource
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.attacks.conftest import Place

pytestmark = pytest.mark.anyio


@pytest.fixture
def neighbour(mark: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of this machine, with a secret in its environment, of the user who runs commands
    wherever that is possible: who it belongs to must not be what protects it."""
    code = "import sys; sys.stdin.read()"
    env = {**os.environ, "NEIGHBOUR_SECRET": mark}
    argv = [sys.executable, "-c", code]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, env=env) as process:
        yield process
        process.kill()


ENVIRONMENTS = """
import os, sys
for name in filter(str.isdigit, os.listdir("/proc")):
    try:
        if sys.argv[1].encode() in open(f"/proc/{name}/environ", "rb").read():
            print(name)
    except OSError:
        pass
"""


async def test_no_secret_of_another_process_is_read(
    place: Place, neighbour: "subprocess.Popen[bytes]", mark: str
) -> None:
    assert await place.python(ENVIRONMENTS, mark) == []


SIGNALS = """
import ctypes, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
def attempt(what, function, *words):
    try:
        function(*words)
        print(what)
    except (OSError, AttributeError):
        pass
def call(number, *words):
    if libc.syscall(number, *words) == -1:
        raise OSError(ctypes.get_errno(), "")
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT, 0):
    attempt(f"kill {number}", os.kill, pid, number)
attempt("group", os.killpg, pid, signal.SIGKILL)
attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(pid), signal.SIGKILL))
attempt("tgkill", call, 234, pid, pid, signal.SIGKILL)
attempt("queue", call, 129, pid, signal.SIGKILL, ctypes.create_string_buffer(128))
"""


async def is_hidden(place: Place, process: "subprocess.Popen[bytes]") -> bool:
    """Not, if by chance a process of the sandbox has its number there."""
    text = "import os, sys; print(os.path.exists(f'/proc/{sys.argv[1]}'))"
    return await place.python(text, str(process.pid)) == ["False"]


async def test_no_signal_reaches_a_process_of_the_machine(
    place: Place, neighbour: "subprocess.Popen[bytes]"
) -> None:
    if await is_hidden(place, neighbour) or not place.traits.isolates_processes:
        assert await place.python(SIGNALS, str(neighbour.pid)) == []
    assert neighbour.poll() is None


TRACING = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.argv[1])
class Vector(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
def refused(what, value):
    if value != -1:
        print(what)
ATTACH, SEIZE = 16, 0x4206
refused("attach", libc.ptrace(ATTACH, pid, 0, 0))
refused("seize", libc.ptrace(SEIZE, pid, 0, 0))
space = ctypes.create_string_buffer(16)
ours = Vector(ctypes.addressof(space), 16)
theirs = Vector(0x400000, 16)
refused("read", libc.process_vm_readv(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0))
refused("write", libc.process_vm_writev(pid, ctypes.byref(ours), 1, ctypes.byref(theirs), 1, 0))
for what, flags in (("mem", os.O_RDWR), ("root", os.O_PATH | os.O_DIRECTORY), ("fd/0", os.O_RDONLY)):
    try:
        os.open(f"/proc/{pid}/{what}", flags)
        print(what)
    except OSError:
        pass
refused("kcmp", libc.syscall(312, pid, os.getpid(), 0, 0, 0))
try:
    refused("pidfd_getfd", libc.syscall(438, os.pidfd_open(pid), 0, 0))
except OSError:
    pass
"""


async def test_no_process_of_the_machine_is_traced(
    place: Place, neighbour: "subprocess.Popen[bytes]"
) -> None:
    if await is_hidden(place, neighbour) or not place.traits.isolates_processes:
        assert await place.python(TRACING, str(neighbour.pid)) == []
    assert neighbour.poll() is None


async def test_priorities_limits_and_affinity_of_others_stay(
    place: Place, neighbour: "subprocess.Popen[bytes]"
) -> None:
    text = """
    import os, resource, sys
    pid = int(sys.argv[1])
    for what in (
        lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
        lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, 3)),
        lambda: os.sched_setaffinity(pid, {0}),
        lambda: open(f"/proc/{pid}/oom_score_adj", "w").write("1000"),
    ):
        try:
            what()
        except OSError:
            pass
    """
    before = _facts(neighbour.pid)
    await place.python(text, str(neighbour.pid))
    assert _facts(neighbour.pid) == before


def _facts(pid: int) -> list[object]:
    return [
        os.getpriority(os.PRIO_PROCESS, pid),
        resource.prlimit(pid, resource.RLIMIT_NOFILE),
        os.sched_getaffinity(pid),
    ]
