"""Our turns as pydantic-ai's messages, and its responses as our answers.

What a model said is made safe to be said again: most servers refuse a conversation that holds a
broken name, broken arguments, or the same id twice.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from kakoi.agent.conversation import Answer, Replies, Request, Told, Turn, is_too_deep

# What every vendor takes for the name of a tool.
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_REQUESTS: Final = 32
_LONGEST_TEXT: Final = 200_000


def messages_of(instructions: str, turns: Sequence[Turn]) -> list[ModelMessage]:
    """A conversation as a model is told it."""
    messages: list[ModelMessage] = []
    for turn in turns:
        if isinstance(turn, Answer):
            raw = turn.raw if isinstance(turn.raw, ModelResponse) else _response(turn)
            messages.append(raw)
            continue
        parts = [UserPromptPart(turn.text)] if isinstance(turn, Told) else _returned(turn)
        last = messages[-1] if messages else None
        if isinstance(last, ModelRequest):  # Some servers want turns to alternate.
            messages[-1] = replace(last, parts=[*last.parts, *parts])
        else:
            messages.append(ModelRequest(parts=[*parts]))
    return [
        replace(each, instructions=instructions or None) if isinstance(each, ModelRequest) else each
        for each in messages
    ]


def _returned(turn: Replies) -> list[ToolReturnPart]:
    return [
        ToolReturnPart(
            tool_name=reply.request.tool,
            content=reply.text,
            tool_call_id=reply.request.id,
        )
        for reply in turn.replies
    ]


def _response(answer: Answer) -> ModelResponse:
    """An answer that was read from a file, or shortened."""
    calls = [
        ToolCallPart(tool_name=each.tool, args=dict(each.arguments), tool_call_id=each.id)
        for each in answer.requests
    ]
    text = [TextPart(answer.text or "…")] if answer.text or not calls else []
    return ModelResponse(parts=[*text, *calls])


# --- Answers ---------------------------------------------------------------------------------


def read_answer(response: ModelResponse) -> Answer:
    """What a model said, made safe to be said again.

    A request that cannot be read keeps its place, with the fault; what goes back to the model has a
    name and arguments that every server takes, since most refuse a conversation that holds others.
    """
    requests: list[Request] = []
    parts: list[Any] = []
    for part in response.parts:
        if not isinstance(part, ToolCallPart):
            parts.append(part)
        elif len(requests) < _MOST_REQUESTS:
            request = _request(part, len(requests), {each.id for each in requests})
            requests.append(request)
            parts.append(_call_part(part, request))
    said = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    return Answer(
        text=_whole(said)[:_LONGEST_TEXT],
        requests=tuple(requests),
        raw=replace(response, parts=parts or [TextPart("…")]),
    )


def _call_part(part: ToolCallPart, request: Request) -> ToolCallPart:
    return ToolCallPart(
        tool_name=request.tool,
        args=dict(request.arguments),
        tool_call_id=request.id,
        id=part.id,
        provider_name=part.provider_name,
        provider_details=part.provider_details,
    )


def _request(part: ToolCallPart, number: int, taken: set[str]) -> Request:
    # Spec A's prompt has the name of the server in front.
    name, fault = part.tool_name.rpartition("/")[2], ""
    if not TOOL_NAME.fullmatch(name):
        fault = f"{_whole(part.tool_name)[:64]!r} is no name of a tool"
        digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
        name = f"unknown_{digest}"
    number_is_free = TOOL_NAME.fullmatch(part.tool_call_id) and part.tool_call_id not in taken
    identifier = part.tool_call_id if number_is_free else f"call_{number}_{len(taken)}"
    while identifier in taken:
        identifier += "_"
    arguments, wrong = _arguments(part.args)
    return Request(id=identifier, tool=name, arguments=arguments, fault=fault or wrong)


def _arguments(given: str | dict[str, Any] | None) -> tuple[dict[str, Any], str]:
    """The arguments, and what is wrong with them."""
    if given is None or given == "":
        return {}, ""
    try:
        found = json.loads(given) if isinstance(given, str) else given
        # Said again as it is read: half characters and numbers that are none end here.
        found = json.loads(json.dumps(found, allow_nan=False).encode("utf-8", "replace"))
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return {}, f"the arguments are not valid JSON: {str(error)[:200]}"
    if not isinstance(found, dict):
        return {}, f"the arguments are no object but {type(found).__name__}"
    return ({}, "the arguments are nested too deeply") if is_too_deep(found) else (found, "")


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
