"""The tool set: calls by name, from several callers, that end when they are cancelled."""

import asyncio
import json

import pytest

from kakoi.tools.catalogue import TOOLS
from kakoi.tools.sessions import Caller
from kakoi.tools.toolset import Toolset
from tests.cli.terminals import PATIENCE_S, alive
from tests.tools.places import ToolPlace, run, stdout_of, until

pytestmark = pytest.mark.anyio


def test_there_is_one_tool_for_each_thing_that_a_model_does() -> None:
    jobs = ["execute_command", "read_output", "write_stdin", "stop_command", "list_jobs"]
    files = ["read_file", "write_file", "edit_file", "list_files"]
    assert list(TOOLS) == [*jobs, *files, "install_package", "check_command"]


async def test_an_unknown_tool_is_a_result_that_names_the_nearest(tools: Toolset) -> None:
    for name in ("execute_comand", "", "\x1b[2J", "x" * 100_000):
        result = await tools.call(name, {"command": "touch ran"})
        assert result.is_error
        assert result.text.startswith("there is no tool ")
        assert len(result.text) < 300
        assert result.text.isprintable()
    assert "`execute_command`" in (await tools.call("execute_comand", {})).text


async def test_the_result_has_the_facts_for_programs(tools: Toolset, place: ToolPlace) -> None:
    result = await run(tools, "echo out; echo err >&2; exit 3")
    job = result.meta["job_id"]
    assert result.text.startswith("out\n[stderr]\nerr\n[exit code 3 | ")
    assert result.text.endswith(f" ms | exited | job {job}]")
    assert not result.is_error
    assert (result.meta["exit_code"], result.meta["reason"]) == (3, "exited")
    assert stdout_of(result) == "out\n"
    records = [json.loads(line) for line in place.log.read_text().splitlines()]
    assert {record["session"] for record in records} == {"agent:default"}


async def test_callers_share_no_directory_and_no_job(tools: Toolset, mark: str) -> None:
    one, other = Caller("token", "one"), Caller("token", "other")
    await tools.call("execute_command", {"command": "mkdir sub; cd sub"}, caller=one)
    started = await tools.call(
        "execute_command", {"command": f"sleep {mark}", "background": True}, caller=one
    )
    job = {"job_id": started.meta["job_id"]}
    where = await tools.call("execute_command", {"command": "pwd"}, caller=other)
    assert stdout_of(where) == f"{tools.workspace}\n"
    for tool in ("read_output", "write_stdin", "stop_command"):
        refused = await tools.call(tool, job, caller=other)
        assert "there is no job" in refused.text
    listed = await tools.call("list_jobs", {}, caller=other)
    assert "running: 0" in listed.text
    await until(lambda: alive(mark), "the job runs")
    assert not (await tools.call("stop_command", job, caller=one)).is_error
    assert alive(mark) == []


async def test_a_cancelled_call_ends_the_whole_tree(tools: Toolset, mark: str) -> None:
    calling = asyncio.ensure_future(run(tools, f"setsid sleep {mark} & sleep {mark}"))
    await until(lambda: len(alive(mark)) >= 2, "it runs")
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(PATIENCE_S):
            await calling
    assert alive(mark) == []
    assert not (await run(tools, "echo next")).is_error


async def test_jobs_end_with_the_tools(place: ToolPlace, mark: str) -> None:
    async with place.open() as tools:
        await run(tools, f"setsid sleep {mark} & sleep {mark}", background=True)
        await until(lambda: len(alive(mark)) >= 2, "it runs")
    assert alive(mark) == []
