"""Model servers that are broken or hostile: none of them eats our memory, our time or our key."""

import gzip
import json
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from kakoi.agents.conversation import UserMessage
from kakoi.agents.events import Outcome
from kakoi.agents.http import MAX_ANSWER_BYTES, restricted_client
from kakoi.agents.loop import AgentLoop
from kakoi.agents.models import ModelOptions, open_model
from kakoi.errors import ModelError
from tests.agents.anthropic_server import AnthropicServer
from tests.agents.models_for_tests import ToolsInMemory
from tests.agents.openai_server import OpenAIServer, Problem, Raw

pytestmark = pytest.mark.anyio
KEY = "sk-a-key-that-nobody-may-see-1234567890"
MIB = 1024 * 1024
SERVERS = {"openai": OpenAIServer, "anthropic": AnthropicServer}


@pytest.fixture(params=SERVERS)
def provider(request: pytest.FixtureRequest) -> str:
    return str(request.param)


async def failure(provider: str, said: Any, *, timeout_s: float = 60.0) -> ModelError:
    """What we say of a server that says this."""
    with SERVERS[provider](said).listening() as server:
        options = ModelOptions(
            model=f"{provider}:some-model", base_url=server.url, key=KEY, timeout_s=timeout_s
        )
        async with open_model(options) as model:
            with pytest.raises(ModelError) as caught:
                await model.ask("", [UserMessage(text="x")], [])
    assert KEY not in str(caught.value) + caught.value.hint
    return caught.value


class Flood:
    """Sends until the other end has had enough, but no more than a gigabyte."""

    def __init__(self, head: dict[str, str], status: int = 200) -> None:
        self.sent = 0
        self.over = threading.Event()
        self._head = head
        self._status = status

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        begin(request, self._head, self._status)
        try:
            for _ in range(1024):
                request.wfile.write(b" " * MIB)
                self.sent += MIB
        except OSError:
            pass
        self.over.set()


def begin(request: BaseHTTPRequestHandler, headers: dict[str, str], status: int = 200) -> None:
    request.send_response(status)
    for name, value in headers.items():
        request.send_header(name, value)
    request.end_headers()


@pytest.mark.parametrize("status", [200, 500])
async def test_an_endless_answer_is_cut_off(provider: str, status: int) -> None:
    flood = Flood({"Content-Type": "application/json", "Connection": "close"}, status)
    error = await failure(provider, Raw(flood))
    assert f"more than {MAX_ANSWER_BYTES} bytes" in str(error)
    assert not error.is_passing
    assert flood.over.wait(60)
    # What is on its way in buffers was sent, too, and nobody has read it.
    assert flood.sent < MAX_ANSWER_BYTES + 64 * MIB


async def test_an_answer_of_a_length_that_nobody_needs_is_not_read(provider: str) -> None:
    flood = Flood({"Content-Type": "application/json", "Content-Length": str(1024 * MIB)})
    assert "more than" in str(await failure(provider, Raw(flood)))


async def test_an_answer_that_is_packed_is_refused_before_it_is_unpacked(provider: str) -> None:
    bomb = gzip.compress(b" " * (64 * MIB))
    error = await failure(provider, Problem(200, headers={"Content-Encoding": "gzip"}, body=bomb))
    assert "compressed" in str(error)


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_nobody_sends_us_and_our_key_elsewhere(provider: str, status: int) -> None:
    with OpenAIServer("never asked").listening() as elsewhere:
        there = {"Location": f"{elsewhere.url}/chat/completions?x={KEY}"}
        error = await failure(provider, Problem(status, headers=there))
    assert elsewhere.requests == []
    assert "another address" in str(error)
    assert not error.is_passing


def dribble(request: BaseHTTPRequestHandler) -> None:
    """A byte now and then: no single wait is long, all of them together are."""
    begin(request, {"Content-Type": "application/json", "Content-Length": "1000000"})
    until = time.monotonic() + 60
    try:
        while time.monotonic() < until:
            request.wfile.write(b" ")
            time.sleep(0.02)
    except OSError:
        pass


def hang_up_early(request: BaseHTTPRequestHandler) -> None:
    begin(request, {"Content-Type": "application/json", "Content-Length": "1000"})
    request.wfile.write(b'{"choices"')


