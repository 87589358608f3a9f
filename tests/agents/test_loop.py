"""The loop: from a prompt to an end, whatever the model and its tools do."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from kakoi.agents.conversation import ToolDescription, ToolReply, ToolRequest
from kakoi.agents.events import (
    AgentEvent,
    ContextShortened,
    LoopEnded,
    LoopStarted,
    ModelFailed,
    ModelReminded,
    ModelReplied,
    Outcome,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kakoi.agents.loop import AgentLoop, LoopLimits
from kakoi.errors import AuditError, ConfigurationError, ModelError
from tests.agents.models_for_tests import (
    Ear,
    FailingModel,
    HangingTools,
    Script,
    ToolsInMemory,
    call,
    done,
)

pytestmark = pytest.mark.anyio
PATIENCE_S = 30


async def run(
    script: Script,
    tools: ToolsInMemory | None = None,
    *,
    limits: LoopLimits | None = None,
    ear: Ear | None = None,
) -> LoopEnded:
    loop = AgentLoop(
        script.model,
        tools or ToolsInMemory(look="seen"),
        limits=limits or LoopLimits(),
        listener=ear or Ear(),
        sleep=no_sleep,
    )
    async with asyncio.timeout(PATIENCE_S):
        return await loop.run("You are careful.", "Do it.")


async def no_sleep(_seconds: float) -> None:
    await asyncio.sleep(0)


# --- The way to the end ----------------------------------------------------------------------


async def test_it_asks_does_and_ends_when_the_model_is_done() -> None:
    script, ear = Script(call("look", at="x"), done("looked")), Ear()
    tools = ToolsInMemory(look=lambda arguments: f"seen {arguments['at']}")
    ended = await run(script, tools, ear=ear)
    assert (ended.outcome, ended.summary, ended.steps) == (Outcome.DONE, "looked", 2)
    assert ended.is_success
    assert script.instructions == "You are careful."
    assert script.tools == ["look", "done"]
    assert script.last_heard == "seen x"
    assert [type(event) for event in ear.events] == [
        *(LoopStarted, StepStarted, ModelReplied, ToolCalled, ToolAnswered),
        *(StepStarted, ModelReplied, LoopEnded),
    ]


@pytest.mark.parametrize(
    "text",
    [
        '{"done": true, "comment": "it works"}',
        '{"done": true, "summary": "", "comment": "it works"}',
        'Here it is:\n```json\n{"done": true, "summary": "it works"}\n```\n',
        '```\r\n{"done": true,\r\n "summary": "it works"}\r\n  ```',
    ],
)
async def test_a_text_that_says_done_is_the_end_too(text: str) -> None:
    ended = await run(Script(text))
    assert (ended.outcome, ended.summary) == (Outcome.DONE, "it works")


@pytest.mark.parametrize("text", ["```\n" + "\n" * 20_000, "```json\n" * 20_000, "`" * 60_000])
async def test_a_text_of_fences_and_empty_lines_keeps_nobody_busy(text: str) -> None:
    script = Script(text, done("it works"))
    assert (await run(script)).steps == 2
    assert "nothing to do" in script.last_heard


async def test_a_model_may_give_up() -> None:
    ended = await run(Script(done("no such file", gave_up=True)))
    assert (ended.outcome, ended.summary) == (Outcome.GAVE_UP, "no such file")
    assert not ended.is_success


async def test_done_beside_other_calls_is_not_the_end_because_nobody_saw_what_came_of_them() -> (
    None
):
    script = Script([call("look"), done("too early")], done("seen"))
    tools = ToolsInMemory(look="broken")
    ended = await run(script, tools)
    assert (ended.summary, ended.steps) == ("seen", 2)
    assert "broken" in script.last_heard
    assert "not yet" in script.last_heard


async def test_usage_and_cost_add_up() -> None:
    ear = Ear()
    ended = await run(Script(call("look"), done(), tokens=500), ear=ear)
    assert (ended.usage.input_tokens, ended.usage.output_tokens) == (1000, 2)
    assert ended.usage.cost == pytest.approx(1.002)
    assert [said.total.input_tokens for said in ear.heard(ModelReplied)] == [500, 1000]


# --- Limits ----------------------------------------------------------------------------------


async def test_the_step_limit_ends_it() -> None:
    script = Script(call("look"))
    ended = await run(script, limits=LoopLimits(steps=3))
    assert (ended.outcome, ended.steps, len(script.asked)) == (Outcome.STEP_LIMIT, 3, 3)
    assert "3 steps" in ended.error


async def test_the_cost_limit_ends_it_before_the_next_question() -> None:
    script = Script(call("look"), tokens=999)
    ended = await run(script, limits=LoopLimits(cost=1.5))
    assert (ended.outcome, len(script.asked)) == (Outcome.COST_LIMIT, 2)


async def test_a_cost_limit_that_cannot_be_kept_is_refused_at_once() -> None:
    model = FailingModel(script=Script(done()))
    with pytest.raises(ConfigurationError, match="cannot be enforced: the price") as caught:
        AgentLoop(model, ToolsInMemory(), limits=LoopLimits(cost=1.0))
    assert "agent.input_price" in caught.value.hint


async def test_a_model_that_hides_its_usage_ends_a_loop_with_a_cost_limit() -> None:
    ended = await run(Script(call("look"), tokens=0), limits=LoopLimits(cost=1.0))
    assert ended.outcome is Outcome.COST_LIMIT
    assert "does not report its usage" in ended.error


async def test_the_time_limit_ends_a_tool_that_hangs() -> None:
    tools = HangingTools()
    ended = await run(Script(call("wait")), tools, limits=LoopLimits(seconds=0.1))
    assert ended.outcome is Outcome.TIME_LIMIT
    assert tools.given_up == ["wait"]


# --- Nonsense --------------------------------------------------------------------------------

NONSENSE = [
    "I will now look at the file.",
    "",
    '{"done": "yes"}',
    '{"done": true',
    ToolCallPart(tool_name="look", args="{not json"),
    ToolCallPart(tool_name="look", args="[1, 2]"),
    ToolCallPart(tool_name="look", args='{"x": NaN}'),
    ToolCallPart(tool_name="look", args="[" * 100_000),
    ToolCallPart(tool_name="no_such_tool", args="{}"),
    ToolCallPart(tool_name="rm -rf /; \x1b[2J", args="{}"),
    ToolCallPart(tool_name="", args="{}"),
    ModelResponse(parts=[]),
]


@pytest.mark.parametrize("said", NONSENSE, ids=range(len(NONSENSE)))
async def test_five_unreadable_answers_in_a_row_end_in_error(said: str) -> None:
    script, tools = Script(said), ToolsInMemory(look="seen")
    ended = await run(script, tools)
    assert (ended.outcome, len(script.asked)) == (Outcome.NONSENSE, 5)
    assert "5 answers in a row" in ended.error
    assert not [each for each in tools.called if each.tool == "look"]


async def test_four_are_forgiven_and_the_model_is_told_each_time() -> None:
    mumble = "hm"
    script = Script(*[mumble] * 4, call("look"), *[mumble] * 4, done())
    ear = Ear()
    ended = await run(script, ear=ear)
    assert (ended.outcome, ended.steps) == (Outcome.DONE, 10)
    assert len(ear.heard(ModelReminded)) == 8
    assert "Call one of the tools" in ear.heard(ModelReminded)[0].text


async def test_what_was_wrong_with_a_request_is_told() -> None:
    script = Script(ToolCallPart(tool_name="look", args="{not json"), done())
    await run(script)
    assert "not valid JSON" in script.last_heard


async def test_one_readable_request_among_broken_ones_is_done() -> None:
    broken = ToolCallPart(tool_name="look", args="{")
    script, tools = Script([broken, call("look")], done()), ToolsInMemory(look="seen")
    ended = await run(script, tools)
    assert ended.outcome is Outcome.DONE
    assert [request.arguments for request in tools.called] == [{}]


async def test_what_goes_back_to_the_model_is_fit_to_be_sent() -> None:
    """Servers refuse a conversation with broken names, arguments or the same id twice."""
    hostile = [
        ToolCallPart(tool_name="a b\n\x00", args="{", tool_call_id="same"),
        ToolCallPart(tool_name="look", args='{"x": "\\ud800"}', tool_call_id="same"),
        ToolCallPart(tool_name="look", args=None, tool_call_id=""),
        ToolCallPart(tool_name="kakoi/look", args="{}", tool_call_id="é" * 500),
    ]
    script = Script(hostile, done())
    await run(script)
    answer, returned = script.asked[-1][-2:]
    assert isinstance(answer, ModelResponse)
    sent = answer.tool_calls
    ids = [part.tool_call_id for part in sent]
    assert len(set(ids)) == 4
    assert all(identifier.isascii() and 0 < len(identifier) <= 64 for identifier in ids)
    assert [part.tool_name for part in sent][1:] == ["look"] * 3
    assert sent[0].tool_name.startswith("unknown_")
    assert all(isinstance(part.args, dict) for part in sent)
    assert [part.tool_call_id for part in returned.parts] == ids  # type: ignore[union-attr]


async def test_a_flood_of_requests_is_cut() -> None:
    script, tools = Script([call("look")] * 1000, done()), ToolsInMemory(look="seen")
    ended = await run(script, tools)
    assert ended.outcome is Outcome.DONE
    assert len(tools.called) == 32


# --- Failures of the model -------------------------------------------------------------------


async def test_a_passing_failure_is_tried_again_after_what_the_server_asks_for() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    passing = ModelError("busy", is_passing=True)
    model = FailingModel(
        passing, ModelError("busy", is_passing=True, wait_s=40.0), passing, script=Script(done())
    )
    ear = Ear()
    loop = AgentLoop(model, ToolsInMemory(), listener=ear, sleep=sleep)
    ended = await loop.run("", "x")
    assert ended.outcome is Outcome.DONE
    assert waits == [1.0, 40.0, 4.0]
    assert [event.wait_s for event in ear.heard(ModelFailed)] == waits


async def test_a_server_cannot_make_us_wait_for_ever() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    model = FailingModel(ModelError("busy", is_passing=True, wait_s=1e9), script=Script(done()))
    await AgentLoop(model, ToolsInMemory(), sleep=sleep).run("", "x")
    assert waits == [300.0]


@pytest.mark.parametrize(("is_passing", "asked"), [(True, 6), (False, 1)])
async def test_a_lasting_failure_ends_it_with_the_reason(is_passing: bool, asked: int) -> None:
    errors = [ModelError("no", hint="try this", is_passing=is_passing) for _ in range(10)]
    model = FailingModel(*errors, script=Script(done()))
    ended = await AgentLoop(model, ToolsInMemory(), sleep=no_sleep).run("", "x")
    assert (ended.outcome, ended.error) == (Outcome.MODEL_FAILED, "no (try this)")
    assert len(model.sizes) == asked


# --- Context ---------------------------------------------------------------------------------


async def test_old_output_is_shortened_and_its_job_is_named() -> None:
    def output(arguments: object) -> ToolReply:
        request = ToolRequest(id="", tool="look")
        return ToolReply(request=request, text="x" * 8000, meta={"job_id": "job-7"})

    class Jobs(ToolsInMemory):
        async def call(self, request: ToolRequest) -> ToolReply:
            reply = await super().call(request)
            return ToolReply(request=request, text=reply.text, meta=reply.meta)

    script, ear = Script(*[call("look")] * 12, done()), Ear()
    tools = Jobs(look=output)
    ended = await run(script, tools, limits=LoopLimits(window_tokens=10_000), ear=ear)
    assert ended.outcome is Outcome.DONE
    assert ear.heard(ContextShortened)
    oldest = script.asked[-1][2].parts[0].content  # type: ignore[union-attr]
    assert "characters omitted from an old answer" in str(oldest)
    assert 'read_output(job_id="job-7")' in str(oldest)
    assert len(script.last_heard) == 8000


async def test_the_oldest_steps_are_left_out_when_shortening_is_not_enough() -> None:
    talk = [
        ModelResponse(parts=[TextPart("y" * 4000), call("look", number=number)])
        for number in range(20)
    ]
    script, ear = Script(*talk, done()), Ear()
    ended = await run(script, limits=LoopLimits(window_tokens=8_000), ear=ear)
    assert ended.outcome is Outcome.DONE
    assert sum(event.dropped for event in ear.heard(ContextShortened)) > 5
    first = [str(part.content) for part in script.asked[-1][0].parts]  # type: ignore[union-attr]
    assert first[0] == "Do it."
    assert "earlier steps are omitted" in first[1]
    assert max(len(str(asked)) for asked in script.asked) < 60_000


async def test_every_request_that_is_sent_has_its_reply() -> None:
    talk = [
        ModelResponse(parts=[TextPart("y" * 3000), call("look"), call("look")]) for _ in range(30)
    ]
    script = Script(*talk, "hm", done())
    await run(script, limits=LoopLimits(window_tokens=8_000))
    for messages in script.asked:
        wanted: list[str] = []
        for message in messages:
            if isinstance(message, ModelResponse):
                assert wanted == []
                wanted = [part.tool_call_id for part in message.tool_calls]
            else:
                given = [getattr(part, "tool_call_id", None) for part in message.parts]
                assert [each for each in given if each] == wanted
                wanted = []


async def test_a_conversation_that_the_model_finds_too_long_is_halved() -> None:
    script = Script(*[call("look")] * 3, done())
    too_long = ModelError("too long", is_too_long=True)
    tools = ToolsInMemory(look="z" * 50_000)
    model = FailingModel(script=script)
    ear = Ear()
    loop = AgentLoop(model, tools, listener=ear, sleep=no_sleep)
    original = model.ask

    async def ask(instructions: str, turns: Sequence[Any], tools: Sequence[ToolDescription]) -> Any:
        if len(turns) == 7 and len(str(turns)) > 100_000:
            model.sizes.append(len(str(turns)))
            raise too_long
        return await original(instructions, turns, tools)

    model.ask = ask  # type: ignore[method-assign]
    ended = await loop.run("", "x")
    assert ended.outcome is Outcome.DONE
    assert ear.heard(ContextShortened)
    assert model.sizes[-1] < model.sizes[-2]


async def test_a_conversation_that_cannot_be_halved_ends_in_error() -> None:
    errors = [ModelError("too long", is_too_long=True) for _ in range(10)]
    model = FailingModel(*errors, script=Script(done()))
    ended = await AgentLoop(model, ToolsInMemory()).run("", "x" * 10_000)
    assert (ended.outcome, ended.error) == (Outcome.MODEL_FAILED, "too long")


# --- Reflection ------------------------------------------------------------------------------


@pytest.mark.requirement("A-058", "A-059")
async def test_after_two_failures_in_a_row_the_model_is_asked_to_think() -> None:
    def missing(_arguments: object) -> ToolReply:
        request = ToolRequest(id="", tool="look")
        return ToolReply(request=request, text="not found", meta={"exit_code": 127})

    class Failing(ToolsInMemory):
        async def call(self, request: ToolRequest) -> ToolReply:
            reply = await super().call(request)
            return ToolReply(request=request, text=reply.text, meta=reply.meta)

    script, ear = Script(call("look"), call("look"), done()), Ear()
    ended = await run(script, Failing(look=missing), ear=ear)
    assert ended.outcome is Outcome.DONE
    (told,) = ear.heard(ModelReminded)
    assert told.step == 2
    assert "Your last 2 steps have failed" in script.last_heard


@pytest.mark.requirement("A-059")
async def test_it_is_asked_to_look_back_every_few_steps() -> None:
    ear = Ear()
    await run(Script(*[call("look")] * 5, done()), limits=LoopLimits(reflect_every=2), ear=ear)
    assert [told.step for told in ear.heard(ModelReminded)] == [2, 4]


# --- Ending early ----------------------------------------------------------------------------


async def test_a_pause_gives_up_what_is_under_way() -> None:
    tools, ear = HangingTools(), Ear()
    loop = AgentLoop(Script(call("wait")).model, tools, listener=ear)
    running = asyncio.ensure_future(loop.run("", "x"))
    async with asyncio.timeout(PATIENCE_S):
        await tools.is_waiting.wait()
        loop.pause()
        ended = await running
    assert ended.outcome is Outcome.PAUSED
    assert tools.given_up == ["wait"]
    assert ear.events[-1] == ended


async def test_a_pause_before_it_began_holds() -> None:
    script = Script(done())
    loop = AgentLoop(script.model, ToolsInMemory())
    loop.pause()
    assert (await loop.run("", "x")).outcome is Outcome.PAUSED
    assert script.asked == []


async def test_a_cancellation_is_told_and_passed_on() -> None:
    tools, ear = HangingTools(), Ear()
    running = asyncio.ensure_future(
        AgentLoop(Script(call("wait")).model, tools, listener=ear).run("", "x")
    )
    async with asyncio.timeout(PATIENCE_S):
        await tools.is_waiting.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
    assert tools.given_up == ["wait"]
    assert ear.events[-1].outcome is Outcome.CANCELLED  # type: ignore[union-attr]


async def test_a_listener_that_cannot_write_ends_it() -> None:
    def full(event: AgentEvent) -> None:
        if isinstance(event, ToolCalled):
            raise AuditError("the disk is full")

    tools = ToolsInMemory(look="seen")
    loop = AgentLoop(Script(call("look")).model, tools, listener=full)
    with pytest.raises(AuditError):
        await loop.run("", "x")
    assert tools.called == []
