"""`kakoi mcp` for the environments of tasks, which another process has prepared."""

import contextlib
import os
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from kakoi.audit import read
from kakoi.settings.model import AuditSection, ResourceSection, Settings
from kakoi.settings.tasks import CloneSection, NetworkSection, TaskSection
from kakoi.tasks.environment import ContainerInfo
from kakoi.tasks.from_settings import environment_manager
from tests.cli.conftest import has_image, need
from tests.cli.forked import kakoi
from tests.cli.terminals import KAKOI
from tests.engine import containers
from tests.mcp.connections import any_mode, meta_of, run, stdout_of, text_of
from tests.tasks.hosting import PYTHON, a_repository, a_task, docker

pytestmark = pytest.mark.anyio


@dataclass(frozen=True)
class Tasks:
    """One owner's environments, and `kakoi mcp` for them."""

    folder: Path
    owner: str

    @property
    def environ(self) -> dict[str, str]:
        names = ("PATH", "HOME", "DOCKER_HOST")
        return {
            **{name: os.environ[name] for name in names if name in os.environ},
            "KAKOI_AUDIT_FILE": str(self.folder / "audit.jsonl"),
            "KAKOI_CONFIG": str(self.folder / "config.yaml"),
            "KAKOI_OWNER": self.owner,
            "KAKOI_SANDBOX": "host",
            "COMMAND_EXECUTOR_ENABLED": "true",
            "LANG": "C.UTF-8",
        }

    @contextlib.asynccontextmanager
    async def prepared(
        self, *, owner: str = "", network: str = "none", files: Mapping[str, str] | None = None
    ) -> AsyncIterator[ContainerInfo]:
        """An environment whose manager is gone, as if its process had ended."""
        folder = self.folder / f"project-{uuid.uuid4()}"
        repository = a_repository(folder, {"hello.txt": "hello\n", **(files or {})})
        section = TaskSection(
            enabled=True,
            base_image=PYTHON,
            owner=owner or self.owner,
            network=NetworkSection(external_access=network == "open"),
            clone=CloneSection(auto_install_deps=False),
        )
        manager = environment_manager(
            Settings(
                tasks=section,
                resources=ResourceSection(cpu_limit=1.0),
                audit=AuditSection(file=str(self.folder / "preparing.jsonl")),
            )
        )
        task = a_task(repository)
        try:
            info = await manager.prepare(task)
            await manager.close()
            yield info
        finally:
            await manager.cleanup(task.uuid)

    @contextlib.asynccontextmanager
    async def served(self, *arguments: str, mode: str = "legacy") -> AsyncIterator[Client]:
        argv = [*KAKOI, "mcp", *arguments]
        server = StdioServerParameters(
            command=argv[0], args=argv[1:], env=self.environ, cwd=self.folder
        )
        with (self.folder / "stderr.txt").open("a") as errors:
            async with Client(stdio_client(server, errlog=errors), mode=mode) as client:
                yield client

    def refused(self, *arguments: str, **environ: str) -> str:
        done = kakoi("mcp", *arguments, cwd=self.folder, env={**self.environ, **environ}, text=True)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        return str(done.stderr)


@pytest.fixture
def tasks(tmp_path: Path) -> Iterator[Tasks]:
    need("docker", is_there=has_image(PYTHON))
    (tmp_path / "config.yaml").write_text(
        f"command_executor: {{docker: {{base_image: {PYTHON}}}}}\n"
    )
    found = Tasks(tmp_path, f"test-{uuid.uuid4()}")
    yield found
    left = containers(found.owner)
    for each in left:
        docker("rm", "-f", "-v", each)
    assert left == []


@any_mode
@pytest.mark.requirement("A-049", "A-050")
@pytest.mark.slow("two environments")
async def test_one_server_serves_every_environment_of_its_owner(tasks: Tasks, mode: str) -> None:
    async with (
        tasks.prepared() as one,
        tasks.prepared() as other,
        tasks.served("--tasks", mode=mode) as client,
    ):
        schema = {each.name: each.input_schema for each in (await client.list_tools()).tools}
        assert "container_id" in schema["execute_command"]["required"]
        assert "container_id" in schema["read_file"]["required"]
        assert "container_id" not in schema["read_output"]["properties"]
        for info, id in ((one, one.container_id), (other, other.name)):
            command = f"pwd; cat hello.txt; echo {info.task_uuid} >mine.txt"
            name = "command-executor/execute_command"
            result = await client.call_tool(name, {"command": command, "container_id": id})
            assert stdout_of(result) == "/workspace/project\nhello\n"
        for info in (one, other):
            short = info.container_id[:12]
            given = {"path": "mine.txt", "container_id": short}
            assert info.task_uuid in text_of(await client.call_tool("read_file", given))
        result = await run(client, "sleep 600", container_id=one.name, background=True)
        job = meta_of(result)["job_id"]
        stopped = await client.call_tool("stop_command", {"job_id": job})
        assert not stopped.is_error, text_of(stopped)
    labels = {
        each.task for each in read(tasks.folder / "audit.jsonl") if "mine.txt" in each.command
    }
    assert labels == {one.task_uuid, other.task_uuid}


