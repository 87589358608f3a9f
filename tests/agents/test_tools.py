"""The tools of a model: our own, called directly, and MCP servers of strangers that misbehave."""

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kakoi.agents.conversation import ToolRequest
from kakoi.agents.events import ContextShortened, LoopEnded, Outcome, ToolAnswered
from kakoi.agents.from_settings import servers_from
from kakoi.agents.loop import AgentLoop, LoopLimits
from kakoi.agents.messages import TOOL_NAME
from kakoi.agents.servers import ServerSpec
from kakoi.agents.tools import AskUser, MCPToolClient, open_tools, shorten_output
from kakoi.errors import ConfigurationError
from kakoi.settings.agent import AgentSection
from kakoi.tools.approval import ApprovalAnswer, Question
from tests.agents.models_for_tests import Ear, Script, call, done
from tests.cli.terminals import alive
from tests.mcp.connections import TOKEN, McpDoor
from tests.tools.places import ToolPlace, until

pytestmark = pytest.mark.anyio
PATIENCE_S = 60
FOREIGN = Path(__file__).with_name("foreign_server.py")


@pytest.fixture
def door(tmp_path: Path) -> McpDoor:
    folder = tmp_path.resolve()
    (folder / "workspace").mkdir()
    (folder / "config.yaml").write_text("execution:\n  concurrency: 4\n")
    return McpDoor(folder)


@asynccontextmanager
async def tools_of(
    door: McpDoor, *others: ServerSpec, ask: AskUser | None = None
) -> AsyncIterator[MCPToolClient]:
    async with (
        asyncio.timeout(PATIENCE_S),
        ToolPlace(door.folder).open() as own,
        open_tools(own, others, ask=ask) as tools,
    ):
        yield tools


def foreign(kind: str, timeout_s: float = 30.0) -> ServerSpec:
    argv = (sys.executable, str(FOREIGN), kind)
    env = {"PATH": os.environ["PATH"]}
    return ServerSpec(name="theirs", command=argv, env=env, timeout_s=timeout_s)


@asynccontextmanager
async def only(spec: ServerSpec) -> AsyncIterator[MCPToolClient]:
    async with asyncio.timeout(PATIENCE_S), open_tools(None, [spec]) as tools:
        yield tools


async def run(door: McpDoor, script: Script, ear: Ear | None = None, **more: Any) -> LoopEnded:
    async with tools_of(door, ask=more.pop("ask", None)) as tools:
        loop = AgentLoop(script.model, tools, listener=ear or Ear(), limits=LoopLimits(**more))
        return await loop.run("", "x")


def answered(ear: Ear) -> ToolAnswered:
    found: ToolAnswered = ear.heard(ToolAnswered)[0]
    return found


# --- Ours ------------------------------------------------------------------------------------


@pytest.mark.requirement("A-052")
async def test_the_model_hears_exit_code_and_both_streams(door: McpDoor) -> None:
    script = Script(call("execute_command", command="echo out; echo err >&2; exit 3"), done())
    ended = await run(door, script)
    assert ended.outcome is Outcome.DONE
    assert script.last_heard.startswith("out\n[stderr]\nerr\n[exit code 3 | ")


@pytest.mark.requirement("A-049")
async def test_it_can_be_called_by_the_name_of_spec_a(door: McpDoor) -> None:
    async with tools_of(door) as tools:
        reply = await tools.call_tool("command-executor/execute_command", {"command": "echo hi"})
    assert reply.text.startswith("hi\n")


async def test_a_server_of_the_settings_can_be_called_by_its_name_in_front(door: McpDoor) -> None:
    async with tools_of(door, foreign("good")) as tools:
        assert (await tools.call_tool("theirs/hello", {})).text == "hello"
        ours = await tools.call_tool("command-executor/execute_command", {"command": "echo hi"})
        assert ours.text.startswith("hi\n")


@pytest.mark.requirement("A-049", "X-33")
async def test_the_name_of_the_settings_is_the_prefix_of_our_tools(door: McpDoor) -> None:
    async with door.open() as own, open_tools(own, [foreign("good")], name="theirs") as tools:
        for name in ("theirs/execute_command", "execute_command"):
            reply = await tools.call_tool(name, {"command": "echo hi"})
            assert reply.text.startswith("hi\n")  # No other server can pose as ours.
        other = await tools.call_tool("command-executor/execute_command", {"command": "echo hi"})
        assert other.is_error
        assert "there is no tool 'command-executor/execute_command'" in other.text


