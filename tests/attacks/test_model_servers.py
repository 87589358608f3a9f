"""Model servers that are hostile, through the whole loop: what they say is bounded, obeyed once,
and ends in words."""

import asyncio
import json
import math
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest

from kakoi.agents.events import AgentEvent, LoopEnded, ModelFailed, Outcome
from kakoi.agents.http import MAX_ANSWER_BYTES
from kakoi.agents.loop import AgentLoop, LoopLimits
from kakoi.agents.models import ModelOptions, Prices, open_model
from kakoi.agents.transcript import TranscriptFile
from kakoi.tasks.comments import TaskResult, format_result
from tests.agents.anthropic_server import AnthropicServer
from tests.agents.models_for_tests import ToolsInMemory
from tests.agents.openai_server import OpenAIServer, Problem, Raw

pytestmark = [
    pytest.mark.anyio,
    # The library warns of usage that it cannot read; so do we, where it matters.
    pytest.mark.filterwarnings("ignore:Failed to extract usage"),
]
KEY = "sk-a-key-that-nobody-may-see-1234567890"
MIB = 1 << 20
SERVERS = {"openai": OpenAIServer, "anthropic": AnthropicServer}


@pytest.fixture(params=SERVERS)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def calling(provider: str, calls: list[tuple[str, str, Any]], usage: Any = None) -> bytes:
    """An answer that asks for tools, to the letter: (id, name, arguments)."""
    if provider == "openai":
        asked = [
            {"id": number, "type": "function", "function": {"name": name, "arguments": words}}
            for number, name, words in calls
        ]
        message = {"role": "assistant", "content": None, "tool_calls": asked}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        answer: dict[str, Any] = {"object": "chat.completion", "created": 1, "choices": [choice]}
        used = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    else:
        content = [
            {"type": "tool_use", "id": number, "name": name, "input": _read(words)}
            for number, name, words in calls
        ]
        answer = {"type": "message", "role": "assistant", "content": content, "stop_reason": "tool_use"}  # fmt: skip
        used = {"input_tokens": 1, "output_tokens": 1}
    named = {"id": "a", "model": "m", **answer}
    return json.dumps({**named, "usage": used if usage is None else usage}).encode()


def _read(words: str) -> Any:
    try:
        return json.loads(words)
    except ValueError:
        return words


DONE = ("d", "done", '{"summary": "x"}')


async def run(
    provider: str, *said: Any, tools: ToolsInMemory | None = None, **more: Any
) -> tuple[LoopEnded, list[AgentEvent]]:
    heard: list[AgentEvent] = []
    waits: list[float] = []

    async def no_pause(delay: float) -> None:
        assert math.isfinite(delay)
        waits.append(delay)
        await asyncio.sleep(0)

    limits = LoopLimits(**{"steps": 4, "retries": 2, **more})
    with SERVERS[provider](*said).listening() as server:
        options = ModelOptions(
            model=f"{provider}:some-model",
            base_url=server.url,
            key=KEY,
            prices=Prices(input=1.0, output=1.0),
        )
        async with open_model(options) as model:
            loop = AgentLoop(
                model,
                tools or ToolsInMemory(),
                limits=limits,
                listener=heard.append,
                sleep=no_pause,
            )
            ended = await loop.run("", "x")
    assert KEY not in ended.error
    return ended, heard


@pytest.mark.slow("reads until the limit, after the first import of a vendor's client")
async def test_arguments_of_any_length_are_cut_off_with_the_answer(provider: str) -> None:
    words = json.dumps({"text": "x" * (12 * MIB)})
    body = calling(provider, [("a", "echo", words)])
    ended, _ = await run(provider, Problem(200, body=body))
    assert ended.outcome is Outcome.MODEL_FAILED
    assert f"more than {MAX_ANSWER_BYTES} bytes" in ended.error


async def test_the_longest_arguments_are_bounded_in_the_transcript(
    provider: str, tmp_path: Path
) -> None:
    words = json.dumps({"text": "x" * (7 * MIB)})
    body = calling(provider, [("a", "echo", words)])
    path = tmp_path / "transcript"
    with TranscriptFile(path, clock=lambda: datetime.now(UTC)) as transcript:
        tools = ToolsInMemory(echo="ok")
        _, heard = await run(provider, Problem(200, body=body), tools=tools, steps=1)
        for event in heard:
            transcript(event)
    assert path.stat().st_size < MIB


async def test_a_tool_that_is_not_there_is_called_by_no_name(provider: str) -> None:
    names = ["no_such_tool", "../../etc/passwd", "__import__", "execute_command\n", "x" * 100_000, ""]  # fmt: skip
    tools = ToolsInMemory(echo="ok")
    calls = [(f"c{number}", name, "{}") for number, name in enumerate(names)]
    said = Problem(200, body=calling(provider, calls))
    ended, _ = await run(provider, said, tools=tools, steps=20)
    assert ended.outcome in (Outcome.NONSENSE, Outcome.MODEL_FAILED), ended
    assert [each.tool for each in tools.called if each.tool == "echo"] == []


