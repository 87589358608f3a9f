"""What breaks while an environment is made: the engine, the container, the line, the disk.

Whatever it is, `prepare` says so in time, and one sweep leaves nothing.
"""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path

import pytest

from kakoi._support.asyncio import finish
from kakoi.backends.adapter import Limits
from kakoi.channel.api import MIB
from kakoi.errors import EnvironmentUnavailableError, KakoiError, LimitError, SandboxError
from kakoi.process.executor import ProcessExecutor
from kakoi.process.options import GivenSpawnOptions, ProcessResult
from kakoi.tasks.checkout import CloneError, CloneOptions
from kakoi.tasks.environments import EnvironmentOptions, ExecutionEnvironmentManager
from kakoi.tasks.task import Task, container_name
from tests.engine import ask, containers
from tests.tasks.conftest import Make
from tests.tasks.hosting import (
    PYTHON,
    GitServer,
    a_repository,
    a_task,
    docker,
    now,
    program_of,
    start_server,
    wait_until,
)
from tests.tasks.own_engine import OwnEngine

pytestmark = pytest.mark.anyio

_LIMITS = Limits()
# What only looks at something: an engine that is back by then has nothing to tell.
LOOKING = ("docker container", "docker image", "docker info")
SOME_STEPS = ("docker create", "docker start", "clone", "dependencies")
REPEATED = pytest.mark.extended(
    "repetition: more steps, or an engine that is back at another moment"
)
Fault = Callable[[], Awaitable[None]]


async def nothing() -> None:
    return None


