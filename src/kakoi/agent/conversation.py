"""What a model and tools say to each other, as values; and who a model and tools are.

Nothing here knows a vendor or a protocol: the loop, the transcript and the view live on these.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

# Beyond it the libraries of vendors give up, and Python itself soon after.
_DEEPEST: Final = 64


def is_too_deep(value: object) -> bool:
    """Is a JSON value nested deeper than anybody means it?"""
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for each in level for inner in _inside(each)]
    return bool(level)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What answers took. `cost`: in US dollars; None if nobody knows the price."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost: float | None = None

    def __add__(self, other: "Usage") -> "Usage":
        costs = [each for each in (self.cost, other.cost) if each is not None]
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cost=sum(costs) if costs else None,
        )


# --- Tools -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A tool as the model is told of it. `schema`: of its arguments, an object."""

    name: str
    doc: str
    schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A model asks for a tool. `fault`: why the request cannot be read; empty if it can."""

    id: str
    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of a request. `meta`: what programs want to know of it (`job_id`, `verdict`, …)."""

    request: Request
    text: str
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)


class Tools(Protocol):
    """What can be asked for."""

    @property
    def offers(self) -> Sequence[Offer]:
        """Every tool, each name once."""
        ...

    async def call(self, request: Request) -> Reply:
        """Do it. A tool that fails, hangs or is gone is a reply, too."""
        ...


# --- Turns -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """We say something to the model."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The model says something. `raw`: handed back unchanged to the model that said it."""

    text: str = ""
    requests: tuple[Request, ...] = ()
    usage: Usage = Usage()
    raw: object = field(default=None, compare=False, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replies:
    """What came of everything that one answer asked for, in its order."""

    replies: tuple[Reply, ...]


Turn = Told | Answer | Replies


class Model(Protocol):
    """Whoever answers."""

    @property
    def name(self) -> str:
        """As people know it."""
        ...

    @property
    def is_priced(self) -> bool:
        """Is the cost of its answers known?"""
        ...

    async def ask(
        self, instructions: str, turns: Sequence[Turn], offers: Sequence[Offer]
    ) -> Answer:
        """The next answer. `kakoi.errors.ModelError`: there is none."""
        ...
