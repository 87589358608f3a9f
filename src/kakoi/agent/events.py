"""What happens in a loop, as values: a live view, a transcript and tests are told the same."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from kakoi.agent.conversation import Usage


class Outcome(StrEnum):
    """Why a loop ended."""

    DONE = "done"
    GAVE_UP = "gave_up"
    STEP_LIMIT = "step_limit"
    TIME_LIMIT = "time_limit"
    COST_LIMIT = "cost_limit"
    NONSENSE = "nonsense"
    MODEL_FAILED = "model_failed"
    PAUSED = "paused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A loop has begun: who is asked, with which tools, and what it is told first."""

    model: str
    tools: tuple[str, ...]
    instructions: str
    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """The model is asked. `tokens`: how long the conversation is, by estimate."""

    step: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSaid:
    """It has answered; `total` is what all answers took."""

    step: int
    text: str
    usage: Usage
    total: Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailed:
    """It has not; it is asked again in `wait_s`."""

    step: int
    error: str
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    """It asks for a tool. `fault`: why that cannot be read."""

    step: int
    id: str
    tool: str
    arguments: Mapping[str, Any]
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswered:
    """What the model is told came of it."""

    step: int
    id: str
    tool: str
    text: str
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelTold:
    """We say something to the model between its answers: a reminder, or a moment to reflect."""

    step: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShortened:
    """Old turns were shortened, so that the conversation fits."""

    step: int
    shortened: int
    dropped: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """All over. `summary`: what the model says it did; `error`: what went wrong."""

    outcome: Outcome
    steps: int
    usage: Usage
    summary: str = ""
    error: str = ""

    @property
    def is_success(self) -> bool:
        """Is the work done, as far as the model can tell?"""
        return self.outcome is Outcome.DONE


Event = (
    Began
    | StepStarted
    | ModelSaid
    | ModelFailed
    | ToolCalled
    | ToolAnswered
    | ModelTold
    | ContextShortened
    | Ended
)
Listener = Callable[[Event], None]
