"""The conversation between a model and tools, as values; and the interfaces of both.

Nothing here depends on a vendor or a protocol. The loop, the transcript and the live view use it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, Final, Protocol

from kakoi._support.late import dataclass

# Beyond this depth vendor libraries fail, and Python itself soon after.
_DEEPEST: Final = 64


def is_too_deep(value: object) -> bool:
    """Whether a JSON value is nested too deeply to be intended."""
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for each in level for inner in _inside(each)]
    return bool(level)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenUsage:
    """Tokens used by answers. `cost`: in US dollars; None if the price is unknown."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None

    def __add__(self, other: "TokenUsage") -> "TokenUsage":
        costs = [each for each in (self.cost, other.cost) if each is not None]
        return TokenUsage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=sum(costs) if costs else None,
        )


# --- Tools -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolDescription:
    """A tool as the model sees it. `schema`: the JSON Schema of its arguments, an object."""

    name: str
    doc: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRequest:
    """A tool call from a model. `fault`: why it cannot be read; empty if it can."""

    id: str
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReply:
    """The result of a tool call. `meta`: data for programs (`job_id`, `verdict`, …)."""

    request: ToolRequest
    text: str
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)


class Tools(Protocol):
    """The tools that a model can call."""

    @property
    def tools(self) -> Sequence[ToolDescription]:
        """Every tool, each name once."""
        ...

    async def call(self, request: ToolRequest) -> ToolReply:
        """Call the tool. A tool that fails, hangs or is gone also gives a reply."""
        ...


# --- Turns -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class UserMessage:
    """A message from kakoi to the model."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelAnswer:
    """An answer from the model. `raw`: passed back unchanged to the same model."""

    text: str = ""
    requests: tuple[ToolRequest, ...] = ()
    usage: TokenUsage = TokenUsage()
    raw: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolReplies:
    """The results of all tool calls of one answer, in order."""

    replies: tuple[ToolReply, ...]


Turn = UserMessage | ModelAnswer | ToolReplies


class Model(Protocol):
    """A language model."""

    @property
    def name(self) -> str:
        """The name of the model."""
        ...

    @property
    def is_priced(self) -> bool:
        """Whether the cost of its answers is known."""
        ...

    async def ask(
        self, instructions: str, turns: Sequence[Turn], tools: Sequence[ToolDescription]
    ) -> ModelAnswer:
        """Return the next answer. Raises `kakoi.errors.ModelError`."""
        ...
