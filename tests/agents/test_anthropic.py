"""Anthropic's format over loopback: calls and results, usage, errors, and a whole loop."""

import json
from typing import Any

import pytest

from kakoi.agents.conversation import (
    ModelAnswer,
    ToolDescription,
    ToolReplies,
    ToolReply,
    ToolRequest,
    Turn,
    UserMessage,
)
from kakoi.agents.events import ModelFailed, ModelReplied, Outcome
from kakoi.agents.loop import AgentLoop, LoopLimits
from kakoi.agents.models import ModelOptions, Prices, open_model
from kakoi.errors import ModelError
from tests.agents.anthropic_server import AnthropicServer, blocks_of
from tests.agents.models_for_tests import Ear, ToolsInMemory
from tests.agents.openai_server import OpenAIServer, Problem, call

pytestmark = pytest.mark.anyio
KEY = "sk-ant-a-key-that-nobody-may-see-1234567890"
LOOK = ToolDescription(
    name="look",
    doc="Look at it.",
    schema={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)


def options(server: OpenAIServer, **more: Any) -> ModelOptions:
    return ModelOptions(model="anthropic:some-model", base_url=server.url, key=KEY, **more)


async def asked(server: OpenAIServer, turns: list[Turn], **more: Any) -> ModelAnswer:
    async with open_model(options(server, **more)) as model:
        return await model.ask("Be careful.", turns, [LOOK])


async def test_a_question_and_its_answer_on_the_wire() -> None:
    with AnthropicServer(call("look", at="x")).listening() as server:
        answer = await asked(server, [UserMessage(text="Do it.")], max_output_tokens=64_000)
    (request,) = answer.requests
    assert (request.id, request.tool, request.arguments) == ("toolu_1_0", "look", {"at": "x"})
    assert answer.text == "I will use a tool."
    # What was read out of Anthropic's cache was read, too.
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (140, 20)
    (sent,) = server.requests
    assert (sent["model"], sent["max_tokens"]) == ("some-model", 64_000)
    assert "Be careful." in json.dumps(sent["system"])
    assert [each["role"] for each in sent["messages"]] == ["user"]
    assert [(each["name"], each["input_schema"]["required"]) for each in sent["tools"]] == [
        ("look", ["at"])
    ]
    sent_headers = server.headers[0]
    assert KEY in sent_headers.get("x-api-key", sent_headers.get("authorization", ""))


async def test_calls_and_results_go_back_as_blocks_in_their_order() -> None:
    said = ([call("look", at="a"), call("look", at="b")], "fine")
    with AnthropicServer(*said).listening() as server:
        async with open_model(options(server)) as model:
            turns: list[Turn] = [UserMessage(text="Do it.")]
            answer = await model.ask("", turns, [LOOK])
            replies = tuple(
                ToolReply(request=each, text=f"seen {number}")
                for number, each in enumerate(answer.requests)
            )
            turns += [answer, ToolReplies(replies=replies), UserMessage(text="Go on.")]
            assert (await model.ask("", turns, [LOOK])).text == "fine"
    _task, used, results = map(blocks_of, server.requests[-1]["messages"])
    assert [(each["type"], each.get("input")) for each in used] == [
        ("text", None), ("tool_use", {"at": "a"}), ("tool_use", {"at": "b"})]  # fmt: skip
    assert [each["type"] for each in results] == ["tool_result", "tool_result", "text"]
    assert [each["tool_use_id"] for each in results[:2]] == [each["id"] for each in used[1:]]
    assert "seen 0" in json.dumps(results[0]["content"])
    assert results[2]["text"] == "Go on."


async def test_a_conversation_that_was_read_from_a_file_can_go_on() -> None:
    request = ToolRequest(id="call_1", tool="look", arguments={"at": "x"})
    turns: list[Turn] = [
        UserMessage(text="Do it."),
        ModelAnswer(text="I look.", requests=(request,)),
        ToolReplies(replies=(ToolReply(request=request, text="seen"),)),
        ModelAnswer(),
        UserMessage(text="Go on."),
    ]
    with AnthropicServer("fine").listening() as server:
        assert (await asked(server, turns)).text == "fine"


async def test_an_answer_without_content_is_nonsense_and_not_the_end() -> None:
    with AnthropicServer("", call("done", summary="yes")).listening() as server:
        async with open_model(options(server)) as model:
            ended = await AgentLoop(model, ToolsInMemory()).run("", "x")
    assert (ended.outcome, ended.steps) == (Outcome.DONE, 2)


@pytest.mark.parametrize(
    ("problem", "is_passing", "wait_s"),
    [
        (Problem(429, headers={"Retry-After": "7"}), True, 7.0),
        (Problem(529, message="Overloaded"), True, None),
        (Problem(500), True, None),
        (Problem(401), False, None),
        (Problem(404), False, None),
        (Problem(400), False, None),
        (Problem(200, body=b"<html>not json"), False, None),
        (Problem(200, body=b'{"type": "message"}'), False, None),
        (Problem(200, body=b'{"content": 5}'), False, None),
        (Problem(200, body=b"[]"), False, None),
    ],
)
async def test_a_failure_says_whether_it_passes(
    problem: Problem, is_passing: bool, wait_s: float | None
) -> None:
    with AnthropicServer(problem).listening() as server, pytest.raises(ModelError) as caught:
        await asked(server, [UserMessage(text="x")])
    assert (caught.value.is_passing, caught.value.wait_s) == (is_passing, wait_s)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    "problem",
    [
        Problem(400, message="prompt is too long: 210000 tokens > 200000 maximum"),
        Problem(413, message="Request exceeds the maximum size"),
    ],
)
async def test_a_conversation_that_is_too_long_is_known_as_such(problem: Problem) -> None:
    with AnthropicServer(problem).listening() as server, pytest.raises(ModelError) as caught:
        await asked(server, [UserMessage(text="x")])
    assert caught.value.is_too_long


