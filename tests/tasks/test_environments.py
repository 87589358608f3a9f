"""One clean environment for each task, on a real engine."""

import asyncio
import inspect
import json
import logging
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from kakoi.audit import Event, read
from kakoi.backends.adapter import Limits
from kakoi.channel.api import MIB
from kakoi.errors import ConfigurationError, ExecutionTimeoutError, SandboxError, SecurityError
from kakoi.process import ProcessResult
from kakoi.process.options import GivenSpawnOptions, as_spawn_options
from kakoi.results import ExecutionResult, Reason
from kakoi.tasks.checkout import CloneError
from kakoi.tasks.environments import (
    ContainerInfo,
    EnvironmentOptions,
    ExecutionEnvironmentManager,
)
from kakoi.tasks.stats import SESSION
from kakoi.tasks.task import Task
from tests.engine import containers
from tests.fakes import RecordingExecutor, answer
from tests.tasks.conftest import Make
from tests.tasks.hosting import GitServer, a_task, docker, now, program_of, wait_until

# Directories are copied into it, then.
NO_DISK = Limits(disk_bytes=None)
pytestmark = pytest.mark.anyio


class Watched(ExecutionEnvironmentManager):
    """Writes down the state at each step."""

    steps: list[str]

    async def _create_container(self, task: Task) -> str:
        made = await super()._create_container(task)
        self._note("create")
        return made

    async def _clone_project(self, container_id: str, task: Task) -> None:
        await super()._clone_project(container_id, task)
        self._note("clone")

    async def _install_dependencies(self, container_id: str) -> None:
        await super()._install_dependencies(container_id)
        self._note("dependencies")

    def _note(self, what: str) -> None:
        self.steps.append(f"{what} {self.active()[0].status}")


# --- Prepare, execute, cleanup ---------------------------------------------------------------


def test_the_names_of_the_spec_are_imported_from_the_package() -> None:
    from kakoi.tasks import ContainerInfo as Info
    from kakoi.tasks import ExecutionEnvironmentManager as Manager
    from kakoi.tasks import TaskHandler

    assert (Info, Manager) == (ContainerInfo, ExecutionEnvironmentManager)
    assert inspect.iscoroutinefunction(TaskHandler.handle)


@pytest.mark.requirement("A-001", "A-002")
def test_the_manager_has_what_the_spec_names() -> None:
    manager = ExecutionEnvironmentManager

    def words(name: str) -> list[str]:
        return list(inspect.signature(getattr(manager, name)).parameters)

    def gives(name: str) -> object:
        return inspect.signature(getattr(manager, name)).return_annotation

    assert gives("prepare") is ContainerInfo
    assert gives("execute") is ExecutionResult
    assert gives("cleanup") is None
    assert gives("_create_container") is str
    assert inspect.iscoroutinefunction(manager.prepare)
    assert words("prepare") == ["self", "task"]
    assert words("execute")[:3] == ["self", "container_id", "command"]
    assert words("cleanup") == ["self", "task_uuid"]
    stale = inspect.signature(manager.cleanup_stale_containers).parameters.values()
    assert all(each.default is not each.empty for each in stale if each.name != "self")
    assert words("_create_container") == ["self", "task"]
    assert words("_clone_project") == ["self", "container_id", "task"]
    assert words("_install_dependencies") == ["self", "container_id"]
    assert len(words("_remove_container")) == 2