@pytest.mark.requirement("A-058")
async def test_a_refused_command_goes_back_to_the_model_with_its_way_out(door: McpDoor) -> None:
    ear = Ear()
    script = Script(call("execute_command", command="sudo ls"), done())
    ended = await run(door, script, ear)
    assert ended.outcome is Outcome.DONE
    assert "`sudo` changes users" in script.last_heard
    assert "help: Run the command without it" in script.last_heard
    assert answered(ear).is_error
    assert answered(ear).meta["verdict"] == "deny"


@pytest.mark.requirement("A-058")
async def test_a_program_that_is_not_there_is_told_and_the_loop_goes_on(door: McpDoor) -> None:
    ear = Ear()
    script = Script(call("execute_command", command="phpunit"), done())
    ended = await run(door, script, ear)
    assert ended.outcome is Outcome.DONE
    assert "phpunit: command not found" in script.last_heard
    assert "[exit code 127 | " in script.last_heard


@pytest.mark.requirement("A-058")
async def test_what_may_not_be_executed_is_told_and_the_loop_goes_on(door: McpDoor) -> None:
    make = "mkdir node_modules; mkdir node_modules/.bin; echo ls > node_modules/.bin/jest"
    script = Script(
        call("execute_command", command=make),
        call("execute_command", command="node_modules/.bin/jest"),
        done(),
    )
    ended = await run(door, script)
    assert ended.outcome is Outcome.DONE
    assert "Permission denied" in script.last_heard
    assert "[exit code 126 | " in script.last_heard


async def test_a_question_of_the_policy_without_a_person_is_a_no(door: McpDoor) -> None:
    ear = Ear()
    script = Script(call("execute_command", command="git commit -m x"), done())
    await run(door, script, ear)
    assert answered(ear).meta["code"] == "USER_CANCELLED"
    assert '"event":"started"' not in door.log.read_text().replace(" ", "")


@pytest.mark.parametrize("agreed", [True, False])
async def test_a_person_is_asked_if_there_is_one(door: McpDoor, agreed: bool) -> None:
    questions: list[str] = []

    async def ask(question: Question) -> ApprovalAnswer:
        questions.append(question.text)
        return ApprovalAnswer.ONCE if agreed else ApprovalAnswer.NO

    ear = Ear()
    script = Script(call("execute_command", command="git commit -m x"), done())
    await run(door, script, ear, ask=ask)
    assert len(questions) == 1
    assert "git commit -m x" in questions[0]
    assert ("exit_code" in answered(ear).meta) is agreed


@pytest.mark.requirement("A-057", "B-055")
async def test_a_long_command_hits_its_timeout_and_the_model_is_told(door: McpDoor) -> None:
    script = Script(call("execute_command", command="sleep 600", timeout_ms=200), done())
    ended = await run(door, script)
    assert ended.outcome is Outcome.DONE
    assert "timed_out" in script.last_heard
    assert "the limit was 0.2 s" in script.last_heard


async def test_long_output_stays_readable_by_its_job(door: McpDoor) -> None:
    heard: list[str] = []

    def read_on(text: str) -> Any:
        heard.append(text)
        job = text.rpartition("job ")[2].rstrip("]\n")
        return call("read_output", job_id=job, offset=255_000, limit=8_000)

    script = Script(call("execute_command", command="seq 50000"), read_on, done())
    await run(door, script)
    assert len(heard[0]) < 40_000
    assert "characters omitted; read_output(job_id=" in heard[0]
    assert "\n45000\n" not in heard[0]
    assert "\n45000\n" in script.last_heard


async def test_what_was_left_out_of_an_old_answer_is_read_again_by_its_job(door: McpDoor) -> None:
    """What the note in a shortened answer says is what works."""
    jobs: list[str] = []

    def read_again(_last: str) -> Any:
        first = str(script.asked[-1])
        found = re.search(r'omitted from an old answer; read_output\(job_id="([^"]+)"\)', first)
        assert found is not None
        jobs.append(found[1])
        return call("read_output", job_id=found[1], offset=8_000, limit=8_000)

    noise = [call("execute_command", command="seq 10001 14000") for _ in range(6)]
    script = Script(call("execute_command", command="seq 4000"), *noise, read_again, done())
    ear = Ear()
    ended = await run(door, script, ear, window_tokens=16_000)
    assert ended.outcome is Outcome.DONE
    assert ear.heard(ContextShortened)
    assert "\\n2000\\n" in str(script.asked[1])
    assert "\\n2000\\n" not in str(script.asked[-2])
    assert "\n2000\n" in script.last_heard


@pytest.mark.slow("starts servers, and waits for their end")
async def test_a_cancelled_loop_leaves_nothing_running(door: McpDoor) -> None:
    mark = f"600.{int.from_bytes(os.urandom(6), 'big')}"
    command = f"setsid sleep {mark} & sleep {mark}"
    running = asyncio.ensure_future(run(door, Script(call("execute_command", command=command))))
    await until(lambda: len(alive(mark)) >= 2, "it runs")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert alive(mark) == []


