"""The loop: ask the model and call the tools it asks for, until it is done or hits a limit.

An answer is unreadable if it contains nothing to do: no call of an existing tool with an object as
arguments, and no statement that the work is done. The model gets a reminder; five unreadable
answers in a row end the loop.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi.agents.context import ContextWindow
from kakoi.agents.conversation import (
    Model,
    ModelAnswer,
    TokenUsage,
    ToolDescription,
    ToolReplies,
    ToolReply,
    ToolRequest,
    Tools,
    Turn,
    UserMessage,
)
from kakoi.agents.events import (
    AgentEvent,
    ContextShortened,
    EventListener,
    LoopEnded,
    LoopStarted,
    ModelFailed,
    ModelReminded,
    ModelReplied,
    Outcome,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kakoi.errors import ConfigurationError, ModelError
from kakoi.results import Reason
from kakoi.settings.agent import AgentSection

# One failure is information; two in a row are a pattern.
_FAILURES: Final = 2
_REASONS: Final = frozenset(
    str(reason) for reason in (Reason.TIMED_OUT, Reason.SANDBOX_LOST, Reason.NEVER_STARTED)
)
# The shell's exit codes for a program that cannot run or was not found.
_EXIT_CODES: Final = (126, 127)


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """The state after a step. `failures`: failed steps in a row; `is_due`: by step count."""

    step: int
    most_steps: int
    failures: int
    replies: tuple[ToolReply, ...]
    is_due: bool


# Returns what to tell the model; empty to continue without a message.
Reflection = Callable[[Situation], str]


def is_failure(reply: ToolReply) -> bool:
    """Whether the call itself failed, rather than report something the model wanted to know.

    A failing test is an answer; a missing program is a failure.
    """
    return (
        reply.is_error
        or reply.meta.get("exit_code") in _EXIT_CODES
        or reply.meta.get("reason") in _REASONS
    )


def reflect(situation: Situation) -> str:
    """Ask the model to reflect after repeated failures, and when it is due by step count."""
    if situation.failures and situation.failures % _FAILURES == 0:
        return (
            f"Your last {situation.failures} steps have failed. Before you continue, say in a few "
            "words why, and what you will do differently. What was refused stays refused."
        )
    if situation.is_due:
        return (
            f"{situation.step} of {situation.most_steps} steps are used. Say in a few words what "
            "is done, what is left, and whether your plan is still the right one; then continue."
        )
    return ""


DONE: Final = ToolDescription(
    name="done",
    doc="Say that the work is done, or that it cannot be done. Call it alone, when you have seen "
    "what came of everything else.",
    schema={
        "type": "object",
        "properties": {
            "summary": {"type": "string", "description": "What was changed, and how it was tried."},
            "gave_up": {"type": "boolean", "description": "It cannot be done; summary says why."},
        },
        "required": ["summary"],
        "additionalProperties": False,
    },
)
_NOTHING_TO_DO: Final = (
    "There was nothing to do in your answer. Call one of the tools; when the work is done, call "
    "`done` with a summary."
)
_NOT_YET: Final = "not yet: look at what came of the other calls first, then call `done` alone"
_DEFAULTS: Final = AgentSection()
_LONGEST_SUMMARY: Final = 20_000
_LONGEST_WAIT_S: Final = 300.0
_ENDING_S: Final = 30.0
_MOST_SHRINKS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopLimits:
    """The limits of a loop. `cost`: in US dollars, None for no limit.

    `reflect_every`: ask the model to reflect every so many steps; 0 for never.
    """

    steps: int = _DEFAULTS.max_steps
    seconds: float = _DEFAULTS.max_seconds
    cost: float | None = None
    unreadable: int = 5
    retries: int = 5
    window_tokens: int = _DEFAULTS.context_window
    reflect_every: int = _DEFAULTS.reflect_every


@dataclass(slots=True)
class _State:
    """The progress of a loop."""

    context: ContextWindow
    step: int = 0
    usage: TokenUsage = field(default_factory=TokenUsage)
    unreadable: int = 0
    failures: int = 0


def ignore_events(_event: AgentEvent) -> None:
    """An event listener that does nothing."""


class AgentLoop:
    """The loop of one task. `listener` gets every event; if it raises, the loop ends with that.

    `reflection` returns what to ask the model to think about after a step, if anything.
    """

    def __init__(
        self,
        model: Model,
        tools: Tools,
        *,
        limits: LoopLimits | None = None,
        listener: EventListener = ignore_events,
        reflection: Reflection = reflect,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._model = model
        self._tools = tools
        self._limits = limits or LoopLimits()
        self._listener = listener
        self._reflection = reflection
        self._sleep = sleep
        self._work: asyncio.Task[LoopEnded] | None = None
        self._is_pausing = False
        if self._limits.cost is not None and not model.is_priced:
            raise ConfigurationError(
                f"agent.max_cost cannot be enforced: the price of {model.name} is unknown",
                hint="set agent.input_price and agent.output_price, or agent.max_cost to 0",
            )

    def pause(self) -> None:
        """End at once with `Outcome.PAUSED`; work in progress is cancelled."""
        self._is_pausing = True
        if self._work is not None:
            self._work.cancel()

    async def run(self, instructions: str, prompt: str, earlier: Sequence[Turn] = ()) -> LoopEnded:
        """Work on `prompt` to the end. `earlier`: the turns before a pause.

        If cancelled, CancelledError is raised after the listener got `LoopEnded`.
        """
        tools = [each for each in self._tools.tools if each.name != DONE.name]
        context = ContextWindow(
            instructions, [*tools, DONE], window_tokens=self._limits.window_tokens
        )
        context.turns = [UserMessage(text=prompt), *earlier]
        state = _State(context)
        names = tuple(tool.name for tool in context.tools)
        self._listener(
            LoopStarted(
                model=self._model.name, tools=names, instructions=instructions, prompt=prompt
            )
        )
        ended = await self._watch(asyncio.ensure_future(self._steps(state)), state)
        self._listener(ended)
        return ended

    async def _watch(self, work: "asyncio.Task[LoopEnded]", state: _State) -> LoopEnded:
        self._work = work
        if self._is_pausing:
            work.cancel()
        try:
            await asyncio.wait([work], timeout=self._limits.seconds)
        except asyncio.CancelledError:
            await _cancel(work)
            self._listener(self._ended(state, Outcome.CANCELLED))
            raise
        if not work.done():
            await _cancel(work)
            error = f"the time limit of {self._limits.seconds:g} s is reached"
            return self._ended(state, Outcome.TIME_LIMIT, error=error)
        if work.cancelled():
            return self._ended(state, Outcome.PAUSED)
        return work.result()

    def _ended(
        self, state: _State, outcome: Outcome, *, summary: str = "", error: str = ""
    ) -> LoopEnded:
        return LoopEnded(
            outcome=outcome, steps=state.step, usage=state.usage, summary=summary, error=error
        )

    # --- Steps -------------------------------------------------------------------------------

    async def _steps(self, state: _State) -> LoopEnded:
        while (limit := self._limit(state)) is None:
            state.step += 1
            try:
                answer = await self._ask(state)
            except ModelError as error:
                hint = f" ({error.hint})" if error.hint else ""
                return self._ended(state, Outcome.MODEL_FAILED, error=f"{error}{hint}")
            if self._limits.cost is not None and not answer.usage.input_tokens:
                why = "the model does not report its usage, so agent.max_cost cannot be enforced"
                return self._ended(state, Outcome.COST_LIMIT, error=why)
            ended = await self._act(state, answer)
            if ended is not None:
                return ended
        return limit

    def _limit(self, state: _State) -> LoopEnded | None:
        limits = self._limits
        if state.unreadable >= limits.unreadable:
            error = f"{state.unreadable} answers in a row could not be read"
            return self._ended(state, Outcome.NONSENSE, error=error)
        if limits.cost is not None and (state.usage.cost or 0) >= limits.cost:
            error = f"the cost limit of {limits.cost:g} USD is reached"
            return self._ended(state, Outcome.COST_LIMIT, error=error)
        if state.step >= limits.steps:
            error = f"the limit of {limits.steps} steps is reached"
            return self._ended(state, Outcome.STEP_LIMIT, error=error)
        return None

    async def _ask(self, state: _State) -> ModelAnswer:
        context = state.context
        self._fit(state, shrink=False)
        self._listener(StepStarted(step=state.step, tokens=context.tokens))
        tries = shrinks = 0
        while True:
            try:
                answer = await self._model.ask(context.instructions, context.turns, context.tools)
                break
            except ModelError as error:
                if error.is_too_long and shrinks < _MOST_SHRINKS and self._fit(state, shrink=True):
                    shrinks += 1
                    continue
                if not error.is_passing or tries >= self._limits.retries:
                    raise
                wait_s = min(max(error.wait_s or 0.0, 2.0**tries), _LONGEST_WAIT_S)
                tries += 1
                self._listener(ModelFailed(step=state.step, error=str(error), wait_s=wait_s))
                await self._sleep(wait_s)
        context.calibrate(answer.usage.input_tokens)
        state.usage += answer.usage
        context.turns.append(answer)
        self._listener(
            ModelReplied(step=state.step, text=answer.text, usage=answer.usage, total=state.usage)
        )
        return answer

    def _fit(self, state: _State, *, shrink: bool) -> bool:
        context = state.context
        done = context.shrink() if shrink else context.fit()
        if done:
            self._listener(
                ContextShortened(
                    step=state.step,
                    shortened=done.shortened,
                    dropped=done.dropped,
                    tokens=context.tokens,
                )
            )
        return bool(done)

    async def _act(self, state: _State, answer: ModelAnswer) -> LoopEnded | None:
        finished = _done_arguments(answer)
        if finished is not None:
            gave_up = finished.get("gave_up") is True
            return self._ended(
                state,
                Outcome.GAVE_UP if gave_up else Outcome.DONE,
                summary=str(finished.get("summary", ""))[:_LONGEST_SUMMARY],
            )
        if not answer.requests:
            state.unreadable += 1
            self._tell(state, _NOTHING_TO_DO)
            return None
        replies = [await self._do(state, request) for request in answer.requests]
        state.context.turns.append(ToolReplies(replies=tuple(replies)))
        known = {tool.name for tool in state.context.tools}
        readable = any(not each.fault and each.tool in known for each in answer.requests)
        state.unreadable = 0 if readable else state.unreadable + 1
        state.failures = state.failures + 1 if any(map(is_failure, replies)) else 0
        self._reflect(state, replies)
        return None

    async def _do(self, state: _State, request: ToolRequest) -> ToolReply:
        self._listener(
            ToolCalled(
                step=state.step,
                id=request.id,
                tool=request.tool,
                arguments=request.arguments,
                fault=request.fault,
            )
        )
        if request.fault:
            reply = ToolReply(request=request, text=request.fault, is_error=True)
        elif request.tool == DONE.name:
            reply = ToolReply(request=request, text=_NOT_YET, is_error=True)
        else:
            reply = await self._tools.call(request)
        self._listener(
            ToolAnswered(
                step=state.step,
                id=request.id,
                tool=request.tool,
                text=reply.text,
                is_error=reply.is_error,
                meta=reply.meta,
            )
        )
        return reply

    def _reflect(self, state: _State, replies: Sequence[ToolReply]) -> None:
        every = self._limits.reflect_every
        text = self._reflection(
            Situation(
                step=state.step,
                most_steps=self._limits.steps,
                failures=state.failures,
                replies=tuple(replies),
                is_due=bool(every) and state.step % every == 0,
            )
        )
        if text:
            self._tell(state, text)

    def _tell(self, state: _State, text: str) -> None:
        state.context.turns.append(UserMessage(text=text))
        self._listener(ModelReminded(step=state.step, text=text))


async def _cancel(work: "asyncio.Task[LoopEnded]") -> None:
    """Cancel the work and wait for it: a tool that is running gets cancelled and cleans up."""
    work.cancel()
    await asyncio.wait([work], timeout=_ENDING_S)


def _done_arguments(answer: ModelAnswer) -> dict[str, Any] | None:
    """Return the arguments of `done` if the model is done: by tool call, or as JSON in its text."""
    if answer.requests:
        only = answer.requests[0]
        is_done = len(answer.requests) == 1 and only.tool == DONE.name and not only.fault
        return dict(only.arguments) if is_done else None
    block = _first_fenced(answer.text)
    try:
        found = json.loads(answer.text if block is None else block)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("done") is not True:
        return None
    return {**found, "summary": found.get("summary") or found.get("comment") or ""}


def _first_fenced(text: str) -> str | None:
    """Return the text between the first two fences; None if there are none.

    Line by line: a regular expression takes minutes on thousands of empty lines.
    """
    block: list[str] | None = None
    for line in text.split("\n"):
        if block is None:
            block = [] if line.rstrip().endswith(("```", "```json")) else None
        elif line.lstrip().startswith("```"):
            return "\n".join(block)
        else:
            block.append(line)
    return None
