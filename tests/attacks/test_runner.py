"""Attacks on what runs commands in there: the runner, and the keeper above each command."""

import pytest

from tests.attacks.conftest import Place

pytestmark = pytest.mark.anyio

# `keeper` and `runner`, and a call that says what it got.
TARGETS = """
import ctypes, errno, os, resource, struct
libc = ctypes.CDLL(None, use_errno=True)
def call(*words):
    result = libc.syscall(*[ctypes.c_long(w) if isinstance(w, int) else w for w in words])
    return result if result != -1 else -ctypes.get_errno()
def above(pid):
    return int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
keeper = os.getppid()
targets = {"keeper": keeper, "runner": above(keeper)}
"""
LOOK_INTO_THE_RUNNER = (
    TARGETS
    + """
buffer = ctypes.create_string_buffer(64)
ours = struct.pack("QQ", ctypes.addressof(buffer), 8)
for who, pid in targets.items():
    for name in ("mem", "maps", "environ", "auxv", "stack", "syscall", "fd/0", "exe", "cwd"):
        for flags in (os.O_RDONLY, os.O_RDWR):
            try:
                os.close(os.open(f"/proc/{pid}/{name}", flags))
                print(who, name)
            except OSError:
                pass
    try:
        print(who, os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        pass
    theirs = struct.pack("QQ", 0x400000, 8)
    attempts = {
        "process_vm_readv": (310, pid, ours, 1, theirs, 1, 0),
        "process_vm_writev": (311, pid, ours, 1, theirs, 1, 0),
        "ptrace attach": (101, 16, pid, 0, 0),
        "ptrace seize": (101, 0x4206, pid, 0, 0),
        "kcmp": (312, os.getpid(), pid, 0, 0, 0),
        "get_robust_list": (274, pid, buffer, buffer),
        "move_pages": (279, pid, 0, 0, 0, 0, 0),
    }
    for name, words in attempts.items():
        if call(*words) not in (-errno.EPERM, -errno.EACCES):
            print(who, name)
    try:
        held = os.pidfd_open(pid)
    except OSError:
        continue
    for number in range(64):
        if call(438, held, number, 0) != -errno.EPERM:
            print(who, "pidfd_getfd", number)
"""
)


async def test_nobody_looks_into_the_runner_or_takes_its_descriptors(place: Place) -> None:
    """Its memory has the words of other commands, and its descriptors lead to us."""
    assert await place.python(LOOK_INTO_THE_RUNNER) == []


async def test_nobody_sets_the_limits_of_the_runner(place: Place) -> None:
    """Without a descriptor to open it could start nothing more, and without time it would end."""
    text = """
    for who, pid in targets.items():
        for limit in (resource.RLIMIT_NOFILE, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE):
            try:
                resource.prlimit(pid, limit, (1, 1))
                print(who, limit)
            except OSError:
                pass
        for name in ("oom_score_adj", "coredump_filter", "comm", "clear_refs"):
            try:
                with open(f"/proc/{pid}/{name}", "w") as file:
                    file.write("1")
                print(who, name)
            except OSError:
                pass
    resource.prlimit(0, resource.RLIMIT_NOFILE, (64, 64))
    print("own", resource.getrlimit(resource.RLIMIT_NOFILE))
    """
    assert await place.python(TARGETS + _dedent(text)) == ["own (64, 64)"]
    # One that is starved would have nothing left for these.
    for _ in range(5):
        assert (await place.bash("ls /proc/self/fd >/dev/null && echo alive")).stdout == "alive\n"


async def test_a_runner_that_is_made_slow_still_serves(place: Place) -> None:
    """Priorities of one user's processes are not kept apart: it costs time and nothing else."""
    text = """
    for pid in targets.values():
        for attempt in (
            lambda: os.setpriority(os.PRIO_PROCESS, pid, 19),
            lambda: os.sched_setaffinity(pid, {min(os.sched_getaffinity(0))}),
            lambda: os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0)),
        ):
            try:
                attempt()
            except OSError:
                pass
    """
    assert await place.python(TARGETS + _dedent(text)) == []
    assert (await place.bash("echo alive")).stdout == "alive\n"


def _dedent(text: str) -> str:
    return "\n".join(line.removeprefix("    ") for line in text.splitlines())