@pytest.mark.requirement("A-003", "A-004", "A-005", "A-008", "A-010", "A-011", "A-012", "A-014", "A-034", "A-051")  # fmt: skip
async def test_a_life_in_its_order(git: GitServer, make: Make, owner: str) -> None:
    executor = RecordingExecutor()
    manager = make(kind=Watched, executor=executor)
    assert isinstance(manager, Watched)
    manager.steps = []
    task = a_task(git.url("open/project"))
    info = await manager.prepare(task)
    assert manager.steps == [
        "create initializing",
        "clone initializing",
        "dependencies initializing",
    ]
    verbs = [words[1] for words in executor.spawned]
    # Where no disk can be mounted, directories are copied in between.
    steps = [verb for verb in verbs if verb != "cp"]
    assert steps[:5] == ["container", "image", "info", "create", "start"]
    assert "--name" in executor.spawned[3]
    assert f"coding-agent-exec-{task.uuid}" in executor.spawned[3]
    # Our own git fetches the project, once, and says which commit it is; the rest runs inside.
    started = [program_of(words[0], words[1:]) for words in executor.spawned]
    assert [each for each in started if each.startswith("git")] == ["git clone", "git -C"]
    assert isinstance(info, ContainerInfo)
    assert (info.task_uuid, info.workspace_path, info.status) == (task.uuid, "/workspace/project", "ready")  # fmt: skip
    assert info.created_at.tzinfo is not None
    assert containers(owner) == [f"coding-agent-exec-{task.uuid}"]
    assert [each.task_uuid for each in manager.active()] == [task.uuid]

    result = await manager.execute(
        info.container_id,
        "hostname; pwd; echo err >&2; test -w /workspace/project && test -w /workspace/tmp; echo $?",
    )
    assert isinstance(result, ExecutionResult)
    assert result.stdout.split() == [info.container_id[:12], "/workspace/project", "0"]
    assert (result.exit_code, result.stderr) == (0, "err\n")
    assert all(isinstance(text, str) for text in (result.stdout, result.stderr))
    assert type(result.exit_code) is type(result.duration_ms) is int

    second = await manager.prepare(task)
    assert second.container_id != info.container_id
    verbs = [words[1] for words in executor.spawned][len(verbs) :]
    assert verbs[:3] == ["container", "stop", "rm"]
    assert verbs.index("rm") < verbs.index("create")
    assert containers(owner) == [info.name]
    await manager.cleanup(task.uuid)
    assert manager.active() == []
    assert containers(owner) == []


@pytest.mark.requirement("A-013")
async def test_nothing_of_an_earlier_life_is_found_again(git: GitServer, make: Make) -> None:
    manager = make()
    task = a_task(git.url("open/project"))
    info = await manager.prepare(task)
    leave = "touch left /workspace/tmp/left; export LEFT=1; (setsid sleep 600.25 &)"
    await manager.execute(info.container_id, leave)
    docker("exec", "-d", "-u", "65533", info.name, "sleep", "600.25")
    info = await manager.prepare(task)
    look = "ls left /workspace/tmp/left; echo ${LEFT:-unset}"
    result = await manager.execute(info.container_id, look)
    assert "unset" in result.stdout
    assert "600.25" not in docker("exec", info.name, "sh", "-c", "cat /proc/[0-9]*/cmdline")
    assert result.stderr.count("No such file") == 2


@pytest.mark.requirement("A-016")
async def test_two_tasks_do_not_see_each_other(git: GitServer, make: Make) -> None:
    manager = make()
    tasks = [a_task(git.url("open/project")) for _ in range(2)]
    one, two = await asyncio.gather(*(manager.prepare(task) for task in tasks))
    await manager.execute(one.container_id, "touch /tmp/mine mine /workspace/tmp/mine")
    docker("exec", "-d", "-u", "65533", one.name, "python3", "-m", "http.server", "8901")
    serving = "import socket; socket.create_connection(('127.0.0.1', 8901), 5)"
    # State 0A is one that listens; 22C5 is the port.
    wait_until(lambda: ":22C5 00000000:0000 0A" in docker("exec", one.name, "cat", "/proc/net/tcp"))
    reached = await manager.execute(one.container_id, f'python3 -c "{serving}"')
    assert (reached.exit_code, reached.stderr) == (0, "")
    look = "ls /tmp/mine mine /workspace/tmp/mine"
    result = await manager.execute(two.container_id, look)
    assert result.stderr.count("No such file") == 3
    shown = docker("exec", two.name, "sh", "-c", "cat /proc/[0-9]*/cmdline")
    assert "http.server" not in shown
    refused = await manager.execute(two.container_id, f'python3 -c "{serving}"')
    assert "ConnectionRefusedError" in refused.stderr