async def test_a_paused_loop_leaves_nothing_running(door: McpDoor) -> None:
    mark = f"600.{int.from_bytes(os.urandom(6), 'big')}"
    script = Script(
        call("execute_command", command=f"sleep {mark}", background=True),
        call("execute_command", command=f"setsid sleep {mark} & sleep {mark}"),
    )
    async with tools_of(door) as tools:
        loop = AgentLoop(script.model, tools)
        running = asyncio.ensure_future(loop.run("", "x"))
        await until(lambda: len(alive(mark)) >= 3, "they run")
        loop.pause()
        assert (await running).outcome is Outcome.PAUSED
    assert alive(mark) == []


async def test_a_time_limit_ends_the_command_too(door: McpDoor) -> None:
    mark = f"600.{int.from_bytes(os.urandom(6), 'big')}"
    script = Script(call("execute_command", command=f"sleep {mark}"))
    ended = await run(door, script, seconds=1.0)
    assert ended.outcome is Outcome.TIME_LIMIT
    assert alive(mark) == []


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"command": 7},
        {"command": ["ls"]},
        {"command": "ls", "nonsense": 1},
        {"command": "ls\x00"},
        {"command": "ls", "session": "../../x"},
        {"command": "ls", "container_id": "somebody-else"},
        {"command": "x" * 1_000_000},
        {"command": None},
    ],
    ids=str,
)
async def test_hostile_arguments_are_answers(door: McpDoor, arguments: dict[str, Any]) -> None:
    async with tools_of(door) as tools:
        request = ToolRequest(id="1", tool="execute_command", arguments=arguments)
        reply = await tools.call(request)
        assert reply.is_error
        assert reply.text


async def test_a_tool_that_was_taken_away_is_not_there(door: McpDoor) -> None:
    async with tools_of(door) as tools:
        tools.leave_out(["execute_command", "no-such-tool"])
        assert "execute_command" not in [tool.name for tool in tools.tools]
        reply = await tools.call(ToolRequest(id="1", tool="execute_command"))
    assert reply.is_error
    assert "there is no tool 'execute_command'" in reply.text


# --- Theirs ----------------------------------------------------------------------------------


async def test_tools_of_others_have_their_servers_name_in_front(door: McpDoor) -> None:
    async with tools_of(door, foreign("good")) as tools:
        names = [tool.name for tool in tools.tools]
        assert len(set(names)) == len(names)
        assert all(TOOL_NAME.fullmatch(name) for name in names)
        assert names[0] == "execute_command"
        theirs = [name for name in names if name.startswith("theirs__")]
        assert theirs[:2] == ["theirs__hello", "theirs__execute_command"]
        assert len(theirs) == 5
        assert all(len(tool.doc) <= 4096 for tool in tools.tools)
        reply = await tools.call(ToolRequest(id="1", tool="theirs__hello"))
        assert (reply.text, reply.is_error) == ("hello", False)
        ours = await tools.call(
            ToolRequest(id="2", tool="execute_command", arguments={"command": "pwd"})
        )
        assert ours.text.startswith(str(door.workspace))
    assert len([each for each in tools.problems if "unsupported input schema" in each]) == 3
    assert len([each for each in tools.problems if "without a name" in each]) == 2


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("dies", "the MCP server `theirs`"),
        ("garbage", "does not speak MCP"),
        ("no-result", "returned an invalid result"),
        ("deep", "returned an invalid result"),
        ("hangs", "did not answer within"),
    ],
)
@pytest.mark.slow("waits for a server that does not answer")
async def test_a_server_that_misbehaves_is_an_error_that_the_model_is_told(
    kind: str, words: str
) -> None:
    script = Script(call("theirs__hello"), done())
    async with only(foreign(kind, timeout_s=5.0 if kind == "hangs" else 30.0)) as tools:
        ended = await AgentLoop(script.model, tools).run("", "x")
        again = await tools.call(ToolRequest(id="2", tool="theirs__hello"))
    assert ended.outcome is Outcome.DONE
    assert words in script.last_heard
    assert again.is_error


async def test_output_of_a_foreign_server_is_bounded() -> None:
    async with only(foreign("floods")) as tools:
        reply = await tools.call(ToolRequest(id="1", tool="theirs__hello"))
    assert len(reply.text) < 33_000
    assert "968000 characters omitted" in reply.text


