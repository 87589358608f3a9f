"""The commands about environments of tasks, on real containers that another process has made."""

import asyncio
import contextlib
import json
import re
import subprocess
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from kakoi.audit import AuditLog, Event, read
from kakoi.channel.api import MAX_FILE_BYTES, Command
from kakoi.tasks.checkout import CloneError
from kakoi.tasks.environments import EnvironmentOptions, ExecutionEnvironmentManager
from kakoi.tasks.task import Task
from tests.cli.conftest import has_image, need
from tests.cli.terminals import Door
from tests.engine import containers
from tests.engine_proxy import EngineProxy

pytestmark = pytest.mark.anyio

IMAGE = "kakoi-test:python"


def docker(*args: str) -> str:
    done = subprocess.run(["docker", *args], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def owner() -> Iterator[str]:
    need("docker", is_there=has_image(IMAGE))
    name = f"test-{uuid.uuid4()}"
    yield name
    left = containers(name)
    for each in left:
        docker("rm", "-f", "-v", each)
    assert left == []


@pytest.fixture
def tasks(door: Door, owner: str) -> Door:
    return replace(door, env={"KAKOI_OWNER": owner, "EXECUTOR_BASE_IMAGE": IMAGE})


@pytest.fixture
def repository(tmp_path: Path) -> str:
    script = "git init -q -b main p; cd p; echo hello >hello.txt; git add .; git -c user.name=a -c user.email=a@b commit -qm x"
    subprocess.run(["sh", "-ec", script], cwd=tmp_path, check=True)
    return f"file://{tmp_path}/p"


def now() -> datetime:
    return datetime.now(UTC)


@contextlib.asynccontextmanager
async def an_environment(
    tasks: Door, owner: str, repository: str
) -> AsyncIterator[tuple[ExecutionEnvironmentManager, str]]:
    """A manager, and a task that it has prepared."""
    options = EnvironmentOptions(image=IMAGE)
    audit = AuditLog(tasks.log, clock=now)
    manager = ExecutionEnvironmentManager(options, clock=now, owner=owner, audit=audit)
    task = Task(uuid=f"t-{uuid.uuid4()}", repository=repository)
    await manager.prepare(task)
    try:
        yield manager, task.uuid
    finally:
        await manager.cleanup(task.uuid)


def call(door: Door, *words: str, stdin: bytes = b"", status: int = 0) -> str:
    """What it writes to standard output; to standard error, if it is to fail."""
    found, out, err = door(*words, stdin=stdin)
    assert found == status, (out, err)
    return out if status == 0 else err


@pytest.mark.requirement("A-102")
@pytest.mark.slow("the engine measures for two seconds, several times")
async def test_an_environment_is_listed_entered_and_summed_up(
    tasks: Door, owner: str, repository: str
) -> None:
    async with an_environment(tasks, owner, repository) as (manager, task):
        with pytest.raises(CloneError):
            await manager.prepare(Task(uuid="lost", repository=f"{repository}-gone"))

        def look() -> None:
            assert call(tasks, "env", "exec", task, "--", "cat", "hello.txt") == "hello\n"
            call(tasks, "env", "exec", task, "head -c 1200000 /dev/zero >big")
            assert call(tasks, "env", "exec", task, "wc -c | tr -d ' '", stdin=b"four") == "4\n"
            assert tasks("env", "exec", task, "exit 7")[0] == 7
            assert "deny" in call(tasks, "env", "exec", task, "rm -rf /", status=126)
            assert "timed out" in call(
                tasks, "env", "exec", "--timeout", "1", task, "sleep 60", status=124
            )
            told = json.loads(call(tasks, "env", "exec", "--json", task[:20], "pwd"))
            assert (told["stdout"], told["sandbox"]) == ("/workspace/project\n", "docker")
            assert told["limits"]["enforced"]["memory_bytes"] == "a control group"
            _, _, said = tasks("env", "exec", "-v", "--timeout", "60", task, "pwd")
            limits = "time 60 s, memory 4096 MiB, processors 2, processes 512 (a control group)"
            assert f"the command runs; limits: {limits}" in said
            (row,) = json.loads(call(tasks, "env", "ls", "--json"))
            assert (row["task"], row["state"], row["last_command"]) == (task, "running", "pwd")
            assert row["memory_bytes"] > 0
            assert 1024 * 1024 < row["disk_bytes"] < 2 * 1024 * 1024
            assert row["age_s"] < 120
            head, line = call(tasks, "env", "ls").splitlines()
            assert head.split() == "TASK STATE AGE CPU MEMORY DISK LAST COMMAND".split()
            assert re.search(r"MiB +1 MiB +pwd$", line)
            assert line.startswith(task)
            assert line.endswith("pwd")
            stats = json.loads(call(tasks, "env", "stats", "--json"))
            assert (stats["environments"], stats["leftovers"]) == (1, 0)
            assert (stats["create_failures"], stats["clone_failures"], stats["timeouts"]) == (
                0,
                1,
                1,
            )
            assert "kakoi_timeouts_total 1\n" in call(tasks, "env", "stats", "--prometheus")
            assert "clone failures   1" in call(tasks, "env", "stats")

        await asyncio.to_thread(look)
        started = [record for record in read(tasks.log) if record.event is Event.STARTED]
        assert {record.task for record in started} == {task, "lost"}


async def test_files_are_copied_both_ways_within_bounds(
    tasks: Door, owner: str, repository: str, tmp_path: Path
) -> None:
    data = bytes(range(256)) * 1000
    here = tasks.workspace / "here.bin"
    here.write_bytes(data)
    big = tmp_path / "big"
    big.touch()
    with big.open("r+b") as file:
        file.truncate(MAX_FILE_BYTES + 1)

    def copy(task: str) -> None:
        call(tasks, "env", "cp", "here.bin", f"{task}:sub.bin")
        call(tasks, "env", "cp", f"{task}:sub.bin", "back.bin")
        assert (tasks.workspace / "back.bin").read_bytes() == data
        call(tasks, "env", "cp", f"{task}:/workspace/project/hello.txt", ".")
        assert (tasks.workspace / "hello.txt").read_text() == "hello\n"
        assert "at most 64 MiB" in call(tasks, "env", "cp", str(big), f"{task}:big", status=2)
        assert "at most 64 MiB" in call(tasks, "env", "cp", "/dev/zero", f"{task}:big", status=2)
        assert "No such file" in call(tasks, "env", "cp", f"{task}:none", "x", status=2)
        assert "No such file" in call(tasks, "env", "cp", "none", f"{task}:x", status=2)
        assert "one of SOURCE and TARGET" in call(tasks, "env", "cp", "a", "b", status=2)
        assert "no environment" in call(tasks, "env", "cp", "here.bin", "nobody:x", status=2)
        # Judged as the command that would do it.
        assert call(tasks, "env", "cp", "here.bin", f"{task}:/etc/x", status=2)
        assert call(tasks, "env", "cp", f"{task}:/etc/shadow", "shadow", status=2)
        assert not (tasks.workspace / "shadow").exists()

    async with an_environment(tasks, owner, repository) as (_, task):
        await asyncio.to_thread(copy, task)


@pytest.mark.slow("an environment, and many calls")
async def test_the_output_of_a_job_is_read_by_another_process(
    tasks: Door, owner: str, repository: str
) -> None:
    async with (
        an_environment(tasks, owner, repository) as (manager, task),
        manager.attached(task) as environment,
    ):
        script = "echo one; echo bad >&2; echo two; cat"
        job = await environment.gate.start(Command(command=script, stdin_open=True))
        channel = await environment.adapter.channel()
        part = await channel.read_output(job, "stdout", offset=4, wait_s=30)
        assert part.data

        def look() -> None:
            (row,) = json.loads(call(tasks, "env", "logs", "--json", task))
            assert (row["id"], row["running"]) == (job, True)
            assert job in call(tasks, "env", "logs", task)
            assert call(tasks, "env", "logs", job) == "one\ntwo\n"
            assert call(tasks, "env", "logs", "--offset", "4", job) == "two\n"
            assert call(tasks, "env", "logs", "--stderr", job) == "bad\n"
            assert "a JOB has no JSON" in call(tasks, "env", "logs", "--json", job, status=2)
            assert "no running task or job" in call(tasks, "env", "logs", "nothing", status=2)

        await asyncio.to_thread(look)
        await channel.write_stdin(job, b"three\n", close=True)
        assert await asyncio.to_thread(call, tasks, "env", "logs", "-f", job) == "one\ntwo\nthree\n"


@pytest.mark.requirement("A-093")
@pytest.mark.slow("an environment, and two commands that end it")
async def test_an_environment_that_the_engine_does_not_remove_is_tried_three_times(
    tasks: Door, owner: str, repository: str, own_temporary: Path
) -> None:
    async with an_environment(tasks, owner, repository) as (_, task):
        removal = rf"DELETE /containers/coding-agent-exec-{task}"
        with EngineProxy(own_temporary / "engine", failing=removal).listening() as engine:
            behind = replace(tasks, env={**tasks.env, "DOCKER_HOST": engine.address})
            said = await asyncio.to_thread(call, behind, "env", "stop", task, status=1)
            assert "could not be removed; `kakoi env prune` tries again" in said
            assert "device or resource busy" in said
            assert engine.matching(removal) == 3
        assert await asyncio.to_thread(call, tasks, "env", "stop", task) == f"{task}\n"


async def test_environments_are_stopped_and_pruned(
    tasks: Door, owner: str, repository: str
) -> None:
    async with an_environment(tasks, owner, repository) as (_, task):
        name = f"coding-agent-exec-{task}"

        def end() -> None:
            assert call(tasks, "env", "prune") == ""
            assert (
                call(tasks, "env", "prune", "--older-than", "0", "--dry-run")
                == f"would remove {name}\n"
            )
            assert "is not a duration" in call(
                tasks, "env", "prune", "--older-than", "soon", status=2
            )
            assert call(tasks, "env", "stop", task) == f"{task}\n"
            assert "no environment" in call(tasks, "env", "stop", task, status=2)
            assert call(tasks, "env", "ls") == ""
            assert call(tasks, "env", "ls", "--json") == "[]\n"
            assert "no environment" in call(tasks, "env", "exec", task, "true", status=125)
            left = f"coding-agent-exec-{uuid.uuid4()}"
            docker("create", "--name", left, "--label", f"kakoi.owner={owner}", IMAGE, "true")
            answer = json.loads(call(tasks, "env", "prune", "--older-than", "0", "--json"))
            assert answer == {"removed": [left], "left": []}

        await asyncio.to_thread(end)
        assert containers(owner) == []


def test_without_an_engine_it_says_so(door: Door) -> None:
    gone = replace(door, env={"DOCKER_HOST": "unix:///nonexistent.sock"})
    for words in (["ls"], ["stats"], ["prune"], ["stop", "x"], ["logs", "x"], ["cp", "x:a", "b"]):
        said = call(gone, "env", *words, status=2)
        assert said.startswith("kakoi: ")
        assert "hint:" in said