@pytest.mark.requirement("A-048")
async def test_dependencies_that_cannot_be_installed_are_told_and_the_task_goes_on(
    git: GitServer, make: Make
) -> None:
    task = a_task(git.url("open/needy"))
    async with make().open(task) as info:
        assert [each.step.file for each in info.installed] == ["package.json", "requirements.txt", "go.mod"]  # fmt: skip
        assert info.status == "ready"
        assert all("not found" in each.output for each in info.installed if not each.ok)
        assert not all(each.ok for each in info.installed)
    assert EnvironmentOptions().install_dependencies is True
    async with make(install_dependencies=False).open(task) as info:
        assert info.installed == ()


async def test_a_task_is_prepared_by_one_at_a_time(git: GitServer, make: Make) -> None:
    manager = make()
    task = a_task(git.url("open/project"))
    both = await asyncio.gather(
        manager.prepare(task), manager.prepare(task), return_exceptions=True
    )
    assert isinstance(both[0], ContainerInfo)
    assert isinstance(both[1], ConfigurationError)


# --- Commands --------------------------------------------------------------------------------


@pytest.mark.requirement("A-025", "A-054", "A-055", "A-056")
@pytest.mark.slow("waits for limits")
async def test_commands_end_in_time_say_so_and_are_cut(
    git: GitServer, make: Make, tmp_path: Path
) -> None:
    assert EnvironmentOptions().timeout_s == 1800
    assert EnvironmentOptions().max_output_bytes == MIB
    manager = make(timeout_s=2)
    task = a_task(git.url("open/project"))
    info = await manager.prepare(task)
    result = await manager.execute(info.container_id, "echo part; sleep 300.5")
    assert (result.reason, result.stdout) == (Reason.TIMED_OUT, "part\n")
    assert "sleep" not in docker("exec", info.name, "sh", "-c", "cat /proc/[0-9]*/cmdline").replace("sleep2147483647", "").replace("sleep\0002147483647", "")  # fmt: skip
    assert manager.counters.timeouts == 1
    longer = await manager.execute(info.container_id, "sleep 2.2; echo done", timeout_s=60)
    assert longer.stdout == "done\n"

    flood = "seq 500000; seq 500000 | tr 1 x >&2"
    result = await manager.execute(info.container_id, flood)
    whole = "".join(f"{number}\n" for number in range(1, 500_001))
    assert result.stdout_bytes == result.stderr_bytes == len(whole) > 3 * MIB
    assert (result.stdout, result.stderr) == (whole[:MIB], whole.replace("1", "x")[:MIB])
    assert result.stdout_truncated
    assert result.stderr_truncated

    with pytest.raises(SecurityError):
        await manager.execute(info.container_id, "rm -rf /")
    records = list(read(tmp_path / "audit.jsonl"))
    assert {record.task for record in records} == {task.uuid}
    assert [record.reason for record in records if record.event is Event.ENDED and record.session != SESSION] == ["timed_out", "exited", "exited"]  # fmt: skip
    assert [record.event for record in records][-1] is Event.REFUSED
    assert next(record.command for record in records if record.session == SESSION) == f"prepare {git.url('open/project')}"  # fmt: skip


async def test_a_container_that_the_manager_did_not_give_is_refused(make: Make, git: GitServer) -> None:  # fmt: skip
    manager = make()
    for other in ("", git.name, "0" * 64):
        with pytest.raises(ConfigurationError, match="not an environment of this manager"):
            await manager.execute(other, "true")


@pytest.mark.requirement("A-015")
async def test_a_container_that_died_is_reported_with_its_state(git: GitServer, make: Make) -> None:
    manager = make()
    info = await manager.prepare(a_task(git.url("open/project")))
    docker("kill", info.name)
    with pytest.raises(SandboxError, match="exited with status 137"):
        await manager.execute(info.container_id, "true")
    docker("rm", "-f", info.name)
    with pytest.raises(SandboxError, match="gone"):
        await manager.execute(info.container_id, "true")
    await manager.cleanup(info.task_uuid)


