"""The tools for jobs: commands that go on after their call was answered."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, cast

import anyio
import pytest

from kakoi.backends.host.adapter import HostAdapter
from kakoi.channel.api import Channel, OutputPart, Stream
from kakoi.gate import Gate
from kakoi.policy.profiles import load_policy
from kakoi.tools.toolset import Toolset
from tests.cli.terminals import PATIENCE_S, alive
from tests.tools.places import ToolPlace, run, stdout_of, tools_over, until

pytestmark = pytest.mark.anyio


async def test_a_long_command_goes_on_as_a_job(tools: Toolset, place: ToolPlace) -> None:
    command = "mkdir sub; cd sub; echo one; while ! test -e ../go; do sleep 0.01; done; echo two"
    result = await run(tools, command, yield_ms=200)
    job = result.meta["job_id"]
    assert result.meta["running"]
    assert "still running" in result.text
    assert f"job {job}" in result.text
    listed = await tools.call("list_jobs", {})
    assert listed.meta["jobs"] == [{"job_id": job, "running": True, "session": "default"}]
    (place.workspace / "go").touch()
    seen, offset = "", 0
    with anyio.fail_after(60):
        while True:
            arguments = {"job_id": job, "offset": offset, "wait_ms": 30_000}
            part = await tools.call("read_output", arguments)
            seen += "".join(part.text.splitlines(keepends=True)[:-1])
            offset = part.meta["next_offset"]
            if not part.meta["running"] and part.meta["output_ended"]:
                break
    assert seen == "one\ntwo\n"
    assert stdout_of(await run(tools, "pwd")) == f"{place.workspace}/sub\n"


async def test_a_job_takes_input_until_it_ends(tools: Toolset) -> None:
    job = (await run(tools, "cat", background=True, stdin_open=True)).meta["job_id"]
    written = await tools.call("write_stdin", {"job_id": job, "text": "one\n"})
    assert "4 bytes" in written.text
    part = await tools.call("read_output", {"job_id": job, "wait_ms": 30_000})
    assert part.text.startswith("one\n[still running")
    await tools.call("write_stdin", {"job_id": job, "text": "two", "close": True})
    with anyio.fail_after(60):
        while part.meta["running"]:
            part = await tools.call("read_output", {"job_id": job})
    assert part.text.startswith("one\ntwo\n[exit code 0")
    late = await tools.call("write_stdin", {"job_id": job, "text": "three"})
    assert late.is_error
    assert "the stdin of the job is closed" in late.text


async def test_a_stopped_job_leaves_nothing_behind(tools: Toolset, mark: str) -> None:
    job = (await run(tools, f"setsid sleep {mark} & sleep {mark}", background=True)).meta["job_id"]
    await until(lambda: len(alive(mark)) >= 2, "it runs")
    stopped = await tools.call("stop_command", {"job_id": job})
    assert stopped.meta["reason"] == "cancelled"
    assert alive(mark) == []
    again = await tools.call("stop_command", {"job_id": job})
    assert again.meta["reason"] == "cancelled"


@pytest.mark.parametrize("tool", ["read_output", "write_stdin", "stop_command"])
async def test_a_job_that_is_not_there_is_told(tools: Toolset, tool: str) -> None:
    before = await tools.call(tool, {"job_id": "nothing"})
    await run(tools, "true")
    after = await tools.call(tool, {"job_id": "nothing"})
    assert [before.is_error, after.is_error] == [True, True]
    assert "there is no job 'nothing'" in after.text


async def test_no_more_run_at_once_than_the_settings_allow(place: ToolPlace) -> None:
    changed = ToolPlace(place.folder, settings={"execution.concurrency": 2})
    async with changed.open() as tools:
        async with anyio.create_task_group() as group:
            for _ in range(2):
                group.start_soon(run, tools, "while ! test -e go; do sleep 0.01; done")
            await until(lambda: len(tools.gate.running_jobs) == 2, "two run")
            refused = await run(tools, "echo third", yield_ms=0)
            (changed.workspace / "go").touch()
        assert refused.is_error
        assert "2 commands are running" in refused.text
        assert not (await run(tools, "echo fourth")).is_error


async def test_there_is_an_end_to_jobs_in_the_background(tools: Toolset) -> None:
    jobs = []
    for _ in range(64):
        started = await run(tools, "cat", background=True, stdin_open=True)
        jobs.append(started.meta["job_id"])
    refused = await run(tools, "cat", background=True, stdin_open=True)
    assert refused.is_error
    assert "64 jobs are running" in refused.text
    await tools.call("stop_command", {"job_id": jobs[0]})
    assert not (await run(tools, "echo room")).is_error


async def test_a_job_changes_its_session_once_when_its_end_is_seen(
    tools: Toolset, place: ToolPlace
) -> None:
    (place.workspace / "sub").mkdir()
    left = await run(tools, "cat; cd sub; export A=1", stdin_open=True, yield_ms=0)
    job = left.meta["job_id"]
    await tools.call("write_stdin", {"job_id": job, "close": True})
    read = {"job_id": job, "wait_ms": 50_000}
    while (await tools.call("read_output", read)).meta["running"]:
        pass
    assert stdout_of(await run(tools, 'pwd; echo "$A"')) == f"{place.workspace}/sub\n1\n"
    await run(tools, "cd ..; export A=2")
    await tools.call("read_output", read)
    assert stdout_of(await run(tools, 'pwd; echo "$A"')) == f"{place.workspace}\n2\n"


class LateChannel:
    """A channel on which something happens after output was read, before the reader gets it."""

    def __init__(self, channel: Channel, late: Callable[[str], Awaitable[None]]) -> None:
        self._channel = channel
        self._late = late

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def read_output(self, job: str, stream: Stream, **options: Any) -> OutputPart:
        part = await self._channel.read_output(job, stream, **options)
        await self._late(job)
        return part


class LateHost(HostAdapter):
    """The host, through a LateChannel."""

    async def late(self, job: str) -> None:
        """What happens; replaced by the test."""

    async def channel(self) -> Channel:
        return cast("Channel", LateChannel(await super().channel(), self.late))


async def test_an_answer_that_says_a_job_ended_has_all_of_its_output(tmp_path: Path) -> None:
    """Also if the job wrote the rest and ended between reading its output and looking at it."""
    sandbox = LateHost(tmp_path)
    gate = Gate(load_policy(), sandbox, cwd=str(tmp_path))

    async def end(job: str) -> None:
        (tmp_path / "go").touch()
        assert await gate.wait(job, wait_s=PATIENCE_S) is not None

    command = "echo one; while ! test -e go; do sleep 0.01; done; echo two"
    async with tools_over(gate, tmp_path) as tools:
        job = (await run(tools, command, background=True)).meta["job_id"]
        channel = await sandbox.channel()
        await channel.read_output(job, "stdout", wait_s=PATIENCE_S)
        sandbox.late = end  # type: ignore[method-assign]  # That is its purpose.
        part = await tools.call("read_output", {"job_id": job})
    assert part.text.startswith("one\ntwo\n[exit code 0 | ")
    assert (part.meta["running"], part.meta["output_ended"]) == (False, True)
    assert part.meta["next_offset"] == len("one\ntwo\n")
