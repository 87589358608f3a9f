"""The events of a loop, as values, for the live view, the transcript and tests.

The names of these classes are part of the transcript format.
"""

from collections.abc import Callable, Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

from kakoi._support.late import dataclass
from kakoi.agents.conversation import TokenUsage


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
class LoopStarted:
    """A loop has begun: its model, tools, instructions and prompt."""

    model: str
    tools: tuple[str, ...]
    instructions: str
    prompt: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted:
    """The model is asked. `tokens`: the estimated length of the conversation."""

    step: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReplied:
    """The model has answered. `total`: the usage of all answers so far."""

    step: int
    text: str
    usage: TokenUsage
    total: TokenUsage


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFailed:
    """The model has failed to answer; it is asked again in `wait_s`."""

    step: int
    error: str
    wait_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCalled:
    """The model calls a tool. `fault`: why the call cannot be read."""

    step: int
    id: str
    tool: str
    arguments: Mapping[str, Any]
    fault: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAnswered:
    """The reply of a tool, as the model sees it."""

    step: int
    id: str
    tool: str
    text: str
    is_error: bool = False
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelReminded:
    """A message to the model between its answers: a reminder, or a request to reflect."""

    step: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextShortened:
    """Old turns were shortened to make the conversation fit."""

    step: int
    shortened: int
    dropped: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopEnded:
    """The loop has ended. `summary`: what the model says it did; `error`: what went wrong."""

    outcome: Outcome
    steps: int
    usage: TokenUsage
    summary: str = ""
    error: str = ""

    @property
    def is_success(self) -> bool:
        """Whether the work is done, according to the model."""
        return self.outcome is Outcome.DONE


AgentEvent = (
    LoopStarted
    | StepStarted
    | ModelReplied
    | ModelFailed
    | ToolCalled
    | ToolAnswered
    | ModelReminded
    | ContextShortened
    | LoopEnded
)
EventListener = Callable[[AgentEvent], None]