@pytest.mark.requirement("A-007", "A-009")
async def test_a_task_may_end_while_its_command_runs(git: GitServer, make: Make, owner: str) -> None:  # fmt: skip
    manager = make()
    info = await manager.prepare(a_task(git.url("open/project")))
    running = asyncio.ensure_future(manager.execute(info.container_id, "sleep 60.5"))
    shown = ["exec", info.name, "sh", "-c", "cat /proc/[0-9]*/cmdline"]
    await asyncio.to_thread(wait_until, lambda: "60.5" in docker(*shown))
    assert manager.active()[0].status == "running"
    await manager.cleanup(info.task_uuid)
    assert containers(owner) == []
    with pytest.raises(SandboxError):
        await asyncio.wait_for(running, 10)
    with pytest.raises(ConfigurationError):
        await manager.execute(info.container_id, "true")


async def test_a_task_may_end_while_it_is_prepared(git: GitServer, make: Make, owner: str) -> None:
    manager = make()
    task = a_task(git.url(f"hang/{owner}"))
    preparing = asyncio.ensure_future(manager.prepare(task))
    await asyncio.to_thread(wait_until, lambda: owner in git.seen())
    await manager.cleanup(task.uuid)
    with pytest.raises(SandboxError):
        await asyncio.wait_for(preparing, 30)
    assert containers(owner) == []
    cancelled = asyncio.ensure_future(manager.prepare(a_task(git.url("hang/project"))))
    await asyncio.to_thread(wait_until, lambda: containers(owner))
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    assert containers(owner) == []


# --- Taking away -----------------------------------------------------------------------------


@pytest.mark.requirement("A-025", "A-054", "A-055", "A-097")
async def test_a_command_has_limits_of_its_own(git: GitServer, make: Make) -> None:
    """It is no call of the engine, which would have a minute."""
    executor = RecordingExecutor()
    manager = make(executor=executor, max_output_bytes=10)
    info = await manager.prepare(a_task(git.url("open/project")))
    before = len(executor.spawned)
    result = await manager.execute(info.container_id, "echo 0123456789abcdef; echo é-é-é-é >&2")  # fmt: skip
    assert (result.exit_code, result.stdout, result.stderr) == (0, "0123456789", "é-é-é-")
    assert executor.spawned[before:] == []
    late = await manager.execute(info.container_id, "sleep 60", timeout_s=0.5)
    assert late.reason is Reason.TIMED_OUT


@pytest.mark.requirement("A-088")
async def test_a_container_that_has_stopped_is_removed_directly(git: GitServer, make: Make) -> None:
    executor = RecordingExecutor()
    manager = make(executor=executor)
    info = await manager.prepare(a_task(git.url("open/project")))
    docker("kill", info.name)
    before = len(executor.spawned)
    await manager.cleanup(info.task_uuid)
    verbs = [words[1] for words in executor.spawned[before:]]
    assert "rm" in verbs
    assert "stop" not in verbs


@pytest.mark.requirement("A-088", "A-089", "A-090")
async def test_nothing_is_left_of_an_environment_but_the_record(
    git: GitServer, make: Make, owner: str
) -> None:
    image = f"kakoi-test-volume:{owner}"
    maker = docker("create", "--label", f"kakoi.owner={owner}", "kakoi-test:python", "true")
    docker("commit", "--change", "VOLUME /data", maker, image)
    docker("rm", maker)
    executor = RecordingExecutor()
    manager = make(executor=executor, image=image)
    try:
        task = a_task(git.url("open/project"))
        info = await manager.prepare(task)
        mounts = json.loads(docker("inspect", "--format", "{{json .Mounts}}", info.name))
        (mount,) = [each for each in mounts if each["Type"] == "volume"]
        assert mount["Name"] in docker("volume", "ls", "-q").split()
        await manager.cleanup(task.uuid)
    finally:
        docker("rmi", image)
    ended = [words[1:] for words in executor.spawned[-2:]]
    assert ended == [["stop", "-t", "10", info.name], ["rm", "-f", "-v", info.name]]
    assert mount["Name"] not in docker("volume", "ls", "-q").split()
    assert task.uuid not in docker("network", "ls", "--format", "{{.Name}}")
    await manager.cleanup(task.uuid)
    assert [words[1] for words in executor.spawned[-1:]] == ["container"]  # Looked, and no more.


