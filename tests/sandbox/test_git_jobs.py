"""A confined `git push` as a job, which is how the tools of a model run every command.

A copy of a workspace cannot push.
"""

import contextlib
import subprocess
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from kakoi.backends.host.adapter import HostAdapter
from kakoi.channel.api import Command
from kakoi.gate import Gate
from kakoi.gate.connections import DedicatedSandbox
from kakoi.network.domains import parse_domains
from kakoi.network.proxy import Proxy
from kakoi.policy.profiles import load_policy
from tests.cli.terminals import KAKOI
from tests.git_http import SECRET, GitServer
from tests.mcp.connections import meta_of, text_of
from tests.sandbox.test_git_remotes import WAIT_S, User, store
from tests.sandbox.test_git_remotes import server as server
from tests.sandbox.test_git_remotes import user as user

pytestmark = pytest.mark.anyio


@pytest.fixture
def project(user: User, server: GitServer) -> User:
    """The user with one commit, and a remote that wants a credential."""
    user.git("remote", "add", "origin", server.make("p.git"))
    store(user, server)
    user.git("add", "a")
    user.git("commit", "-qm", "first")
    return user


@contextlib.asynccontextmanager
async def mcp_client(user: User) -> AsyncIterator[Client]:
    words = ["mcp", "--workspace", str(user.project), "--profile", "shell"]
    command, *rest = [*KAKOI, *words]
    server = StdioServerParameters(command=command, args=rest, env=user.environ)
    async with Client(stdio_client(server)) as client:
        yield client


@pytest.mark.requirement("D-047")
@pytest.mark.slow("starts a server, and a sandbox for each command that talks to the remote")
async def test_a_push_over_mcp_arrives_at_once_and_in_the_background(
    project: User, server: GitServer
) -> None:
    async with mcp_client(project) as client:

        async def call(name: str, **arguments: Any) -> str:
            return text_of(await client.call_tool(name, arguments))

        async def ended_job(command: str) -> str:
            asked = {"command": command, "background": True}
            job = str(meta_of(await client.call_tool("execute_command", asked))["job_id"])
            while "exit code 0" not in (
                told := await call("read_output", job_id=job, wait_ms=10_000)
            ):
                assert "still running" in told
            return job

        assert "main -> main" in await call("execute_command", command="git push origin main")
        job = await ended_job("git push origin main:other")
        assert "main -> other" in await call("read_output", job_id=job, stream="stderr")
        assert job in await call("list_jobs")
        # Other commands still have no network, and none of them sees a credential.
        ask = f"curl -s -m 5 http://{server.host}/p.git/info/refs; echo; env"
        assert SECRET not in await call("execute_command", command=ask)
    assert server.log("p.git", "other") == "Ann Author first\n"
    assert SECRET not in (project.home / "audit.jsonl").read_text()


def test_a_copy_on_write_sandbox_says_why_it_cannot_push(project: User, server: GitServer) -> None:
    said = subprocess.run(
        [*KAKOI, "run", "--profile", "shell", "--cow", "git push origin main"],
        cwd=project.project,
        env={**project.environ, "KAKOI_SANDBOX": "bubblewrap"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert said.returncode != 0
    assert "a copy-on-write sandbox cannot reach the git remote" in said.stderr
    assert "apply the changes" in said.stderr
    assert server.asked == []


@dataclass
class OneCommand:
    """A sandbox of its own for each command, on the host."""

    workspace: Path
    ended: list[str] = field(default_factory=list)

    async def dedicated_sandbox(
        self, command: Command
    ) -> contextlib.AbstractAsyncContextManager[DedicatedSandbox]:
        return self._opened(command.id)

    @contextlib.asynccontextmanager
    async def _opened(self, id: str) -> AsyncIterator[DedicatedSandbox]:
        adapter = HostAdapter(self.workspace, warn_on_start=False)
        try:
            yield adapter, Proxy(parse_domains([]))
        finally:
            await adapter.cleanup()
            self.ended.append(id)


async def test_sandboxes_of_ended_jobs_are_kept_until_later_ones_need_the_room(
    tmp_path: Path,
) -> None:
    own = OneCommand(tmp_path)
    shared = HostAdapter(tmp_path, warn_on_start=False)
    gate = Gate(load_policy(), shared, dedicated=own.dedicated_sandbox)
    running = await gate.start(Command(command="cat", stdin_open=True))
    jobs = []
    for number in range(6):
        job = await gate.start(Command(command=f"echo {number}"))
        assert await gate.wait(job, wait_s=WAIT_S)
        jobs.append(job)
    assert own.ended == jobs[:2]
    part = await (await gate.job_channel(jobs[2])).read_output(jobs[2], "stdout")
    assert part.data == b"2\n"
    assert [each.id for each in await gate.list_jobs()] == [running, *jobs[2:]]
    await (await gate.job_channel(running)).write_stdin(running, b"", close=True)
    assert await gate.wait(running, wait_s=WAIT_S)
    await gate.close()
    await shared.cleanup()
    assert sorted(own.ended) == sorted([running, *jobs])
