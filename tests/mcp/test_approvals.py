"""Approvals over MCP: an answer counts once, for the very call that it was asked about, from the
client that was asked."""

import json
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult, InputRequiredResult, InputResponses

from kakoi.mcp.approval import PendingQuestions, question_subject
from kakoi.mcp.server import make_server
from kakoi.policy.decide import Decision
from kakoi.policy.rules import Verdict
from kakoi.tools.approval import Question
from kakoi.tools.sessions import Caller
from tests.cli.terminals import PATIENCE_S
from tests.mcp.connections import TOKEN, McpDoor, any_mode, over_http, run, told_session

pytestmark = pytest.mark.anyio
NEW = "2026-07-28"
OTHER = "another token, for another client"
YES = ElicitResult(action="accept", content={})
ALWAYS = ElicitResult(action="accept", content={"remember": True})
ASKS = {"command": "git init inner"}


async def accepting(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return YES


async def call(
    client: Client,
    arguments: dict[str, Any],
    tool: str = "execute_command",
    *,
    answers: InputResponses | None = None,
) -> str | None:
    """Call it with these answers; gives the name of the question, if it is asked about."""
    result = await client.session.call_tool(
        tool, arguments, input_responses=answers, allow_input_required=True
    )
    if not isinstance(result, InputRequiredResult):
        return None
    assert result.input_requests is not None
    (key,) = result.input_requests
    return key


async def question(client: Client, arguments: dict[str, Any], tool: str = "execute_command") -> str:
    key = await call(client, arguments, tool)
    assert key is not None
    return key


@pytest.fixture
async def client(mcp_door: McpDoor) -> AsyncIterator[Client]:
    async with (
        mcp_door.server_state() as state,
        Client(make_server(state), mode=NEW, elicitation_callback=accepting) as client,
    ):
        yield client


def count(door: McpDoor) -> Counter[str]:
    return Counter(json.loads(line)["event"] for line in door.log.read_text().splitlines())


async def test_an_approval_counts_once(client: Client, mcp_door: McpDoor) -> None:
    key = await question(client, ASKS)
    assert await call(client, ASKS, answers={key: YES}) is None
    replays: list[InputResponses] = [{key: YES}, {key: ALWAYS}, {key: YES, "approve-": YES}]
    for answers in replays:
        assert await call(client, ASKS, answers=answers) not in (None, key)
    assert count(mcp_door)["started"] == 1


async def test_one_approval_in_many_calls_at_once_runs_one(
    client: Client, mcp_door: McpDoor
) -> None:
    command = {"command": "git init inner; echo once >> ran"}
    key = await question(client, command)
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(partial(call, client, command, answers={key: YES}))
    assert (mcp_door.workspace / "ran").read_text() == "once\n"
    assert count(mcp_door)["approved"] == 1


async def test_a_question_that_was_never_asked_has_no_answer(
    client: Client, mcp_door: McpDoor
) -> None:
    key = await question(client, ASKS)
    for forged in ("", "approve", "approve-" + "0" * 32, key[:-1], key.upper(), f" {key}", key * 2):
        assert await call(client, ASKS, answers={forged: YES}) not in (None, key, forged)
    assert list(mcp_door.workspace.iterdir()) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"command": "git init other"},
        {"command": "git init inner "},
        {"workdir": "sub"},
        {"stdin": "what nobody has seen"},
        {"stdin_open": True},
        {"env": {"GIT_DIR": "elsewhere"}},
        {"session": "other"},
        {"description": "harmless"},
        {"timeout_ms": 1},
    ],
    ids=str,
)
async def test_an_approval_of_one_call_is_none_of_another(
    client: Client, mcp_door: McpDoor, changed: dict[str, Any]
) -> None:
    key = await question(client, ASKS)
    try:
        assert await call(client, {**ASKS, **changed}, answers={key: YES}) != key
    finally:
        assert not mcp_door.log.exists() or "started" not in count(mcp_door)
    assert await call(client, ASKS, answers={key: YES}) is None  # It still counts for its own.


async def test_an_approval_to_write_one_text_is_none_to_write_another(
    client: Client, mcp_door: McpDoor
) -> None:
    hook = mcp_door.workspace / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(parents=True)
    good, bad = ({"path": str(hook), "content": text} for text in ("harmless", "evil"))
    key = await question(client, good, "write_file")
    assert await call(client, bad, "write_file", answers={key: YES}) is not None
    edit = {"path": str(hook), "old_text": "harmless", "new_text": "evil"}
    assert await call(client, edit, "edit_file", answers={key: YES}) is not None
    assert not hook.exists()
    assert await call(client, good, "write_file", answers={key: ALWAYS}) is None
    # "Do not ask again" was about that text.
    assert await call(client, good, "write_file") is None
    assert await call(client, bad, "write_file") is not None
    assert await call(client, edit, "edit_file") is not None
    assert hook.read_text() == "harmless"


