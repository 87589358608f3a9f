"""Questions of the policy reach the person behind an MCP client, by either protocol."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from kakoi.backends.host.adapter import HostAdapter
from kakoi.mcp.server import ServerState, make_server
from kakoi.policy.profiles import load_policy
from kakoi.tools.toolset import Toolset
from tests.mcp.connections import McpDoor, any_mode, meta_of, over_http, run, text_of
from tests.tools.places import CountingGate, tools_over, until

pytestmark = pytest.mark.anyio
ASKS = "git init inner"


class Person:
    """Answers as told, and remembers what was asked."""

    def __init__(self, *answers: ElicitResult) -> None:
        self._answers = list(answers)
        self.asked: list[str] = []

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        self.asked.append(params.message)
        return self._answers.pop(0)


YES = ElicitResult(action="accept", content={})
ALWAYS = ElicitResult(action="accept", content={"remember": True})
NO = ElicitResult(action="decline")
GONE = ElicitResult(action="cancel")


def events(door: McpDoor) -> list[str]:
    return [json.loads(line)["event"] for line in door.log.read_text().splitlines()]


@pytest.fixture
async def connect(mcp_door: McpDoor) -> AsyncIterator[Any]:
    """Makes clients of one server in this process."""
    async with mcp_door.server_state() as state:
        server = make_server(state)
        yield lambda mode, person: Client(server, mode=mode, elicitation_callback=person)


@any_mode
async def test_a_yes_runs_it_once_and_is_recorded(
    connect: Any, mcp_door: McpDoor, mode: str
) -> None:
    person = Person(YES, NO)
    async with connect(mode, person) as client:
        assert not (await run(client, ASKS, description="a new one")).is_error
        assert (mcp_door.workspace / "inner").is_dir()
        assert (await run(client, ASKS)).is_error
    assert events(mcp_door) == [
        *("asked", "approved", "started", "ended"),
        *("asked", "declined"),
    ]
    question = person.asked[0]
    assert question.startswith("ask[asks-first]: ")
    assert f"in {mcp_door.workspace}:\n  | {ASKS}\n" in question
    assert "the agent says: a new one" in question


@any_mode
@pytest.mark.parametrize("answer", [NO, GONE], ids=["declines", "leaves"])
async def test_a_no_is_told_with_the_question(
    connect: Any, mcp_door: McpDoor, mode: str, answer: ElicitResult
) -> None:
    async with connect(mode, Person(answer)) as client:
        result = await run(client, ASKS)
    assert result.is_error
    assert text_of(result).startswith("ask[asks-first]: ")
    assert "it was declined" in text_of(result)
    assert meta_of(result)["code"] == "USER_CANCELLED"
    assert list(mcp_door.workspace.iterdir()) == []


@any_mode
async def test_a_yes_is_remembered_in_its_session_if_the_person_says_so(
    connect: Any, mode: str
) -> None:
    person = Person(ALWAYS, NO, NO, NO)
    async with connect(mode, person) as client:
        for _ in range(3):
            assert not (await run(client, ASKS)).is_error
        assert len(person.asked) == 1
        assert (await run(client, ASKS + "2")).is_error
        assert (await run(client, ASKS, session="other")).is_error
        assert (await run(client, ASKS, workdir="inner")).is_error
    assert len(person.asked) == 4


@any_mode
async def test_a_call_is_judged_once(tmp_path: Path, mode: str) -> None:
    """The call that is answered with a question, and the call that brings the answer."""
    gate = CountingGate(load_policy(), HostAdapter(tmp_path), cwd=str(tmp_path))
    async with tools_over(gate, tmp_path) as tools:
        state = ServerState(tools=tools, name="kakoi", audit_file=tmp_path / "audit.jsonl")
        person = Person(YES, NO)
        async with Client(make_server(state), mode=mode, elicitation_callback=person) as client:
            assert not (await run(client, ASKS)).is_error
            assert gate.judged == (1 if mode == "legacy" else 2)
            assert (await run(client, ASKS)).is_error
            assert gate.judged == (2 if mode == "legacy" else 4)
    assert len(person.asked) == 2


@any_mode
async def test_who_can_ask_nobody_is_told_no(connect: Any, mcp_door: McpDoor, mode: str) -> None:
    async with connect(mode, None) as client:
        result = await run(client, ASKS)
    assert result.is_error
    assert "there was nobody to ask" in text_of(result)
    assert "= help: " in text_of(result)
    assert events(mcp_door) == ["asked", "declined"]


@any_mode
async def test_nobody_is_asked_about_what_is_refused_or_allowed(connect: Any, mode: str) -> None:
    person = Person()
    async with connect(mode, person) as client:
        assert not (await run(client, "echo hi")).is_error
        assert (await run(client, f"{ASKS} && sudo id")).is_error
    assert person.asked == []


@any_mode
async def test_writing_where_git_runs_programs_is_asked_about_too(
    connect: Any, mcp_door: McpDoor, mode: str
) -> None:
    (mcp_door.workspace / ".git" / "hooks").mkdir(parents=True)
    hook = {"path": ".git/hooks/pre-commit", "content": "#!/bin/sh\n"}
    person = Person(NO, YES)
    async with connect(mode, person) as client:
        assert (await client.call_tool("write_file", hook)).is_error
        assert not (await client.call_tool("write_file", hook)).is_error
    assert len(person.asked) == 2
    assert (mcp_door.workspace / ".git" / "hooks" / "pre-commit").exists()


async def test_an_answer_to_another_question_is_none(connect: Any, mcp_door: McpDoor) -> None:
    async with connect("2026-07-28", Person(YES)) as client:
        asked = await client.session.call_tool(
            "execute_command", {"command": ASKS}, allow_input_required=True
        )
        (key,) = asked.input_requests
        again = await client.session.call_tool(
            "execute_command",
            {"command": "git init other"},
            input_responses={key: YES},
            allow_input_required=True,
        )
        assert again.result_type == "input_required"
        assert key not in again.input_requests
    assert list(mcp_door.workspace.iterdir()) == []


@any_mode
async def test_questions_go_over_pipes_and_over_http(mcp_door: McpDoor, mode: str) -> None:
    person = Person(YES, YES)
    with anyio.fail_after(120):
        async with mcp_door.stdio(mode, person) as client:
            assert not (await run(client, ASKS)).is_error
        with mcp_door.listening() as url:
            async with over_http(url, mode, person) as client:
                assert not (await run(client, ASKS)).is_error
    assert len(person.asked) == 2


async def test_a_question_that_waits_holds_up_nobody(mcp_door: McpDoor) -> None:
    door = McpDoor(mcp_door.folder, settings={"execution.concurrency": 1})
    asked, answer = anyio.Event(), anyio.Event()

    async def thinks(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.set()
        await answer.wait()
        return YES

    async with (
        door.server_state() as state,
        Client(make_server(state), mode="legacy", elicitation_callback=thinks) as client,
        anyio.create_task_group() as group,
    ):
        group.start_soon(run, client, ASKS)
        await asked.wait()
        assert not (await run(client, "echo meanwhile", yield_ms=20_000)).is_error
        answer.set()


async def test_who_gives_up_while_a_question_waits_has_started_nothing(mcp_door: McpDoor) -> None:
    asked = anyio.Event()

    async def never(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with (
        mcp_door.server_state() as state,
        Client(make_server(state), mode="legacy", elicitation_callback=never) as client,
    ):
        async with anyio.create_task_group() as group:
            group.start_soon(run, client, ASKS)
            await asked.wait()
            group.cancel_scope.cancel()
        await until(lambda: events(mcp_door) == ["asked", "declined"], "it was recorded")
        assert isinstance(state.tools, Toolset)
        assert state.tools.gate.sandbox is None