@pytest.mark.requirement("A-091", "A-092")
async def test_a_sweep_goes_by_name_owner_and_age(git: GitServer, make: Make, owner: str) -> None:
    label = ["--label", f"kakoi.owner={owner}"]
    old = f"coding-agent-exec-{a_task().uuid}"
    other = f"my-{old}"
    foreign = f"coding-agent-exec-{a_task().uuid}"
    helper = f"kakoi-look-{a_task().uuid}"  # Looked into an image when its maker was killed.
    for name, labels in ((old, label), (other, label), (helper, label), (foreign, [])):
        docker("create", "--name", name, *labels, "kakoi-test:python", "true")
    later = now() + timedelta(hours=23, minutes=59)
    clock = [later]

    def tell() -> datetime:
        return clock[0]

    manager = make(clock=tell)
    try:
        assert await manager.cleanup_stale_containers() == []
        clock[0] = later + timedelta(hours=1)
        assert sorted(await manager.stale()) == sorted([old, helper])
        assert await manager.cleanup_stale_containers() == sorted([old, helper])
        assert containers(owner) == [other]
        assert docker("ps", "-aq", "--filter", f"name={foreign}")
        docker("rm", other)
    finally:
        docker("rm", "-f", foreign)


async def test_what_is_still_in_use_is_no_leftover_however_old(git: GitServer, make: Make) -> None:
    clock = [now()]
    manager = make(clock=lambda: clock[0])
    info = await manager.prepare(a_task(git.url("open/project")))
    clock[0] += timedelta(days=2)
    assert await manager.stale() == []
    assert (await manager.stats()).leftovers == 0
    assert await manager.cleanup_stale_containers() == []
    await manager.close()
    other = make(clock=lambda: clock[0])
    assert await other.stale() == [info.name]


class Swept(RecordingExecutor):
    """An engine that is swept as soon as a container was created, or has got its name."""

    def __init__(self) -> None:
        super().__init__()
        self.manager: ExecutionEnvironmentManager | None = None
        self.removed: dict[str, list[str]] = {}

    async def spawn(
        self, command: str, args: Sequence[str] = (), options: GivenSpawnOptions = None
    ) -> ProcessResult:
        result = await super().spawn(command, args, options)
        if command == "docker" and args[0] in ("create", "rename") and self.manager is not None:
            swept = await self.manager.cleanup_stale_containers(older_than=timedelta(0))
            self.removed[args[0]] = swept
        return result


async def test_what_is_just_being_made_is_no_leftover(git: GitServer, make: Make) -> None:
    executor = Swept()
    executor.manager = manager = make(executor=executor, pool_size=1)
    await manager.warm()
    info = await manager.prepare(a_task(git.url("open/project")))
    assert info.status == "ready"
    assert executor.removed == {"create": [], "rename": []}


class Failing(RecordingExecutor):
    """A real engine that fails at calls that begin with these words: with an answer, or slowly."""

    def __init__(self, words: str, said: ProcessResult | Exception) -> None:
        super().__init__()
        self.words = words.split()
        self.said = said
        self.limits_ms: set[float | None] = set()

    async def spawn(
        self, command: str, args: Sequence[str] = (), options: GivenSpawnOptions = None
    ) -> ProcessResult:
        if command == "docker":
            self.limits_ms.add(as_spawn_options(options).timeout)
        if self.words and list(args[: len(self.words)]) == self.words:
            self.spawned.append([command, *args])
            if isinstance(self.said, Exception):
                raise self.said
            return self.said
        return await super().spawn(command, args, options)