async def test_a_foreign_server_cannot_speak_of_verdicts_and_jobs() -> None:
    async with only(foreign("lies")) as tools:
        reply = await tools.call(ToolRequest(id="1", tool="theirs__hello"))
    assert (reply.meta, reply.is_error) == ({}, True)


async def test_what_is_no_text_is_described() -> None:
    async with only(foreign("picture")) as tools:
        reply = await tools.call(ToolRequest(id="1", tool="theirs__hello"))
    assert reply.text == "[image, 4 characters of base64: not shown]"


async def test_a_list_without_an_end_is_cut() -> None:
    async with only(foreign("endless")) as tools:
        assert len(tools.tools) <= 128
    assert any("only the first 128 are used" in each for each in tools.problems)


@pytest.mark.parametrize("program", ["silent", "no-such-program"])
async def test_a_server_that_never_starts_is_a_problem_and_no_error(program: str) -> None:
    spec = foreign("silent", timeout_s=1.0)
    if program != "silent":
        spec = ServerSpec(name="theirs", command=[program], env={"PATH": "/usr/bin"}, timeout_s=5.0)
    async with only(spec) as tools:
        assert list(tools.tools) == []
        (problem,) = tools.problems
    assert "`theirs`" in problem


async def test_a_server_at_an_address(door: McpDoor) -> None:
    with door.listening() as url:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with only(ServerSpec(name="far", url=url, headers=headers, timeout_s=30.0)) as tools:
            arguments = {"command": "echo hi"}
            request = ToolRequest(id="1", tool="far__execute_command", arguments=arguments)
            reply = await tools.call(request)
            assert reply.text.startswith("hi\n")
        async with only(ServerSpec(name="far", url=url, timeout_s=10.0)) as tools:
            assert list(tools.tools) == []
            assert tools.problems
    async with only(ServerSpec(name="far", url=url, timeout_s=10.0)) as tools:
        assert tools.problems


async def test_a_server_at_an_address_needs_the_sdk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    async with only(ServerSpec(name="far", url="http://127.0.0.1:1/mcp")) as tools:
        (problem,) = tools.problems
    assert problem.endswith("a server at a URL needs: pip install 'kakoi[mcp]'")


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_server_at_an_address_cannot_fill_our_memory(kind: str) -> None:
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with suppress(OSError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\n\r\ndata: ".encode())
            while sent < 1 << 30:
                sent += 1 << 16
                writer.write(b"x" * (1 << 16))
                await writer.drain()
        writer.close()

    serving = await asyncio.start_server(flood, "127.0.0.1", 0)
    async with serving:
        url = f"http://127.0.0.1:{serving.sockets[0].getsockname()[1]}/mcp"
        async with only(ServerSpec(name="far", url=url, timeout_s=60.0)) as tools:
            (problem,) = tools.problems
    assert "`far`" in problem
    assert sent < 256 << 20


# --- Settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "servers",
    [
        [{"name": "x"}],
        [{"name": "x", "command": ["a"], "url": "http://b"}],
        [{"name": "a b", "url": "http://b"}],
        [{"name": "a__b", "url": "http://b"}],
        [{"command": ["a"]}],
        [{"name": "x", "comand": ["a"]}],
        [{"name": "x", "command": "a"}],
        [{"name": "x", "url": "http://a"}, {"name": "x", "url": "http://b"}],
        [{"name": "x", "command": ["a"], "env": ["NOT_SET_ANYWHERE"]}],
        [{"name": "x", "url": "http://a", "token_env": "NOT_SET_ANYWHERE"}],
        [{"name": "x", "url": "http://a", "timeout": -1}],
    ],
    ids=str,
)
def test_a_wrong_server_is_an_error_that_says_where(servers: list[dict[str, Any]]) -> None:
    with pytest.raises(ConfigurationError):
        servers_from(AgentSection(mcp_servers=tuple(servers)))


def test_a_started_server_gets_no_keys_but_those_that_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    monkeypatch.setenv("WANTED", "value")
    plain, named = servers_from(
        AgentSection(
            mcp_servers=(
                {"name": "a", "command": ["x"]},
                {"name": "b", "command": ["x"], "env": ["WANTED"]},
            )
        )
    )
    assert "OPENAI_API_KEY" not in plain.env
    assert "WANTED" not in plain.env
    assert named.env["WANTED"] == "value"
    assert "value" not in repr(named)


def test_a_long_text_keeps_its_two_ends() -> None:
    assert shorten_output("short", 100, {}) == "short"
    cut = shorten_output("a" * 500 + "b" * 500, 100, {"job_id": "job-1"})
    assert cut.startswith("a" * 50)
    assert cut.endswith("b" * 50)
    assert 'read_output(job_id="job-1"' in cut
