"""`kill -9` of a manager at each step of prepare and cleanup; one sweep leaves nothing."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from kakoi.backends.docker.checks import parse_mounts
from kakoi.tasks.task import container_name
from tests.backends.boxes import loops
from tests.engine import containers
from tests.tasks.conftest import Make
from tests.tasks.hosting import GitServer, a_task, docker, wait_until

pytestmark = pytest.mark.anyio

# Runs a whole life, says each step (before and after it is done) and waits at the one it is to be
# killed at. Steps are calls of the engine and of git here, and the manager's own.
CHILD = """
import asyncio, sys
from kakoi.process.executor import ProcessExecutor
from kakoi.tasks.environments import *
from kakoi.tasks.task import Task
from tests.tasks.hosting import PYTHON, now, program_of

owner, uuid, repository, stop_at = sys.argv[1:]
number = 0

async def step(name):
    global number
    number += 1
    print(f"{number} {name}", flush=True)
    if number == int(stop_at):
        await asyncio.Event().wait()

class Stepping(ProcessExecutor):
    async def spawn(self, command, args=(), options=None):
        await step(f"before {program_of(command, args)}")
        result = await super().spawn(command, args, options)
        await step(f"after {program_of(command, args)}")
        return result

class Manager(ExecutionEnvironmentManager):
    async def _clone_project(self, container_id, task):
        await step("before clone")
        await super()._clone_project(container_id, task)
        await step("after clone")

    async def _install_dependencies(self, container_id):
        await step("before dependencies")
        await super()._install_dependencies(container_id)
        await step("after dependencies")

async def main():
    # A server of git beside us is a neighbour, which only the network of the engine leads to.
    network = "bridge" if repository.startswith("http") else "open"
    options = EnvironmentOptions(image=PYTHON, network=network)
    manager = Manager(options, clock=now, owner=owner, executor=Stepping())
    task = Task(uuid=uuid, repository=repository)
    info = await manager.prepare(task)
    await step("ready")
    await manager.execute(info.container_id, "sleep 0.1 & true")
    await step("executed")
    await manager.cleanup(uuid)
    print("0 over", flush=True)

asyncio.run(main())
"""
ROOT = Path(__file__).resolve().parent.parent.parent


async def start(owner: str, uuid: str, repository: str, stop_at: int) -> asyncio.subprocess.Process:
    argv = [sys.executable, "-c", CHILD, owner, uuid, repository, str(stop_at)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return await asyncio.create_subprocess_exec(*argv, cwd=ROOT, env=env, stdout=subprocess.PIPE)


async def live_and_die(owner: str, repository: str, stop_at: int) -> list[str]:
    """The steps until it was killed, or all."""
    child = await start(owner, a_task().uuid, repository, stop_at)
    assert child.stdout is not None
    steps = []
    async with asyncio.timeout(120):
        async for line in child.stdout:
            number, _, name = line.decode().strip().partition(" ")
            steps.append(name)
            if int(number) == stop_at:
                os.kill(child.pid, signal.SIGKILL)
        await child.wait()
    return steps


def processes(word: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if word in words and "pytest" not in words:
            found.append(words)
    return found


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def disks_of(name: str) -> list[str]:
    """The files behind the loop devices that a container has, if it runs."""
    pid = docker("inspect", "--format", "{{.State.Pid}}", name)
    if pid == "0":
        return []
    text = Path(f"/proc/{pid}/mountinfo").read_text()
    devices = {each.loop for each in parse_mounts(text).values()} - {""}
    return [loops()[device] for device in devices]


def volumes_of(name: str) -> list[str]:
    mounts = json.loads(docker("inspect", "--format", "{{json .Mounts}}", name))
    return [mount["Name"] for mount in mounts if mount["Type"] == "volume"]


@pytest.fixture
def here(tmp_path: Path) -> str:
    script = (
        "git init -q -b main .; git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x"
    )
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True)
    return f"file://{tmp_path}"


@pytest.mark.requirement("A-091")
@pytest.mark.slow("a process is killed at each step of an environment")
async def test_one_sweep_removes_what_was_killed_at_any_step(
    make: Make, owner: str, here: str
) -> None:
    steps = await live_and_die(owner, here, 0)
    assert steps[-1] == "over"
    names = [name for name in steps if name.startswith("before ")]
    for wanted in ("docker create", "docker start", "clone", "git clone", "dependencies", "docker stop", "docker rm"):  # fmt: skip
        assert f"before {wanted}" in names
    turns = asyncio.Semaphore(4)

    async def die(number: int) -> str:
        async with turns:
            return (await live_and_die(owner, here, number))[-1]

    # Before one step is after the last; and what only looks at something changes nothing.
    looking = ("docker container", "docker image", "docker info")
    chosen = [
        number
        for number, name in enumerate(steps[:-1], 1)
        if not name.startswith("before ") and not name.endswith(looking)
    ]
    died = await asyncio.gather(*(die(number) for number in chosen))
    assert died == [steps[number - 1] for number in chosen]
    left = containers(owner)
    assert len(left) >= 8
    volumes = {volume for name in left for volume in volumes_of(name)}
    disks = [file for name in left for file in disks_of(name)]
    assert len(disks) >= 4 or os.geteuid() != 0  # Only root can make one.
    manager = make()
    assert await manager.cleanup_stale_containers() == []  # None of them is a day old.
    removed = await manager.cleanup_stale_containers(older_than=timedelta(0))
    assert sorted(removed) == left
    assert containers(owner) == []
    # Others use the same engine at the same time: only what was theirs counts.
    assert not volumes & set(docker("volume", "ls", "-q").split())
    assert not [name for name in left if name in docker("network", "ls", "--format", "{{.Name}}")]
    assert not [name for name in left if name in mounts()]
    # What a killed one had started notices that its container is gone a little later.
    await asyncio.to_thread(
        wait_until, lambda: not [each for word in (owner, *left) for each in processes(word)]
    )
    await asyncio.to_thread(wait_until, lambda: not set(disks) & set(loops().values()))


async def test_a_clone_that_is_under_way_ends_with_its_manager_and_the_sweep(
    make: Make, owner: str, git: GitServer
) -> None:
    task = a_task()
    child = await start(owner, task.uuid, git.url(f"hang/{owner}"), 0)
    name = container_name(task.uuid)
    try:
        await asyncio.to_thread(wait_until, lambda: owner in git.seen())
    finally:
        child.kill()
        await child.wait()
    # Our git has the token in its environment: it does not outlive us.
    await asyncio.to_thread(wait_until, lambda: not processes(f"hang/{owner}"))
    assert await make().cleanup_stale_containers(older_than=timedelta(0)) == [name]
    await asyncio.to_thread(wait_until, lambda: processes(name) == [])