class Breaking(ProcessExecutor):
    """Counts the programs that a manager starts, and lets something break at one of them.

    `at`: its number, from 1, or the name of a step of `Steps`; `before` breaks it, `after` mends it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []
        self.at: int | str = 0
        self.before: Fault = nothing
        self.after: Fault = nothing

    async def spawn(
        self, command: str, args: Sequence[str] = (), options: GivenSpawnOptions = None
    ) -> ProcessResult:
        self.steps.append(program_of(command, args))
        if len(self.steps) != self.at:
            return await super().spawn(command, args, options)
        try:
            # To the end: whoever waits for the program may notice the fault first, and give up.
            await finish(self.before())
            return await super().spawn(command, args, options)
        finally:
            await finish(self.after())


class Steps(ExecutionEnvironmentManager):
    """Lets something break before its own steps, too."""

    async def _clone_project(self, container_id: str, task: Task) -> None:
        await self._break("clone")
        await super()._clone_project(container_id, task)

    async def _install_dependencies(self, container_id: str) -> None:
        await self._break("dependencies")
        await super()._install_dependencies(container_id)

    async def _break(self, step: str) -> None:
        executor = breaking(self)
        if executor.at == step:
            await executor.before()
            await executor.after()


@pytest.fixture
def here(tmp_path: Path) -> str:
    return a_repository(tmp_path / "p", {"requirements.txt": ""})


async def prepared(manager: ExecutionEnvironmentManager, task: Task) -> str:
    """`ready`, or the code of the error that is ours; in time."""
    async with asyncio.timeout(180):
        try:
            return (await manager.prepare(task)).status
        except KakoiError as error:
            return error.code


# --- The engine ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def own_engine(engine: None) -> Iterator[OwnEngine]:
    if os.geteuid() != 0 or shutil.which("dockerd") is None or shutil.which("unshare") is None:
        pytest.skip("only root can start an engine, with dockerd and unshare")
    own = OwnEngine(Path(tempfile.mkdtemp(prefix="kakoi-engine-")))
    try:
        own.start()
        own.load(PYTHON)
        yield own
    finally:
        own.end()


def manager_of(
    own: OwnEngine,
    *,
    at: int | str = 0,
    before: Fault = nothing,
    after: Fault = nothing,
    limits: Limits = _LIMITS,
) -> Steps:
    """A manager on that engine; see `Breaking` and `Steps`."""
    executor = Breaking()
    executor.at, executor.before, executor.after = at, before, after
    env = {"DOCKER_HOST": own.host}
    options = EnvironmentOptions(
        image=PYTHON,
        network="bridge",  # Where the server of git is.
        limits=limits,
    )
    return Steps(options, clock=now, owner="test", executor=executor, engine_env=env)


def breaking(manager: ExecutionEnvironmentManager) -> Breaking:
    executor = manager._executor
    assert isinstance(executor, Breaking)
    return executor


def left_of(own: OwnEngine) -> dict[str, object]:
    """Everything of containers that an engine has."""
    return {
        "containers": ask("/containers/json?all=1", own.host),
        "volumes": ask("/volumes", own.host)["Volumes"],
        "networks": sorted(each["Name"] for each in ask("/networks", own.host)),
        "mounts": own.mounts(),
        "processes": len(own.processes()),
    }


def breaks(own: OwnEngine, mended: str) -> tuple[Fault, Fault]:
    """What stops the engine before a step, and what starts it after that, if it was not at once."""

    async def stop() -> None:
        await asyncio.to_thread(own.stop)
        if mended == "at once":
            await asyncio.to_thread(own.start)

    async def start() -> None:
        if mended == "afterwards":
            await asyncio.to_thread(own.start)

    return stop, start


@pytest.mark.slow("an engine is stopped and started at each of the steps")
@pytest.mark.parametrize(
    ("mended", "only"),
    [
        pytest.param("afterwards", SOME_STEPS, id="some steps"),
        pytest.param("afterwards", (), marks=REPEATED, id="every step"),
        pytest.param("at once", (), marks=REPEATED, id="every step, and back at once"),
    ],
)
async def test_an_engine_that_stops_at_any_step_leaves_nothing_behind(
    own_engine: OwnEngine, here: str, mended: str, only: Sequence[str]
) -> None:
    clean = left_of(own_engine)
    whole = manager_of(own_engine)
    task = a_task(here)
    assert await prepared(whole, task) == "ready"
    await whole.cleanup(task.uuid)
    await whole.close()
    steps = breaking(whole).steps
    steps = steps[: steps.index("docker stop")]
    for wanted in ("docker create", "docker cp", "docker start", "git clone"):
        assert wanted in steps

    stop, start = breaks(own_engine, mended)
    said = {}
    for number, name in [*enumerate(steps, 1), (0, "clone"), (0, "dependencies")]:
        if mended == "at once" and name in LOOKING:
            continue
        if only and name not in only:
            continue
        manager = manager_of(own_engine, at=number or name, before=stop, after=start)
        said[number, name] = await prepared(manager, a_task(here))
        await manager.close()
        sweeper = manager_of(own_engine)
        await sweeper.cleanup_stale_containers(older_than=timedelta(0))
        assert sweeper.leftovers == set()
        await asyncio.to_thread(wait_until, lambda: left_of(own_engine) == clean)
    # What has lost its container is not called ready.
    assert said[0, "clone"] == said[0, "dependencies"] == SandboxError.code
    assert set(said.values()) <= {"ready", SandboxError.code, EnvironmentUnavailableError.code}


@pytest.mark.slow("an engine is stopped and started at each step, with a new environment each time")
@pytest.mark.parametrize(
    "mended",
    [
        "when it is too late",
        pytest.param("afterwards", marks=REPEATED),
        pytest.param("at once", marks=REPEATED),
    ],
)
async def test_an_engine_that_stops_at_any_step_of_a_cleanup_is_told_and_swept(
    own_engine: OwnEngine, here: str, mended: str
) -> None:
    clean = left_of(own_engine)
    stop, start = breaks(own_engine, mended)
    left, is_over = [], False
    for number in range(1, 20):
        manager = manager_of(own_engine, before=stop, after=start)
        task = a_task(here)
        assert await prepared(manager, task) == "ready"
        executor = breaking(manager)
        executor.at = len(executor.steps) + number
        async with asyncio.timeout(180):
            await manager.cleanup(task.uuid)  # It raises nothing: a task that is done stays done.
        is_over = len(executor.steps) < executor.at  # That was a whole one, and nothing broke.
        executor.at = 0
        if mended == "when it is too late" and not is_over:
            await asyncio.to_thread(own_engine.start)
        assert manager.active() == []
        stays = own_engine.docker("ps", "-a", "--format", "{{.Names}}").split()
        assert manager.leftovers >= set(stays)  # What is left, it has said.
        left.append(stays)
        await manager.cleanup_stale_containers()  # A leftover has no age.
        assert manager.leftovers == set()
        await manager.close()
        await asyncio.to_thread(wait_until, lambda: left_of(own_engine) == clean)
        if is_over:
            break
    assert is_over
    assert len(left) > 2  # At the least it is stopped and removed.
    assert left[-1] == []
    assert [] not in left[:-1] or mended != "when it is too late"


# --- The container ---------------------------------------------------------------------------


@pytest.mark.slow("an environment is broken at each of its steps")
async def test_a_container_that_somebody_removes_at_any_step_is_missed(
    make: Make, owner: str, here: str
) -> None:
    volumes = docker("volume", "ls", "-q", "--filter", "label=kakoi.owner").split()
    executor = Breaking()
    whole = make(executor=executor)
    task = a_task(here)
    assert await prepared(whole, task) == "ready"
    steps = list(executor.steps)
    await whole.cleanup(task.uuid)
    said = {}
    after_create = steps.index("docker create") + 1
    for number, name in [*enumerate(steps, 1), (0, "clone"), (0, "dependencies")]:
        if 0 < number <= after_create:
            continue  # There is none to remove yet.
        executor = Breaking()
        manager = make(executor=executor, kind=Steps)
        task = a_task(here)

        async def remove(name: str = container_name(task.uuid)) -> None:
            await asyncio.to_thread(docker, "rm", "-f", "-v", name)

        executor.at, executor.before = number or name, remove
        said[number, name] = await prepared(manager, task)
        if said[number, name] == "ready":  # Another one was made in its place.
            info = manager.active()[0]
            assert (await manager.execute(info.container_id, "echo works")).stdout == "works\n"
            await manager.cleanup(task.uuid)
        assert containers(owner) == []
    assert said[0, "clone"] == said[0, "dependencies"] == SandboxError.code
    assert docker("volume", "ls", "-q", "--filter", "label=kakoi.owner").split() == volumes


async def test_a_container_that_goes_in_the_middle_of_its_clone_is_missed_at_once(
    make: Make, owner: str, git: GitServer
) -> None:
    manager = make()
    task = a_task(git.url(f"hang/{owner}"))
    preparing = asyncio.create_task(manager.prepare(task))
    await asyncio.to_thread(wait_until, lambda: owner in git.seen())
    await asyncio.to_thread(docker, "rm", "-f", container_name(task.uuid))
    with pytest.raises(SandboxError, match="lost while its project was cloned"):
        async with asyncio.timeout(60):
            await preparing
    assert containers(owner) == []
    assert manager.active() == []


# --- The line --------------------------------------------------------------------------------


@pytest.mark.slow("waits between three tries")
async def test_a_server_that_dies_in_the_middle_of_the_pack_is_a_clone_error(
    make: Make, owner: str
) -> None:
    server = start_server(owner)
    with pytest.raises(CloneError, match=r"could not be reached \(.*(refused|Failed to connect)"):
        async with asyncio.timeout(180):
            await make().prepare(a_task(server.url("last/heavy")))
    assert containers(owner) == [server.name]
    docker("rm", "-f", "-v", server.name)


@pytest.mark.slow("waits for a silence, three times")
async def test_a_server_that_falls_silent_in_the_middle_of_the_pack_is_given_up(
    make: Make, owner: str, git: GitServer
) -> None:
    manager = make(clone=CloneOptions(stall_s=1))
    with pytest.raises(CloneError, match="could not be reached") as failure:
        async with asyncio.timeout(180):
            await manager.prepare(a_task(git.url("stall/heavy")))
    assert "too slow" in str(failure.value.details["stderr"])
    assert containers(owner) == []


# --- The disk --------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["over http", "carried in"])
async def test_a_disk_that_is_full_in_the_middle_of_a_clone_is_said_and_nothing_stays(
    make: Make, owner: str, git: GitServer, tmp_path: Path, way: str
) -> None:
    """A small disk is what /dev/shm of a container is; the project goes there."""
    big = {"big": os.urandom(1 << 21).hex()}
    repository = a_repository(tmp_path / "p", big)
    task = a_task(git.url("open/heavy") if way == "over http" else repository)
    executor = Breaking()
    manager = make(executor=executor, kind=Steps)
    small = "rmdir project; mkdir /dev/shm/p; ln -s /dev/shm/p project; "
    small += "head -c 66500000 /dev/zero >/dev/shm/fill"

    async def shrink() -> None:
        name = container_name(task.uuid)
        argv = ["exec", "-u", "65533", "-w", "/workspace", name, "sh", "-ec", small]
        await asyncio.to_thread(docker, *argv)

    executor.at, executor.before = "clone", shrink
    with pytest.raises(CloneError, match="does not fit on the disk") as failure:
        await manager.prepare(task)
    assert "disk_limit" in (failure.value.hint or "")
    assert containers(owner) == []
    assert manager.counters.clone_failures == 1


@pytest.mark.slow("an engine is started")
async def test_an_engine_with_mounts_of_its_own_keeps_a_disk_in_memory_or_says_that_it_cannot(
    own_engine: OwnEngine, here: str
) -> None:
    """The disk that would be made for a container is not to be seen there."""
    usual = manager_of(own_engine)
    async with usual.open(a_task(here)) as info:
        holding = usual.find(info.container_id).adapter.limit_report
        assert "the engine has mounts of its own" in holding.unenforced["disk_bytes"]
        assert "memory_bytes" in holding.enforced
    await usual.close()
    small = manager_of(own_engine, limits=Limits(disk_bytes=32 * MIB))
    async with small.open(a_task(here)) as info:
        holding = small.find(info.container_id).adapter.limit_report
        assert "sized tmpfs" in holding.enforced["disk_bytes"]
        done = await small.execute(info.container_id, "head -c 40000000 /dev/zero >big")
        assert "No space left" in done.stderr
    await small.close()
    large = manager_of(own_engine, limits=Limits(asked=frozenset({"disk_bytes"})))
    with pytest.raises(LimitError, match=r"cannot enforce disk_bytes .* has mounts of its own"):
        await large.prepare(a_task(here))
    await large.close()
    assert own_engine.docker("ps", "-aq") == ""
