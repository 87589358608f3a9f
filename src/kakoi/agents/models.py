"""Language models, through pydantic-ai's classes (docs/adr/0018).

    openai:NAME      OpenAI, or any server that speaks its chat format, by address
    anthropic:NAME   Anthropic

Only this module and `messages` import pydantic-ai, and only the vendor that is configured.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import field, replace
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
from pydantic_ai.messages import ModelResponse
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.settings import ModelSettings
from pydantic_ai.tools import ToolDefinition

from kakoi._support.late import dataclass
from kakoi._support.redact import redact
from kakoi.agents.conversation import ModelAnswer, TokenUsage, ToolDescription, Turn
from kakoi.agents.http import BadResponse, find_bad_response, restricted_client
from kakoi.agents.messages import messages_from_turns, read_answer
from kakoi.errors import ConfigurationError, ModelError
from kakoi.settings.agent import AgentSection

_DEFAULTS: Final = AgentSection()
PROVIDERS: Final = ("openai", "anthropic")
_PASSING: Final = (
    ModelConnectionError,
    ModelRateLimitError,
    ModelRequestTimeout,
    ModelServerError,
    ModelUnavailableError,
)
# What the library raises on a malformed response: it trusts its servers.
_UNREADABLE: Final = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
_CHECK_ADDRESS: Final = "check that agent.base_url is the address of the model API"
_ADDRESS_HINT: Final = "set agent.base_url, for example http://127.0.0.1:8000/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """US dollars for a million tokens."""

    input: float
    output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """Which model, where. `base_url`: empty is the vendor's own address.

    `prices`: None means the prices that the library knows. `key`: a secret, never shown.
    """

    model: str
    base_url: str = ""
    key: str = field(default="", repr=False)
    prices: Prices | None = None
    timeout_s: float = _DEFAULTS.request_timeout
    max_output_tokens: int = _DEFAULTS.max_output_tokens

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
        raise ConfigurationError("agent.base_url is not an HTTP URL", hint=_ADDRESS_HINT)
    if parts.username or parts.password:
        raise ConfigurationError(
            "agent.base_url contains a user name or a password",
            hint="set agent.api_key_env to the name of the variable that holds the key",
        )


@contextlib.asynccontextmanager
async def open_model(options: ModelOptions) -> AsyncIterator["PydanticModel"]:
    """Open the model; its connections are closed at the end."""
    if not options.key and not options.base_url:
        raise ConfigurationError(
            f"no API key for {options.provider}",
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
    from openai import AsyncOpenAI, DefaultAsyncHttpxClient
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider

    async with AsyncOpenAI(
        api_key=options.key or "none",  # The client requires one; a local server ignores it.
        base_url=options.base_url or "https://api.openai.com/v1",
        max_retries=0,
        timeout=options.timeout_s,
        http_client=restricted_client(DefaultAsyncHttpxClient, timeout_s=options.timeout_s),
    ) as client:
        name = options.model.partition(":")[2]
        yield OpenAIChatModel(name, provider=OpenAIProvider(openai_client=client))


@contextlib.asynccontextmanager
async def _anthropic(options: ModelOptions) -> "AsyncIterator[models.Model[Any]]":
    from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    async with AsyncAnthropic(
        api_key=options.key or "none",
        base_url=options.base_url or "https://api.anthropic.com",
        max_retries=0,
        timeout=options.timeout_s,
        http_client=restricted_client(DefaultAsyncHttpxClient, timeout_s=options.timeout_s),
    ) as client:
        name = options.model.partition(":")[2]
        yield AnthropicModel(name, provider=AnthropicProvider(anthropic_client=client))


class PydanticModel:
    """Any pydantic-ai model. `secrets` never appear in its error messages."""

    def __init__(
        self,
        model: "models.Model[Any]",
        *,
        prices: Prices | None = None,
        secrets: Sequence[str] = (),
        max_output_tokens: int = _DEFAULTS.max_output_tokens,
        timeout_s: float = _DEFAULTS.request_timeout,
    ) -> None:
        self._model = model
        self._prices = prices
        self._secrets = tuple(secrets)
        self._timeout_s = timeout_s
        self._settings = ModelSettings(max_tokens=max_output_tokens, timeout=timeout_s)

    @property
    def name(self) -> str:
        """The name of the model."""
        return f"{self._model.system}:{self._model.model_name}"

    @property
    def is_priced(self) -> bool:
        """Whether the cost of its answers is known."""
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
        self, instructions: str, turns: Sequence[Turn], tools: Sequence[ToolDescription]
    ) -> ModelAnswer:
        """Return the next answer. Raises ModelError."""
        definitions = [
            ToolDefinition(
                name=each.name,
                description=each.doc,
                parameters_json_schema=dict(each.schema),
                strict=False,  # Schemas of other servers are sent unchanged.
            )
            for each in tools
        ]
        messages = messages_from_turns(instructions, turns)
        try:
            # The clients' own timeout is per read; a server could send a byte now and then.
            async with asyncio.timeout(self._timeout_s):
                response = await model_request(
                    self._model,
                    messages,
                    model_settings=self._settings,
                    model_request_parameters=ModelRequestParameters(function_tools=definitions),
                    instrument=False,
                )
            answer = replace(read_answer(response), usage=self._usage(response))
        except TimeoutError:
            message = f"{self.name} did not answer within {self._timeout_s:g} s"
            raise ModelError(message, is_passing=True) from None
        except (AgentRunError, UserError, BadResponse) as error:
            raise self._error(error) from None
        except _UNREADABLE as error:
            message = f"{self.name} did not answer: its response cannot be read"
            raise ModelError(f"{message} ({type(error).__name__})", hint=_CHECK_ADDRESS) from error
        return answer

    def _usage(self, response: ModelResponse) -> TokenUsage:
        used = response.usage
        tokens = {
            "input_tokens": max(0, used.input_tokens),
            "output_tokens": max(0, used.output_tokens),
        }
        if self._prices is None:
            price = _listed_price(response)
            return TokenUsage(**tokens, cost=None if price is None else float(price))
        cost = (
            tokens["input_tokens"] * self._prices.input
            + tokens["output_tokens"] * self._prices.output
        ) / 1_000_000
        return TokenUsage(**tokens, cost=cost)

    def _error(self, error: AgentRunError | UserError | BadResponse) -> ModelError:
        refused = find_bad_response(error)
        if refused is not None:
            message = redact(f"{self.name} did not answer: {refused}", self._secrets)
            return ModelError(message, hint=_CHECK_ADDRESS)
        message = redact(" ".join(str(error).split())[:2000], self._secrets)
        wait_s = error.retry_after if isinstance(error, ModelAPIError) else None
        status = error.status_code if isinstance(error, ModelHTTPError) else None
        return ModelError(
            f"{self.name} did not answer: {message}",
            hint=_HINTS.get(status or 0, ""),
            is_passing=isinstance(error, _PASSING)
            or status in (408, 409, 429, 500, 502, 503, 504, 529),
            is_too_long=isinstance(error, ModelContextWindowExceededError) or status == 413,
            wait_s=wait_s,
        )


_HINTS: Final[Mapping[int, str]] = {
    401: "check that the key is right for this address; agent.api_key_env names its variable",
    403: "check that this key can use this model",
    404: "check the name of the model, and that agent.base_url is complete (often it ends in /v1)",
}


def _listed_price(response: ModelResponse) -> Decimal | None:
    try:
        return response.cost().total_price
    except (LookupError, ValueError, AssertionError):
        return None
