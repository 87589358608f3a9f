"""Containers that wait for a task: claimed once, made anew, and gone with their maker."""

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from kakoi.backends.adapter import Limits
from kakoi.errors import ConfigurationError
from kakoi.tasks.containers import is_pooled
from kakoi.tasks.environments import EnvironmentOptions, ExecutionEnvironmentManager
from tests.engine import containers
from tests.fakes import RecordingExecutor
from tests.tasks.conftest import Make
from tests.tasks.hosting import GitServer, a_task, docker, now, wait_until

pytestmark = pytest.mark.anyio


def waiting(owner: str) -> list[str]:
    return [name for name in containers(owner) if is_pooled(name)]


def ids(owner: str) -> set[str]:
    form = ["--no-trunc", "--format", "{{.ID}}", "--filter", f"label=kakoi.owner={owner}"]
    return set(docker("ps", "-a", *form).split())


async def filled(owner: str, count: int) -> None:
    await asyncio.to_thread(wait_until, lambda: len(waiting(owner)) == count)


async def test_a_pool_that_is_closed_while_it_is_filled_leaves_nothing(
    make: Make, owner: str
) -> None:
    manager = make(pool_size=2)
    filling = asyncio.ensure_future(manager.warm())
    await asyncio.to_thread(wait_until, lambda: waiting(owner))
    await manager.close()
    await filling
    assert containers(owner) == []


def test_without_a_size_there_is_no_pool() -> None:
    assert EnvironmentOptions().pool_size == 0


@pytest.mark.requirement("A-010", "A-011", "A-013")
@pytest.mark.slow("several environments")
async def test_tasks_get_different_containers_that_nobody_had_before(
    git: GitServer, make: Make, owner: str
) -> None:
    executor = RecordingExecutor()
    manager = make(pool_size=2, executor=executor)
    await manager.warm()
    before = ids(owner)
    assert len(before) == len(waiting(owner)) == 2
    made = len([call for call in executor.spawned if call[1] == "create"])
    tasks = [a_task(git.url("open/project")) for _ in range(3)]
    infos = await asyncio.gather(*(manager.prepare(task) for task in tasks))
    claimed = {info.container_id for info in infos}
    assert len(claimed) == 3
    assert len(claimed & before) == 2
    assert [call[1] for call in executor.spawned].count("rename") == 2
    assert {info.name for info in infos} == {f"coding-agent-exec-{task.uuid}" for task in tasks}
    await filled(owner, 2)  # Again, in the background.
    assert [call[1] for call in executor.spawned].count("create") >= made + 3

    info = infos[0]
    await manager.execute(info.container_id, "touch left; export LEFT=1")
    again = await manager.prepare(tasks[0])
    assert again.container_id not in claimed
    result = await manager.execute(again.container_id, "ls left; echo ${LEFT:-unset}; hostname")
    assert "unset" in result.stdout
    assert "No such file" in result.stderr
    assert {each.task for each in await manager.existing()} == {task.uuid for task in tasks}
    assert await manager.stale() == []
    await manager.close()
    assert waiting(owner) == []


@pytest.mark.slow("several environments")
async def test_another_configuration_gets_none_of_them_and_a_dead_one_is_passed_over(
    git: GitServer, make: Make, owner: str
) -> None:
    manager = make(pool_size=1)
    await manager.warm()
    (first,) = waiting(owner)
    manager.options = replace(manager.options, limits=Limits(cpus=0.5))
    info = await manager.prepare(a_task(git.url("open/project")))
    form = "{{.HostConfig.NanoCpus}} {{.Created}}"
    assert docker("inspect", "--format", form, info.name).startswith("500000000 ")
    await manager.warm()  # Waits for what is made in the background.
    (second,) = waiting(owner)
    assert second != first
    docker("kill", second)
    info = await manager.prepare(a_task(git.url("open/project")))
    assert (await manager.execute(info.container_id, "echo works")).stdout == "works\n"
    assert second not in containers(owner)


async def test_one_that_has_waited_too_long_is_not_given_out(
    git: GitServer, make: Make, owner: str
) -> None:
    clock = [now()]
    manager = make(pool_size=1, clock=lambda: clock[0])
    await manager.warm()
    before = ids(owner)
    clock[0] += timedelta(hours=2)
    info = await manager.prepare(a_task(git.url("open/project")))
    assert info.container_id not in before


CHILD = """
import asyncio, sys
from kakoi.tasks.environments import *
from tests.tasks.hosting import PYTHON, now
async def main():
    options = EnvironmentOptions(image=PYTHON, pool_size=2)
    await ExecutionEnvironmentManager(options, clock=now, owner=sys.argv[1]).warm()
    print("warm", flush=True)
    await asyncio.Event().wait()
asyncio.run(main())
"""
ROOT = Path(__file__).resolve().parent.parent.parent


async def test_a_sweep_takes_the_pool_of_the_dead_at_once_and_that_of_the_living_not(
    make: Make, owner: str
) -> None:
    argv = [sys.executable, "-c", CHILD, owner]
    child = await asyncio.create_subprocess_exec(
        *argv, cwd=ROOT, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    try:
        assert child.stdout is not None
        async with asyncio.timeout(60):
            assert await child.stdout.readline() == b"warm\n"
        manager = make()
        assert await manager.cleanup_stale_containers() == []
        assert len(waiting(owner)) == 2
    finally:
        child.kill()
        await child.wait()
    assert len(await manager.cleanup_stale_containers()) == 2
    assert waiting(owner) == []


async def test_a_sweep_leaves_ones_own_pool_alone_however_old_it_is(make: Make, owner: str) -> None:
    manager = make(pool_size=1, clock=lambda: now() + timedelta(days=2))
    await manager.warm()
    assert await manager.cleanup_stale_containers() == []
    assert len(waiting(owner)) == 1


async def test_a_pool_cannot_be_named_by_a_task(make: Make) -> None:
    manager = make()
    assert isinstance(manager, ExecutionEnvironmentManager)
    with pytest.raises(ConfigurationError, match="uuid"):
        await manager.cleanup("_pool-1-2-ab-cd")
