"""Models: whoever answers, behind pydantic-ai's classes (docs/adr/0018).

    openai:NAME      OpenAI, or any server that speaks its chat format, by address
    anthropic:NAME   Anthropic

The only module that imports pydantic-ai, and of its vendors only the one that is asked for.
"""

import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic_ai import models
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import (
    AgentRunError,
    ModelAPIError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
    UserError,
)
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from kakoi.agent.conversation import Answer, Offer, Replies, Request, Told, Turn, Usage
from kakoi.errors import ConfigurationError, ModelError
from kakoi.redact import redact

PROVIDERS: Final = ("openai", "anthropic")
# What every vendor takes for the name of a tool.
TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MOST_REQUESTS: Final = 32
_LONGEST_TEXT: Final = 200_000
_PASSING: Final = (
    ModelConnectionError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
)
_ADDRESS_HINT: Final = "set agent.base_url, for example http://127.0.0.1:8000/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """US dollars for a million tokens."""

    input: float
    output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, where. `base_url`: empty is the vendor's own address.

    `prices`: None are those that the library knows. `key`: a secret, and never told.
    """

    model: str
    base_url: str = ""
    key: str = field(default="", repr=False)
    prices: Prices | None = None
    timeout_s: float = 600.0
    max_output_tokens: int = 16_384

    @property
    def provider(self) -> str:
        """The first part of the model's name."""
        return self.model.partition(":")[0]

    def __post_init__(self) -> None:
        provider, _, name = self.model.partition(":")
        if provider not in PROVIDERS or not name.strip():
            raise ConfigurationError(
                f"agent.model is {self.model!r:.80}; it must be PROVIDER:NAME",
                hint=f"providers are {', '.join(PROVIDERS)}; a local server is openai:NAME "
                "with agent.base_url",
            )
        if self.base_url:
            _check_address(self.base_url)


def _check_address(text: str) -> None:
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known or any(not char.isprintable() or char == " " for char in text):
        raise ConfigurationError("agent.base_url is no http address", hint=_ADDRESS_HINT)
    if parts.username or parts.password:
        raise ConfigurationError(
            "agent.base_url holds a user or a password",
            hint="name the variable that holds the key: agent.api_key_env",
        )


@contextlib.asynccontextmanager
async def open_model(options: ModelOptions) -> AsyncIterator["PydanticModel"]:
    """The model that the options name; its connections are closed at the end."""
    if not options.key and not options.base_url:
        raise ConfigurationError(
            f"there is no key for {options.provider}",
            hint=f"set {options.provider.upper()}_API_KEY, or agent.base_url for another server",
        )
    opened = _anthropic(options) if options.provider == "anthropic" else _openai(options)
    async with opened as model:
        yield PydanticModel(
            model,
            prices=options.prices,
            secrets=[options.key] if options.key else [],
            max_output_tokens=options.max_output_tokens,
            timeout_s=options.timeout_s,
        )


@contextlib.asynccontextmanager
async def _openai(options: ModelOptions) -> "AsyncIterator[models.Model[Any]]":
    from openai import AsyncOpenAI
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with AsyncOpenAI(
        api_key=options.key or "none",  # The client insists; a local server does not look.
        base_url=options.base_url or "https://api.openai.com/v1",
        max_retries=0,
        timeout=options.timeout_s,
    ) as client:
        name = options.model.partition(":")[2]
        yield OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))


@contextlib.asynccontextmanager
async def _anthropic(options: ModelOptions) -> "AsyncIterator[models.Model[Any]]":
    from anthropic import AsyncAnthropic
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    async with AsyncAnthropic(
        api_key=options.key or "none",
        base_url=options.base_url or "https://api.anthropic.com",
        max_retries=0,
        timeout=options.timeout_s,
    ) as client:
        name = options.model.partition(":")[2]
        yield AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))


class PydanticModel:
    """Any model of pydantic-ai's. `secrets` never appear in what it says of failures."""

    def __init__(
        self,
        model: "models.Model[Any]",
        *,
        prices: Prices | None = None,
        secrets: Sequence[str] = (),
        max_output_tokens: int = 16_384,
        timeout_s: float = 600.0,
    ) -> None:
        self._model = model
        self._prices = prices
        self._secrets = tuple(secrets)
        self._settings = ModelSettings(max_tokens=max_output_tokens, timeout=timeout_s)

    @property
    def name(self) -> str:
        """As people know it."""
        return f"{self._model.system}:{self._model.model_name}"

    @property
    def is_priced(self) -> bool:
        """Is the cost of its answers known?"""
        if self._prices is not None:
            return True
        asked = ModelResponse(
            parts=[],
            model_name=self._model.model_name,
            provider_name=self._model.system,
            provider_url=self._model.base_url,
        )
        return _listed_price(asked) is not None

    async def ask(
        self, instructions: str, turns: Sequence[Turn], offers: Sequence[Offer]
    ) -> Answer:
        """The next answer. ModelError: there is none."""
        tools = [
            ToolDefinition(
                name=offer.name,
                description=offer.doc,
                parameters_json_schema=dict(offer.schema),
                strict=False,  # Schemas of strangers are sent as they are.
            )
            for offer in offers
        ]
        try:
            response = await model_request(
                self._model,
                _messages(instructions, turns),
                model_settings=self._settings,
                model_request_parameters=ModelRequestParameters(function_tools=tools),
                instrument=False,
            )
        except (AgentRunError, UserError) as error:
            raise self._error(error) from None
        answer = read_answer(response)
        return replace(answer, usage=self._usage(response))

    def _usage(self, response: ModelResponse) -> Usage:
        used = response.usage
        tokens = {
            "input_tokens": max(0, used.input_tokens),
            "output_tokens": max(0, used.output_tokens),
        }
        if self._prices is None:
            price = _listed_price(response)
            return Usage(**tokens, cost=None if price is None else float(price))
        cost = (
            tokens["input_tokens"] * self._prices.input
            + tokens["output_tokens"] * self._prices.output
        ) / 1_000_000
        return Usage(**tokens, cost=cost)

    def _error(self, error: AgentRunError | UserError) -> ModelError:
        said = redact(" ".join(str(error).split())[:2000], self._secrets)
        wait_s = error.retry_after if isinstance(error, ModelAPIError) else None
        status = error.status_code if isinstance(error, ModelHTTPError) else None
        return ModelError(
            f"{self.name} has not answered: {said}",
            hint=_HINTS.get(status or 0, ""),
            is_passing=isinstance(error, _PASSING)
            or status in (408, 409, 429, 500, 502, 503, 504, 529),
            is_too_long=isinstance(error, ModelContextWindowExceededError) or status == 413,
            wait_s=wait_s,
        )


_HINTS: Final[Mapping[int, str]] = {
    401: "is the key the right one for this address? agent.api_key_env names its variable",
    403: "may this key use this model?",
    404: "is the model's name right, and agent.base_url complete (often it ends with /v1)?",
}


def _listed_price(response: ModelResponse) -> Decimal | None:
    try:
        return response.cost().total_price
    except (LookupError, ValueError, AssertionError):
        return None


# --- Messages --------------------------------------------------------------------------------


def _messages(instructions: str, turns: Sequence[Turn]) -> list[ModelMessage]:
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
    return found, ""


def _whole(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
