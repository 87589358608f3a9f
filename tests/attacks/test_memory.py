"""Filling memory that belongs to no process: files without a name outlive whoever is killed first.

The one that does it is ended as what it is; the runner and other commands go on where there is a
control group for each, and where there is none, everything that is lost with them says why.
"""

import asyncio
import contextlib
import textwrap
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kakoi.backends.adapter import Limits, SandboxAdapter
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.host.adapter import HostAdapter
from kakoi.channel.api import MIB, Command
from kakoi.errors import SandboxError
from kakoi.results import Reason
from tests.backends.boxes import needs_root, require_bubblewrap, skip_without_groups
from tests.cli.conftest import has_image, need

pytestmark = [pytest.mark.anyio, needs_root]

PATIENCE_S = 60.0
LIMITS = Limits(memory_bytes=96 * MIB, processes=60, disk_bytes=16 * MIB)
NO_DISK = Limits(memory_bytes=96 * MIB, processes=60, disk_bytes=None)

FILL = """
import os
file = os.memfd_create("")
while True:
    os.write(file, bytes(1 << 16))
"""
# Small, and as unlikely a victim as a process can make itself: everybody else is a better one.
HIDE_AND_FILL = """
import os
try:
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("0")
except OSError:
    pass
os.dup2(os.memfd_create(""), 1)
os.execvp("dd", ["dd", "if=/dev/zero", "bs=64k"])
"""
# Nothing frees it but whoever removes it, or the end of the sandbox.
FILL_SYSTEM_V = """
import ctypes
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for _ in range(1000):
    number = libc.shmget(0, 1 << 20, 0o1600)
    if number < 0:
        raise SystemExit("refused")
    at = libc.shmat(number, None, 0)
    ctypes.memset(at, 1, 1 << 20)
    libc.shmdt(ctypes.c_void_p(at))
"""


def make(kind: str, workspace: Path) -> SandboxAdapter:
    if kind == "bubblewrap":
        require_bubblewrap()
        return BubblewrapAdapter(workspace, limits=LIMITS)
    if kind == "confined-host":
        return HostAdapter(workspace, confine=True, limits=NO_DISK)
    need("docker", is_there=has_image("kakoi-test:python"))
    settings = DockerSettings(image="kakoi-test:python", limits=LIMITS)
    return DockerAdapter(settings, lifetime="sandbox")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module", params=["bubblewrap", "confined-host", "docker"])
async def sandbox(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SandboxAdapter]:
    workspace = tmp_path_factory.mktemp("filled")
    adapter = await asyncio.to_thread(make, request.param, workspace)
    try:
        await adapter.channel()
        if "group" not in adapter.limit_report.enforced["memory_bytes"]:
            skip_without_groups("memory")
        yield adapter
    finally:
        await adapter.cleanup()


def has_groups_inside(sandbox: SandboxAdapter) -> bool:
    """In a container nobody can make some: the engine's groups are not to be written there."""
    return sandbox.name != "docker"


async def filled_beside_others(
    sandbox: SandboxAdapter, hog: str
) -> tuple[Reason, Reason | None, Reason | None]:
    """Why the hog ended, and a command and a job that ran beside it; None: they go on."""
    channel = await sandbox.channel()
    job = await channel.start(Command(command="exec sleep 300"))
    waiting = Command(command="echo up; exec sleep 300", timeout_s=PATIENCE_S)
    async with asyncio.timeout(PATIENCE_S):
        async with channel.open(waiting) as other:
            assert [part async for _, part in _first(other.output())] == [b"up\n"]
            command = Command(command=["python3", "-c", hog], timeout_s=PATIENCE_S)
            result = await sandbox.run(command)
            ended = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    ended = (await other.result()).reason
        try:
            known = await channel.wait_job(job, wait_s=0.1)
            told = None if known is None else known.reason
        except SandboxError as error:
            told = Reason(str(error.details["reason"]))
        if told is None:
            await channel.stop_job(job)
    return result.reason, ended, told


async def _first(
    output: AsyncIterator[tuple[str, bytes]],
) -> AsyncIterator[tuple[str, bytes]]:
    yield await anext(output)


async def is_alive(sandbox: SandboxAdapter) -> bool:
    return (await sandbox.run(Command(command="echo alive"))).stdout == "alive\n"


async def test_a_file_in_memory_costs_its_command_alone(sandbox: SandboxAdapter) -> None:
    channel = await sandbox.channel()
    hog, _, _ = await filled_beside_others(sandbox, FILL)
    assert hog is Reason.OUT_OF_MEMORY
    assert not channel.lost
    assert await is_alive(sandbox)


async def test_a_hog_that_hides_behind_others_does_not_cost_them_or_says_why(
    sandbox: SandboxAdapter,
) -> None:
    hog, other, job = await filled_beside_others(sandbox, HIDE_AND_FILL)
    assert hog is Reason.OUT_OF_MEMORY
    if has_groups_inside(sandbox):
        assert (other, job) == (None, None)
    else:
        assert {other, job} <= {Reason.OUT_OF_MEMORY, None}
    assert await is_alive(sandbox)


async def test_memory_that_stays_behind_leaves_the_others_alone(sandbox: SandboxAdapter) -> None:
    if not has_groups_inside(sandbox):
        return
    hog, other, job = await filled_beside_others(sandbox, FILL_SYSTEM_V)
    # The confined host has no such memory at all.
    expected = Reason.EXITED if sandbox.name == "confined-host" else Reason.OUT_OF_MEMORY
    assert (hog, other, job) == (expected, None, None)
    assert await is_alive(sandbox)


async def test_commands_are_killed_before_what_keeps_them(sandbox: SandboxAdapter) -> None:
    """By the kernel's own measure, which a command may lower again for itself alone."""
    if sandbox.name == "confined-host":  # /proc is closed to its keepers, and they have groups.
        return
    text = """
    import os, time
    def score(pid):
        return int(open(f"/proc/{pid}/oom_score_adj").read())
    keeper = os.getppid()
    runner = int(open(f"/proc/{keeper}/stat").read().rsplit(")", 1)[1].split()[1])
    give_up = time.monotonic() + 10
    while score("self") == score(keeper) and time.monotonic() < give_up:
        time.sleep(0.01)
    print(score("self"), score(keeper), score(runner))
    """
    result = await sandbox.run(Command(command=["python3", "-c", textwrap.dedent(text)]))
    command, keeper, runner = map(int, result.stdout.split())
    assert command > keeper > runner


async def test_without_python_inside_a_hog_ends_as_what_it_is_and_others_go_on() -> None:
    """Files in memory are sized there, and nothing else is nobody's own."""
    need("docker", is_there=await asyncio.to_thread(has_image, "kakoi-test:busybox"))
    settings = DockerSettings(image="kakoi-test:busybox", limits=LIMITS)
    sandbox = DockerAdapter(settings, lifetime="sandbox")
    try:
        channel = await sandbox.channel()
        job = await channel.start(Command(command="exec sleep 300"))
        fill = "for d in /tmp /var/tmp /dev/shm /run; do cat /dev/zero > $d/f; done 2>/dev/null"
        hog = Command(command=f"{fill}; exec tail /dev/zero", timeout_s=PATIENCE_S)
        result = await sandbox.run(hog)
        assert (result.reason, result.exit_code) == (Reason.OUT_OF_MEMORY, 137)
        assert await channel.wait_job(job, wait_s=0.1) is None
        assert await is_alive(sandbox)
    finally:
        await sandbox.cleanup()