def say_nothing(request: BaseHTTPRequestHandler) -> None:
    request.close_connection = True


def stay_silent(released: threading.Event) -> Callable[[BaseHTTPRequestHandler], None]:
    def wait(_request: BaseHTTPRequestHandler) -> None:
        released.wait(60)

    return wait


async def test_an_answer_that_never_ends_ends_in_time(provider: str) -> None:
    error = await failure(provider, Raw(dribble), timeout_s=0.5)
    assert "within 0.5 s" in str(error)
    assert error.is_passing


async def test_a_silent_server_is_given_up(provider: str) -> None:
    released = threading.Event()
    error = await failure(provider, Raw(stay_silent(released)), timeout_s=0.5)
    released.set()
    assert error.is_passing


@pytest.mark.parametrize("write", [hang_up_early, say_nothing])
async def test_half_an_answer_may_be_asked_for_again(
    provider: str, write: Callable[[BaseHTTPRequestHandler], None]
) -> None:
    assert (await failure(provider, Raw(write))).is_passing


CALL = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
MESSAGE: dict[str, Any] = {"role": "assistant", "content": "x"}
BLOCK = {"type": "tool_use", "id": "a", "name": "look", "input": {}}
SHAPES: list[Any] = [
    None, 5, "text", [], {}, {"choices": 5}, {"choices": [5]}, {"choices": [{"message": 5}]},
    {"choices": [{"message": {**MESSAGE, "content": 5}}]},
    {"choices": [{"message": {**MESSAGE, "content": ["x"]}}]},
    {"choices": [{"message": {**MESSAGE, "tool_calls": 5}}]},
    {"choices": [{"message": {**MESSAGE, "tool_calls": [{**CALL, "id": 5}]}}]},
    {"choices": [{"message": {**MESSAGE, "tool_calls": [{**CALL, "function": None}]}}]},
    {"choices": [{"message": {**MESSAGE, "tool_calls": [{**CALL, "function": {"name": 5}}]}}]},
    {"choices": [{"message": MESSAGE, "finish_reason": 5}], "usage": {"prompt_tokens": "many"}},
    {"choices": [{"message": MESSAGE}], "usage": {"prompt_tokens": -5, "completion_tokens": 1e99}},
    {"choices": [{"message": MESSAGE}], "created": 1e300},
    {"content": 5}, {"content": [5]}, {"content": [{"type": "text"}]},
    {"content": [{"type": "text", "text": 5}]},
    {"content": [{**BLOCK, "id": 5}], "usage": {}},
    {"content": [{**BLOCK, "name": None}]},
    {"content": [{**BLOCK, "input": "text"}]},
    {"content": [{"type": "thinking", "thinking": 5, "signature": None}]},
    {"content": [{"type": "no_such_thing"}]},
    {"content": [BLOCK], "usage": {"input_tokens": "many", "output_tokens": None}},
    {"content": [BLOCK], "usage": {"input_tokens": -5, "output_tokens": 1e99}},
]  # fmt: skip


# The library warns of usage that it cannot read; so do we, where it matters: by a limit on cost.
@pytest.mark.filterwarnings("ignore:Failed to extract usage")
@pytest.mark.parametrize("at", range(len(SHAPES)))
async def test_an_answer_of_another_shape_ends_the_loop_in_words(provider: str, at: int) -> None:
    """Or is nonsense, or can be read after all: but it is no defect of ours, and never the end."""
    body = json.dumps(SHAPES[at]).encode()
    with SERVERS[provider](Problem(200, body=body)).listening() as server:
        options = ModelOptions(model=f"{provider}:some-model", base_url=server.url, key=KEY)
        async with open_model(options) as model:
            ended = await AgentLoop(model, ToolsInMemory()).run("", "x")
    assert ended.outcome in (Outcome.MODEL_FAILED, Outcome.NONSENSE)
    assert ended.error


async def test_json_that_is_too_deep_is_no_defect_of_ours(provider: str) -> None:
    error = await failure(provider, Problem(200, body=b"[" * 1_000_000))
    assert not error.is_passing


async def test_a_client_closes_what_it_opened() -> None:
    client = restricted_client(timeout_s=1.0)
    await client.aclose()
    assert client.is_closed
