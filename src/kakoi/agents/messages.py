"""Converts our turns to pydantic-ai's messages, and its responses to our answers.

Answers are made safe to send back: most servers refuse a conversation that contains an invalid
name, invalid arguments, or a duplicate id.
"""

import hashlib
import json
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

from kakoi._support.late import pattern
from kakoi.agents.conversation import (
    ModelAnswer,
    ToolReplies,
    ToolRequest,
    Turn,
    UserMessage,
    is_too_deep,
)

# Tool names that every vendor accepts.
TOOL_NAME: Final = pattern(r"[A-Za-z0-9_-]{1,64}")
_MOST_REQUESTS: Final = 32
_LONGEST_TEXT: Final = 200_000


def messages_from_turns(instructions: str, turns: Sequence[Turn]) -> list[ModelMessage]:
    """Return the conversation as messages for a model."""
    messages: list[ModelMessage] = []
    for turn in turns:
        if isinstance(turn, ModelAnswer):
            raw = turn.raw if isinstance(turn.raw, ModelResponse) else _response(turn)
            messages.append(raw)
            continue
        parts = [UserPromptPart(turn.text)] if isinstance(turn, UserMessage) else _returned(turn)
        last = messages[-1] if messages else None
        if isinstance(last, ModelRequest):  # Some servers want turns to alternate.
            messages[-1] = replace(last, parts=[*last.parts, *parts])
        else:
            messages.append(ModelRequest(parts=[*parts]))
    return [
        replace(each, instructions=instructions or None) if isinstance(each, ModelRequest) else each
        for each in messages
    ]


def _returned(turn: ToolReplies) -> list[ToolReturnPart]:
    return [
        ToolReturnPart(
            tool_name=reply.request.tool,
            content=reply.text,
            tool_call_id=reply.request.id,
        )
        for reply in turn.replies
    ]


def _response(answer: ModelAnswer) -> ModelResponse:
    """Convert an answer that was read from a file, or shortened."""
    calls = [
        ToolCallPart(tool_name=each.tool, args=dict(each.arguments), tool_call_id=each.id)
        for each in answer.requests
    ]
    text = [TextPart(answer.text or "…")] if answer.text or not calls else []
    return ModelResponse(parts=[*text, *calls])


# --- Answers ---------------------------------------------------------------------------------


def read_answer(response: ModelResponse) -> ModelAnswer:
    """Return the model's answer, made safe to send back.

    A tool call that cannot be read keeps its position, with the fault. What is sent back to the
    model has a name and arguments that every server accepts.
    """
    requests: list[ToolRequest] = []
    parts: list[Any] = []
    for part in response.parts:
        if not isinstance(part, ToolCallPart):
            parts.append(part)
        elif len(requests) < _MOST_REQUESTS:
            request = _request(part, len(requests), {each.id for each in requests})
            requests.append(request)
            parts.append(_call_part(part, request))
    text = "".join(part.content for part in response.parts if isinstance(part, TextPart))
    return ModelAnswer(
        text=_whole(text)[:_LONGEST_TEXT],
        requests=tuple(requests),
        raw=replace(response, parts=parts or [TextPart("…")]),
    )


def _call_part(part: ToolCallPart, request: ToolRequest) -> ToolCallPart:
    return ToolCallPart(
        tool_name=request.tool,
        args=dict(request.arguments),
        tool_call_id=request.id,
        id=part.id,
        provider_name=part.provider_name,
        provider_details=part.provider_details,
    )


def _request(part: ToolCallPart, number: int, taken: set[str]) -> ToolRequest:
    # The default prompt puts the name of the server in front of the tool name.
    name, fault = part.tool_name.rpartition("/")[2], ""
    if not TOOL_NAME.fullmatch(name):
        fault = f"{_whole(part.tool_name)[:64]!r} is not a valid tool name"
        digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:8]
        name = f"unknown_{digest}"
    number_is_free = TOOL_NAME.fullmatch(part.tool_call_id) and part.tool_call_id not in taken
    identifier = part.tool_call_id if number_is_free else f"call_{number}_{len(taken)}"
    while identifier in taken:
        identifier += "_"
    arguments, wrong = _arguments(part.args)
    return ToolRequest(id=identifier, tool=name, arguments=arguments, fault=fault or wrong)


def _arguments(given: str | dict[str, Any] | None) -> tuple[dict[str, Any], str]:
    """Return the arguments, and what is wrong with them."""
    if given is None or given == "":
        return {}, ""
    try:
        found = json.loads(given) if isinstance(given, str) else given
        # Normalize: removes lone surrogates, refuses NaN and infinity.
        found = json.loads(json.dumps(found, allow_nan=False).encode("utf-8", "replace"))
        json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        return {}, f"the arguments are not valid JSON: {str(error)[:200]}"
    if not isinstance(found, dict):
        return {}, f"the arguments must be an object, not {type(found).__name__}"
    return ({}, "the arguments are nested too deeply") if is_too_deep(found) else (found, "")


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