@pytest.mark.requirement("A-093")
async def test_what_cannot_be_removed_is_tried_three_times_and_then_a_leftover(
    git: GitServer, make: Make, owner: str, caplog: pytest.LogCaptureFixture
) -> None:
    executor = Failing("rm", answer(exit_code=1, stderr="device or resource busy"))
    manager = make(executor=executor)
    info = await manager.prepare(a_task(git.url("open/project")))
    await manager.cleanup(info.task_uuid)
    assert len([words for words in executor.spawned if words[1] == "rm"]) == 3
    assert manager.leftovers == {info.name}
    assert (await manager.stats()).leftovers == 1
    assert [record.levelno for record in caplog.records if "cannot remove" in record.message] == [logging.WARNING]  # fmt: skip
    executor.words = []
    manager.leftovers.add("coding-agent-exec-that-is-gone")
    # Whatever its age: it is known to be nobody's.
    assert await manager.cleanup_stale_containers() == [info.name]
    assert manager.leftovers == set()


@pytest.mark.requirement("A-096")
@pytest.mark.slow("several environments")
async def test_an_operation_of_the_engine_has_a_minute_is_tried_again_and_then_fails(
    make: Make, owner: str
) -> None:
    for words in ("create", "start", "cp"):
        executor = Failing(words, ExecutionTimeoutError("`docker` ran longer than 60000 ms"))
        manager = make(executor=executor, limits=NO_DISK)
        with pytest.raises(SandboxError, match=r"did not finish .* after 60 s"):
            await manager.prepare(a_task())
        assert len([call for call in executor.spawned if call[1] == words]) == 3
        assert executor.limits_ms == {60_000}
        assert manager.counters.create_failures == 1
        assert containers(owner) == []


DOWN = "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?"


async def test_an_engine_that_stops_at_any_step_is_told_as_that(make: Make, git: GitServer) -> None:
    for words in ("container inspect", "image", "info", "create", "cp", "start"):
        executor = Failing(words, answer(exit_code=1, stderr=DOWN))
        manager = make(executor=executor, limits=NO_DISK)
        with pytest.raises(SandboxError, match=r"engine|[Dd]ocker") as caught:
            await manager.prepare(a_task(git.url("open/project")))
        assert not isinstance(caught.value, CloneError)
        assert caught.value.hint
        executor.words = []
        await manager.cleanup_stale_containers(older_than=timedelta(0))


# --- Figures, and other processes ------------------------------------------------------------


@pytest.mark.requirement("A-102")
@pytest.mark.slow("the engine measures for two seconds")
async def test_there_are_six_figures_to_watch(git: GitServer, make: Make) -> None:
    manager = make()
    info = await manager.prepare(a_task(git.url("open/project")))
    await manager.execute(info.container_id, "head -c 1000000 /dev/zero >big")
    with pytest.raises(CloneError):
        await manager.prepare(a_task(git.url("open/nothing")))
    late = await manager.execute(info.container_id, "sleep 60", timeout_s=0.3)
    assert late.reason is Reason.TIMED_OUT
    stats = await manager.stats()
    assert (stats.environments, stats.leftovers) == (1, 0)
    assert stats.cpu_percent >= 0
    assert stats.memory_bytes > 1_000_000
    assert stats.disk_bytes > 1_000_000
    assert (stats.create_failures, stats.clone_failures, stats.timeouts) == (0, 1, 1)


async def test_another_process_finds_an_environment_and_leaves_it(git: GitServer, make: Make) -> None:  # fmt: skip
    first, second = make(), make()
    info = await first.prepare(a_task(git.url("open/project")))
    async with second.attached(info.task_uuid) as environment:
        channel = await environment.adapter.channel()
        assert "main-1.txt" in [
            each.name for each in await channel.list_files("/workspace/project")
        ]
    assert [(each.task, each.status) for each in await second.existing()] == [(info.task_uuid, "running")]  # fmt: skip
    assert (await first.execute(info.container_id, "echo on")).stdout == "on\n"
    with pytest.raises(SandboxError, match="no container"):
        async with second.attached("nobody"):
            pass
    assert json.loads(docker("inspect", info.name))[0]["HostConfig"]["NanoCpus"] == 10**9