async def test_the_same_id_twice_is_two_calls_with_ids_of_their_own(provider: str) -> None:
    tools = ToolsInMemory(echo="ok")
    twice = calling(
        provider, [("same", "echo", '{"text": "1"}'), ("same", "echo", '{"text": "2"}')]
    )
    ended, _ = await run(
        provider,
        Problem(200, body=twice),
        Problem(200, body=twice),
        Problem(200, body=calling(provider, [DONE])),
        tools=tools,
    )
    assert ended.outcome is Outcome.DONE, ended
    assert [each.arguments["text"] for each in tools.called] == ["1", "2"] * 2
    assert len({each.id for each in tools.called[:2]}) == 2


async def test_more_calls_than_anybody_asks_for_are_left_out(provider: str) -> None:
    tools = ToolsInMemory(echo="ok")
    many = calling(provider, [(f"c{number}", "echo", "{}") for number in range(1000)])
    await run(provider, Problem(200, body=many), tools=tools, steps=2)
    assert len(tools.called) <= 64


COUNTS: list[Any] = [10**18, 10**400, -(10**400), 1e308, "9" * 5000, [], True]


@pytest.mark.parametrize("count", COUNTS, ids=lambda count: f"{count!r:.12}")
async def test_absurd_counts_of_tokens_end_in_words(provider: str, count: Any) -> None:
    names = ("prompt_tokens", "completion_tokens", "total_tokens", "input_tokens", "output_tokens")
    body = calling(provider, [("a", "echo", "{}")], usage=dict.fromkeys(names, count))
    for cost in (None, 5.0):
        ended, _ = await run(
            provider, Problem(200, body=body), tools=ToolsInMemory(echo="ok"), cost=cost
        )
        assert ended.outcome in (Outcome.STEP_LIMIT, Outcome.COST_LIMIT, Outcome.MODEL_FAILED)
        assert len(ended.error) < 3000
        assert len(format_result(TaskResult(stage="error", error=ended.error, ended=ended))) < 4000


@pytest.mark.parametrize("body", [b"\xff\xfe{\x00}\x00", b'{"choices": "\xff"}', b"\x00" * 10_000])
async def test_what_is_not_utf8_ends_in_words(provider: str, body: bytes) -> None:
    ended, _ = await run(provider, Problem(200, body=body))
    assert ended.outcome is Outcome.MODEL_FAILED
    assert ended.error.isprintable()


@pytest.mark.parametrize(
    "words", ['{"text": "\\ud800"}', '{"text": NaN}', "{", "[]", '"x"', "{}{}"]
)
async def test_broken_arguments_are_reported_to_the_model_and_never_reach_the_tool(
    provider: str, words: str
) -> None:
    tools = ToolsInMemory(echo="ok")
    said = [Problem(200, body=calling(provider, [("a", "echo", words)])),
            Problem(200, body=calling(provider, [DONE]))]  # fmt: skip
    ended, _ = await run(provider, *said, tools=tools)
    assert ended.outcome in (Outcome.DONE, Outcome.MODEL_FAILED), ended
    for each in tools.called:
        json.dumps(dict(each.arguments), ensure_ascii=False, allow_nan=False).encode()


@pytest.mark.parametrize("after", ["nan", "inf", "-inf", "-5", "1e400", "9" * 400, "soon", "\xff"])
async def test_no_server_makes_us_wait_as_long_as_it_likes(provider: str, after: str) -> None:
    ended, heard = await run(provider, Problem(429, headers={"Retry-After": after}))
    assert ended.outcome is Outcome.MODEL_FAILED
    waits = [event.wait_s for event in heard if isinstance(event, ModelFailed)]
    assert len(waits) == 2
    assert all(0 <= wait <= 300 for wait in waits)


async def test_a_stream_that_nobody_asked_for_ends(provider: str) -> None:
    def stream(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream")
        request.end_headers()
        try:
            for _ in range(1024):
                request.wfile.write(b"data: {}\n\n" * 100_000)
        except OSError:
            pass

    ended, _ = await run(provider, Raw(stream))
    assert ended.outcome is Outcome.MODEL_FAILED
    assert ended.error


@pytest.mark.parametrize("words", ["\x1b]0;owned\x07\x1b[2J", "\u202eevil", "x" * 500_000, KEY])
@pytest.mark.parametrize("status", [401, 500])
async def test_what_a_server_says_of_its_failure_is_short_and_harmless(
    provider: str, status: int, words: str
) -> None:
    ended, _ = await run(provider, Problem(status, message=words), retries=0)
    assert ended.outcome is Outcome.MODEL_FAILED
    assert len(ended.error) < 3000
    assert ended.error.isprintable()