async def test_a_loop_waits_as_long_as_it_is_told_and_gets_to_the_end() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    said = (
        Problem(429, headers={"Retry-After": "9"}),
        Problem(529),
        call("look", at="x"),
        call("done", summary="looked"),
    )
    ear = Ear()
    with AnthropicServer(*said).listening() as server:
        prices = Prices(input=1000.0, output=10_000.0)
        async with open_model(options(server, prices=prices)) as model:
            loop = AgentLoop(model, ToolsInMemory(look="seen"), listener=ear, sleep=sleep)
            ended = await loop.run("Be careful.", "Do it.")
    assert (ended.outcome, ended.summary, ended.steps) == (Outcome.DONE, "looked", 2)
    assert waits == [9.0, 2.0]
    assert len(ear.heard(ModelFailed)) == 2
    assert [said.usage.cost for said in ear.heard(ModelReplied)] == pytest.approx([0.34, 0.34])
    assert "seen" in json.dumps(blocks_of(server.requests[-1]["messages"][-1]))


async def test_a_cost_limit_holds() -> None:
    with AnthropicServer(call("look", at="x")).listening() as server:
        async with open_model(options(server, prices=Prices(input=0, output=50_000))) as model:
            loop = AgentLoop(model, ToolsInMemory(look="seen"), limits=LoopLimits(cost=2.5))
            ended = await loop.run("", "x")
    assert (ended.outcome, len(server.requests)) == (Outcome.COST_LIMIT, 3)


async def test_a_key_is_never_told() -> None:
    leaking = Problem(401, message=f"invalid x-api-key {KEY}")
    with AnthropicServer(leaking).listening() as server, pytest.raises(ModelError) as caught:
        await asked(server, [UserMessage(text="x")])
    assert KEY not in str(caught.value) + caught.value.hint
    assert "agent.api_key_env" in caught.value.hint
