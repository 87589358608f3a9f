"""Models on a real wire: OpenAI's format over loopback, its failures, keys and prices."""

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
from kakoi.agents.events import ModelFailed, Outcome
from kakoi.agents.from_settings import model_key, model_options
from kakoi.agents.loop import AgentLoop, LoopLimits
from kakoi.agents.models import ModelOptions, Prices, open_model
from kakoi.errors import ConfigurationError, ModelError
from kakoi.settings.agent import AgentSection
from tests.agents.models_for_tests import Ear, ToolsInMemory
from tests.agents.openai_server import Call, OpenAIServer, Problem, call

pytestmark = pytest.mark.anyio
KEY = "sk-a-key-that-nobody-may-see-1234567890"
LOOK = ToolDescription(
    name="look",
    doc="Look at it.",
    schema={"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
)


def options(server: OpenAIServer, **more: object) -> ModelOptions:
    return ModelOptions(model="openai:some-model", base_url=server.url, key=KEY, **more)  # type: ignore[arg-type]


async def no_sleep(_seconds: float) -> None:
    pass


# --- The wire --------------------------------------------------------------------------------


async def test_a_question_and_its_answer_on_the_wire() -> None:
    with OpenAIServer(call("look", at="x")).listening() as server:
        async with open_model(options(server)) as model:
            answer = await model.ask("Be careful.", [UserMessage(text="Do it.")], [LOOK])
    (request,) = answer.requests
    assert (request.tool, request.arguments, request.fault) == ("look", {"at": "x"}, "")
    assert answer.usage.output_tokens == 20
    (sent,) = server.requests
    assert sent["model"] == "some-model"
    assert [(each["role"], each["content"]) for each in sent["messages"]] == [
        ("system", "Be careful."),
        ("user", "Do it."),
    ]
    (tool,) = sent["tools"]
    assert tool["function"]["name"] == "look"
    assert tool["function"]["parameters"]["required"] == ["at"]
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


async def test_calls_and_replies_go_back_in_their_order() -> None:
    with OpenAIServer(
        [call("look", at="a"), Call("look", "{broken")], "done"
    ).listening() as server:
        async with open_model(options(server)) as model:
            turns: list[Turn] = [UserMessage(text="Do it.")]
            answer = await model.ask("", turns, [LOOK])
            replies = tuple(
                ToolReply(request=request, text=f"{number}", is_error=bool(request.fault))
                for number, request in enumerate(answer.requests)
            )
            turns += [answer, ToolReplies(replies=replies), UserMessage(text="Go on.")]
            assert (await model.ask("", turns, [LOOK])).text == "done"
    messages = server.requests[-1]["messages"]
    asked = next(each for each in messages if each["role"] == "assistant")
    assert [each["function"]["arguments"] for each in asked["tool_calls"]] == ['{"at":"a"}', "{}"]
    told = [each for each in messages if each["role"] == "tool"]
    assert [each["tool_call_id"] for each in told] == [each["id"] for each in asked["tool_calls"]]
    assert [each["content"] for each in told] == ["0", "1"]
    assert messages[-1] == {"role": "user", "content": "Go on."}


async def test_a_conversation_that_was_read_from_a_file_can_go_on() -> None:
    request = ToolRequest(id="call_1", tool="look", arguments={"at": "x"})
    turns: list[Turn] = [
        UserMessage(text="Do it."),
        ModelAnswer(text="I look.", requests=(request,)),
        ToolReplies(replies=(ToolReply(request=request, text="seen"),)),
        ModelAnswer(),
        UserMessage(text="Go on."),
    ]
    with OpenAIServer("fine").listening() as server:
        async with open_model(options(server)) as model:
            assert (await model.ask("", turns, [LOOK])).text == "fine"
    roles = [each["role"] for each in server.requests[0]["messages"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user"]


# --- Failures --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("problem", "is_passing", "wait_s"),
    [
        (Problem(429, headers={"Retry-After": "7"}), True, 7.0),
        (Problem(500), True, None),
        (Problem(503), True, None),
        (Problem(401), False, None),
        (Problem(404), False, None),
        (Problem(400), False, None),
        (Problem(200, body=b"<html>not json"), False, None),
        (Problem(200, body=b'{"choices": []}'), False, None),
        (Problem(200, body=b"[]"), False, None),
    ],
)
async def test_a_failure_says_whether_it_passes(
    problem: Problem, is_passing: bool, wait_s: float | None
) -> None:
    with OpenAIServer(problem).listening() as server:
        async with open_model(options(server)) as model:
            with pytest.raises(ModelError) as caught:
                await model.ask("", [UserMessage(text="x")], [])
    assert (caught.value.is_passing, caught.value.wait_s) == (is_passing, wait_s)
    assert len(server.requests) == 1


async def test_a_server_that_is_not_there_may_come_back() -> None:
    with OpenAIServer("x").listening() as server:
        pass
    async with open_model(options(server)) as model:
        with pytest.raises(ModelError) as caught:
            await model.ask("", [UserMessage(text="x")], [])
    assert caught.value.is_passing


async def test_a_loop_waits_out_429_and_500() -> None:
    said = (Problem(429), Problem(500), call("done", summary="at last"))
    with OpenAIServer(*said).listening() as server:
        async with open_model(options(server)) as model:
            ear = Ear()
            loop = AgentLoop(model, ToolsInMemory(), listener=ear, sleep=no_sleep)
            ended = await loop.run("", "x")
    assert (ended.outcome, ended.summary) == (Outcome.DONE, "at last")
    assert len(ear.heard(ModelFailed)) == 2


async def test_a_key_is_never_told() -> None:
    leaking = Problem(401, message=f"wrong key {KEY}")
    with OpenAIServer(leaking).listening() as server:
        opened = options(server)
        assert KEY not in repr(opened)
        async with open_model(opened) as model:
            with pytest.raises(ModelError) as caught:
                await model.ask("", [UserMessage(text="x")], [])
    assert KEY not in str(caught.value)
    assert "agent.api_key_env" in caught.value.hint


# --- Prices ----------------------------------------------------------------------------------


async def test_a_known_model_has_a_price_and_an_unknown_one_has_none() -> None:
    for model, is_priced in (("openai:gpt-4o", True), ("openai:no-such-model-here", False)):
        async with open_model(ModelOptions(model=model, key=KEY)) as opened:
            assert opened.is_priced == is_priced


async def test_prices_of_the_settings_count() -> None:
    prices = Prices(input=2.0, output=1_000_000.0)
    with OpenAIServer("x").listening() as server:
        async with open_model(options(server, prices=prices)) as model:
            assert model.is_priced
            answer = await model.ask("", [UserMessage(text="x")], [])
    assert answer.usage.cost == pytest.approx(20.0, rel=0.01)


async def test_a_cost_limit_holds_on_the_wire() -> None:
    with OpenAIServer(call("look", at="x")).listening() as server:
        async with open_model(options(server, prices=Prices(input=0, output=50_000))) as model:
            loop = AgentLoop(model, ToolsInMemory(look="seen"), limits=LoopLimits(cost=2.5))
            ended = await loop.run("", "x")
    assert (ended.outcome, len(server.requests)) == (Outcome.COST_LIMIT, 3)


# --- Settings --------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["", "gpt", "openai:", "nobody:gpt", "openai: "])
def test_a_model_has_a_provider_and_a_name(model: str) -> None:
    with pytest.raises(ConfigurationError):
        ModelOptions(model=model)


@pytest.mark.parametrize(
    "url",
    ["localhost:1", "file:///etc", "http://", "http://a b/", "http://u:p@h/", "http://[", "x"],
)
def test_an_address_is_an_http_one_without_a_password(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"agent\.base_url"):
        ModelOptions(model="openai:x", base_url=url)


async def test_without_a_key_the_providers_own_address_is_refused_in_words() -> None:
    with pytest.raises(ConfigurationError, match="no API key for anthropic") as caught:
        async with open_model(ModelOptions(model="anthropic:x")):
            pass
    assert "ANTHROPIC_API_KEY" in caught.value.hint


async def test_an_anthropic_model_is_opened_with_its_own_client() -> None:
    async with open_model(ModelOptions(model="anthropic:some-model", key=KEY)) as model:
        assert model.name == "anthropic:some-model"


def test_a_providers_key_never_goes_to_another_address() -> None:
    environ = {"OPENAI_API_KEY": "theirs", "KAKOI_MODEL_API_KEY": "ours", "ANTHROPIC_API_KEY": "a"}
    assert model_key("openai", environ=environ) == "theirs"
    assert model_key("anthropic", environ=environ) == "a"
    assert model_key("openai", base_url="http://127.0.0.1/v1", environ=environ) == "ours"
    assert (
        model_key("openai", base_url="http://127.0.0.1/v1", environ={"OPENAI_API_KEY": "x"}) == ""
    )
    named = model_key("openai", base_url="http://x/", variable="OPENAI_API_KEY", environ=environ)
    assert named == "theirs"
    with pytest.raises(ConfigurationError, match="which is not set"):
        model_key("openai", variable="NOT_THERE", environ=environ)


def test_settings_become_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAKOI_MODEL_API_KEY", f" {KEY}\n")
    settings = AgentSection(
        model="openai:x", base_url="http://127.0.0.1:1/v1", input_price=1.0, output_price=2.0
    )
    found = model_options(settings)
    assert (found.key, found.prices) == (KEY, Prices(input=1.0, output=2.0))
    with pytest.raises(ConfigurationError, match="no model is named"):
        model_options(AgentSection())
