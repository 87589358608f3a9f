"""A server on loopback with Anthropic's Messages API, as its reference documents it.

It rejects the requests that Anthropic rejects: turns that do not alternate, a call without a
result, a result without a call, and a missing limit on the answer.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tests.agents.openai_server import Call, OpenAIServer, Problem, Wire

_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    529: "overloaded_error",
}


class AnthropicServer(OpenAIServer):
    """Gives the answers in order, repeats the last one, and records every request."""

    base = ""
    path = "/v1/messages"

    def _answer(
        self, path: str, headers: dict[str, str], body: dict[str, Any]
    ) -> tuple[int, Mapping[str, str], bytes] | Wire:
        wrong = _wrong(headers, body)
        if wrong:
            return 400, {}, json.dumps(self._error(Problem(400, wrong))).encode()
        return super()._answer(path, headers, body)

    def _error(self, problem: Problem) -> object:
        kind = _KINDS.get(problem.status, "api_error")
        error = {"type": kind, "message": problem.message}
        return {"type": "error", "error": error, "request_id": "req_1"}

    def _completion(self, said: str | Call | Sequence[Call], body: dict[str, Any]) -> object:
        content: list[dict[str, Any]]
        if isinstance(said, str):
            content = [{"type": "text", "text": said}] if said else []
        else:
            calls = [said] if isinstance(said, Call) else said
            content = [
                {
                    "type": "tool_use",
                    "id": f"toolu_{len(self.requests)}_{number}",
                    "name": each.name,
                    "input": json.loads(each.arguments),
                }
                for number, each in enumerate(calls)
            ]
            content.insert(0, {"type": "text", "text": "I will use a tool."})
        return {
            "id": f"msg_{len(self.requests)}",
            "type": "message",
            "role": "assistant",
            "model": body["model"],
            "content": content,
            "stop_reason": "end_turn" if isinstance(said, str) else "tool_use",
            "stop_sequence": None,
            "usage": {
                "input_tokens": 100,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 40,
                "output_tokens": 20,
                "service_tier": "standard",
            },
        }


def _wrong(headers: Mapping[str, str], body: Mapping[str, Any]) -> str:
    """Return why Anthropic would reject the request, or an empty string."""
    if "anthropic-version" not in headers:
        return "anthropic-version: header is required"
    if not isinstance(body.get("max_tokens"), int):
        return "max_tokens: Field required"
    roles = [each["role"] for each in body["messages"]]
    if roles != [("user", "assistant")[at % 2] for at in range(len(roles))]:
        return f"messages: roles must alternate between user and assistant, not {roles}"
    asked: list[str] = []
    for message in body["messages"]:
        blocks = blocks_of(message)
        if not blocks:
            return "messages: text content blocks must be non-empty"
        given = [each["tool_use_id"] for each in blocks if each["type"] == "tool_result"]
        if given != asked:
            return f"`tool_use` ids {asked} were found without `tool_result` blocks, not {given}"
        asked = [each["id"] for each in blocks if each["type"] == "tool_use"]
    return ""


def blocks_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the content of a message as a list of blocks."""
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