@any_mode
async def test_what_a_person_agreed_to_once_and_for_all_has_the_same_input(
    mcp_door: McpDoor, mode: str
) -> None:
    asked = []

    async def ask(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        return ALWAYS

    async with (
        mcp_door.server_state() as state,
        Client(make_server(state), mode=mode, elicitation_callback=ask) as client,
    ):
        for stdin in ("a", "a", "b", "b", ""):
            assert not (await run(client, "git init inner", stdin=stdin)).is_error
    assert len(asked) == 3


async def test_an_approval_does_not_outlive_the_server_or_its_policy(mcp_door: McpDoor) -> None:
    async def one(settings: dict[str, Any], key: str = "") -> str | None:
        door = McpDoor(mcp_door.folder, settings=settings)
        answers: InputResponses | None = {key: YES} if key else None
        async with (
            door.server_state() as state,
            Client(make_server(state), mode=NEW, elicitation_callback=accepting) as client,
        ):
            return await call(client, ASKS, answers=answers)

    key = await one({})
    assert key is not None
    assert await one({}, key) not in (None, key)
    assert await one({"policy.blocked": ["git"]}, key) is None
    assert count(mcp_door) == Counter(refused=1)


async def test_an_approval_is_of_the_token_and_the_session_that_were_asked(
    mcp_door: McpDoor,
) -> None:
    with mcp_door.listening(tokens=(TOKEN, OTHER)) as url, anyio.fail_after(PATIENCE_S):
        async with (
            over_http(url, NEW, accepting) as one,
            over_http(url, NEW, accepting, token=OTHER) as other,
        ):
            sessions = [told_session(await run(one, "echo hi")) for _ in range(2)]
            key = await question(one, ASKS)
            assert await call(other, ASKS, answers={key: YES}) is not None
            for session in sessions:
                assert await call(one, {**ASKS, **session}, answers={key: YES}) is not None
            key = await question(one, {**ASKS, **sessions[0]})
            for arguments in (ASKS, {**ASKS, **sessions[1]}):
                assert await call(one, arguments, answers={key: YES}) is not None
            assert list(mcp_door.workspace.iterdir()) == []
            assert await call(one, {**ASKS, **sessions[0]}, answers={key: YES}) is None
    assert (mcp_door.workspace / "inner").is_dir()


def test_a_question_waits_for_so_long_and_there_is_an_end_to_them() -> None:
    now = 0.0
    questions = PendingQuestions(lambda: now, timeout_s=10)
    asked = Question(text="may it?", decision=Decision("x", Verdict.ASK))
    subject = question_subject(Caller(), "tool", {}, asked)
    key = questions.ask(subject)
    now = 9.0
    assert questions.answered([key], subject) == key
    now = 11.0
    assert questions.take([key], subject) is None
    for _ in range(10_000):
        questions.ask(subject)
    assert len(questions._pending) <= 4096


# --- By a request while the call goes on --------------------------------------------------------


class Slow:
    """Is asked, and answers each question when it is told what."""

    def __init__(self) -> None:
        self.asked: dict[str, anyio.Event] = {}
        self.answers: dict[str, ElicitResult] = {}
        self.was_asked = anyio.Event()

    async def __call__(
        self, context: ClientRequestContext, params: ElicitRequestParams
    ) -> ElicitResult:
        *_, command = [line[4:] for line in params.message.splitlines() if line[:4] == "  | "]
        answer = self.asked.setdefault(command, anyio.Event())
        if len(self.asked) == 2:
            self.was_asked.set()
        await answer.wait()
        return self.answers[command]


@any_mode
async def test_answers_to_two_questions_at_once_are_not_mistaken(
    mcp_door: McpDoor, mode: str
) -> None:
    person = Slow()
    async with (
        mcp_door.server_state() as state,
        Client(make_server(state), mode=mode, elicitation_callback=person) as client,
    ):
        with anyio.fail_after(PATIENCE_S):
            async with anyio.create_task_group() as group:
                group.start_soon(run, client, "git init good")
                group.start_soon(run, client, "git init bad")
                await person.was_asked.wait()
                person.answers = {"git init bad": ElicitResult(action="decline")}
                person.answers["git init good"] = YES
                for command in ("git init bad", "git init good"):
                    person.asked[command].set()
    assert [each.name for each in mcp_door.workspace.iterdir()] == ["good"]


@pytest.mark.parametrize("token", [TOKEN, OTHER], ids=["same token", "another token"])
async def test_nobody_answers_the_question_of_another_connection(
    mcp_door: McpDoor, token: str
) -> None:
    """The ids of requests can be guessed: they are counted."""
    asked, answer = anyio.Event(), anyio.Event()

    async def waits(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.set()
        await answer.wait()
        return ElicitResult(action="decline")

    headers = {"Authorization": f"Bearer {token}", "Accept": "application/json, text/event-stream"}
    with mcp_door.listening(tokens=(TOKEN, OTHER)) as url, anyio.fail_after(PATIENCE_S):
        async with over_http(url, "legacy", waits) as one, httpx2.AsyncClient() as http:

            async def asking() -> None:
                assert (await run(one, "git init inner")).is_error

            async with anyio.create_task_group() as group:
                group.start_soon(asking)
                await asked.wait()
                for session in (await _opened(http, url, headers), {}):
                    await _answer_all(http, url, {**headers, **session})
                answer.set()
    assert list(mcp_door.workspace.iterdir()) == []


async def _opened(http: httpx2.AsyncClient, url: str, headers: dict[str, str]) -> dict[str, str]:
    """The headers of a connection of one's own."""
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {"elicitation": {}},
        "clientInfo": {"name": "t", "version": "1"},
    }
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    answer = await http.post(url, json=body, headers=headers)
    assert answer.status_code == 200
    return {
        "Mcp-Session-Id": answer.headers["mcp-session-id"],
        "Mcp-Protocol-Version": "2025-06-18",
    }


async def _answer_all(http: httpx2.AsyncClient, url: str, headers: dict[str, str]) -> None:
    for number in range(20):
        for id in (number, str(number)):
            yes = {"jsonrpc": "2.0", "id": id, "result": {"action": "accept", "content": {}}}
            await http.post(url, json=yes, headers=headers)
