"""A server on loopback with the part of OpenAI's chat API that agents use, without streaming."""

import contextlib
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Problem:
    """An error response."""

    status: int
    message: str = "try later"
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None


@dataclass(frozen=True)
class Call:
    """A tool call. `arguments` are sent verbatim."""

    name: str
    arguments: str


def call(name: str, **arguments: object) -> Call:
    return Call(name, json.dumps(arguments))


Wire = Callable[[BaseHTTPRequestHandler], None]


@dataclass(frozen=True)
class Raw:
    """A response that the test writes to the socket itself."""

    write: Wire


Said = str | Call | Sequence[Call] | Problem
Reacts = Callable[[dict[str, Any]], Said]


class OpenAIServer:
    """Gives the answers in order, repeats the last one, and records every request."""

    base = "/v1"
    path = "/v1/chat/completions"

    def __init__(self, *said: Said | Raw | Reacts) -> None:
        self._said = list(said)
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self.ended = threading.Event()
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def listening(self) -> Iterator["OpenAIServer"]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # Otherwise each answer waits 40 ms for an ACK.

            def do_POST(self) -> None:
                size = int(self.headers["Content-Length"])
                body = json.loads(self.rfile.read(size))
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = outer._answer(self.path, headers, body)
                if callable(answer):
                    answer(self)
                    self.close_connection = True
                    return
                status, more, data = answer
                self.send_response(status)
                for name, value in {"Content-Type": "application/json", **more}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                with contextlib.suppress(ConnectionError):
                    self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            server.daemon_threads = True
            self.url = f"http://127.0.0.1:{server.server_port}{self.base}"
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            try:
                yield self
            finally:
                self.ended.set()
                server.shutdown()
                thread.join()

    def _answer(
        self, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Mapping[str, str], bytes] | Wire:
        if path != self.path:
            return 404, {}, b'{"error": {"message": "no such path"}}'
        with self._lock:
            self.requests.append(body)
            self.headers.append(headers)
            said = self._said.pop(0) if len(self._said) > 1 else self._said[0]
        if isinstance(said, Raw):
            return said.write
        if callable(said):
            said = said(body)
        if isinstance(said, Problem):
            data = json.dumps(self._error(said)).encode() if said.body is None else said.body
            return said.status, said.headers, data
        return 200, {}, json.dumps(self._completion(said, body)).encode()

    def _error(self, problem: Problem) -> object:
        return {"error": {"message": problem.message, "type": "error", "code": None}}

    def _completion(self, said: str | Call | Sequence[Call], body: dict[str, Any]) -> object:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        if isinstance(said, str):
            message["content"] = said
        else:
            calls = [said] if isinstance(said, Call) else said
            message["tool_calls"] = [
                {
                    "id": f"call_{len(self.requests)}_{number}",
                    "type": "function",
                    "function": {"name": each.name, "arguments": each.arguments},
                }
                for number, each in enumerate(calls)
            ]
        read = len(json.dumps(body)) // 4
        return {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "created": 1_760_000_000,
            "model": body["model"],
            "choices": [
                {
                    "index": 0,
                    "message": message,
                    "finish_reason": "stop" if isinstance(said, str) else "tool_calls",
                }
            ],
            "usage": {"prompt_tokens": read, "completion_tokens": 20, "total_tokens": read + 20},
        }


def last_tool_text(body: dict[str, Any]) -> str:
    """Return the text of the last tool result in the request."""
    return next(
        str(message["content"])
        for message in reversed(body["messages"])
        if message["role"] == "tool"
    )