@pytest.mark.requirement("A-050", "X-33")
@pytest.mark.slow("two environments")
async def test_only_environments_of_its_owner_are_served(tasks: Tasks) -> None:
    stranger = f"test-{uuid.uuid4()}"
    bare = docker("run", "-d", "--name", f"coding-agent-exec-{stranger}", PYTHON, "sleep", "300")
    try:
        async with tasks.prepared(owner=stranger) as theirs, tasks.served("--tasks") as client:
            for id in (theirs.container_id, theirs.name, bare, f"coding-agent-exec-{stranger}"):
                result = await run(client, "echo hi", container_id=id)
                assert result.is_error
                assert "is not yours" in text_of(result)
            assert "is not yours" in tasks.refused("--container", theirs.container_id)
            result = await run(client, "echo hi", container_id="")
            assert "`container_id` is missing" in text_of(result)
            assert "there is no job" in text_of(
                await client.call_tool("read_output", {"job_id": "j-1"})
            )
    finally:
        docker("rm", "-f", "-v", bare)


@pytest.mark.requirement("A-050")
@pytest.mark.slow("an environment with a proxied network")
@pytest.mark.parametrize("option", ["--task", "--container"])
async def test_a_server_for_one_environment_needs_no_id(tasks: Tasks, option: str) -> None:
    async with tasks.prepared(network="open") as info:
        named = info.task_uuid if option == "--task" else info.container_id
        async with tasks.served(option, named) as client:
            first = await run(client, "cat hello.txt", container_id=info.container_id)
            assert stdout_of(first) == "hello\n"
            assert stdout_of(await run(client, "pwd")) == "/workspace/project\n"
            assert "is not yours" in text_of(await run(client, "pwd", container_id="0" * 64))
            refused = await run(client, "sudo id")
            assert refused.is_error
            (told,) = (await client.read_resource("kakoi://audit")).contents
            assert "sudo id" in getattr(told, "text", "")
        assert docker("inspect", "--format", "{{.State.Running}}", info.container_id) == "true"


@pytest.mark.slow("an environment")
async def test_the_projects_own_rules_hold_for_those_who_attach(tasks: Tasks) -> None:
    files = {".kakoi.yaml": "policy: {exclude: [cat]}\n"}
    async with tasks.prepared(files=files) as info, tasks.served("--tasks") as client:
        refused = await run(client, "cat hello.txt", container_id=info.container_id)
        assert refused.is_error
        assert "`cat` is not on the list" in text_of(refused)
        assert stdout_of(await run(client, "echo hi", container_id=info.name)) == "hi\n"


@pytest.mark.slow("an environment, prepared twice")
async def test_an_environment_that_is_gone_is_refused_and_a_new_one_is_found(tasks: Tasks) -> None:
    async with tasks.served("--tasks") as client:
        async with tasks.prepared() as info:
            result = await run(client, "echo hi", container_id=info.container_id)
            assert stdout_of(result) == "hi\n"
        result = await run(client, "echo hi", container_id=info.container_id)
        assert "is not yours" in text_of(result)
        async with tasks.prepared() as info:
            result = await run(client, "echo hi", container_id=info.container_id)
            assert stdout_of(result) == "hi\n"


def test_a_server_that_cannot_serve_a_task_does_not_start(tasks: Tasks) -> None:
    assert "task `nobody` has no environment" in tasks.refused("--task", "nobody")
    assert "is not yours" in tasks.refused("--container", "nobody")
    for option in ("--task", "--container"):
        assert "need a value" in tasks.refused(option, "")
    log = str(tasks.folder / "other.jsonl")
    assert "has no environment" in tasks.refused("--task", "nobody", "--audit-file", log)
    assert "exclude each other" in tasks.refused("--tasks", "--task", "x")
    for options in (("--profile", "open"), ("--sandbox", "host"), ("--workspace", "."), ("--cow",)):
        assert f"{options[0]} has no effect" in tasks.refused("--tasks", *options)
    off = tasks.refused("--tasks", COMMAND_EXECUTOR_ENABLED="false")
    assert "`tasks.enabled` is false" in off
    assert "COMMAND_EXECUTOR_ENABLED=true" in off
