"""The loop: ask the model, do what it asks for, until it is done or a limit is reached.

An answer is unreadable if there is nothing in it to do: no request for a tool that exists, with
arguments that are an object, and no word that the work is done. The model is told so; five of them
in a row end the loop.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from kakoi.agent.context import Context
from kakoi.agent.conversation import (
    Answer,
    Model,
    Offer,
    Replies,
    Reply,
    Request,
    Told,
    Tools,
    Turn,
    Usage,
)
from kakoi.agent.events import (
    Began,
    ContextShortened,
    Ended,
    Event,
    Listener,
    ModelFailed,
    ModelSaid,
    ModelTold,
    Outcome,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kakoi.agent.reflection import Reflection, Situation, is_failure, reflect
from kakoi.errors import ConfigurationError, ModelError

DONE: Final = Offer(
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
_LONGEST_SUMMARY: Final = 20_000
_LONGEST_WAIT_S: Final = 300.0
_ENDING_S: Final = 30.0
_MOST_SHRINKS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How far a loop may go. `cost`: in US dollars, None for no limit.

    `reflect_every`: after so many steps the model is asked to look back; 0 for never.
    """

    steps: int = 100
    seconds: float = 3600.0
    cost: float | None = None
    unreadable: int = 5
    retries: int = 5
    window_tokens: int = 128_000
    reflect_every: int = 0


@dataclass(slots=True)
class _State:
    """How far it is."""

    context: Context
    step: int = 0
    usage: Usage = field(default_factory=Usage)
    unreadable: int = 0
    failures: int = 0


def ignore(_event: Event) -> None:
    """A listener that does not listen."""


class AgentLoop:
    """One task's loop. `listener` is told all that happens; if it raises, the loop ends with that.

    `reflection` says what the model is to think about after a step, if anything.
    """

    def __init__(
        self,
        model: Model,
        tools: Tools,
        *,
        limits: Limits | None = None,
        listener: Listener = ignore,
        reflection: Reflection = reflect,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._model = model
        self._tools = tools
        self._limits = limits or Limits()
        self._listener = listener
        self._reflection = reflection
        self._sleep = sleep
        self._work: asyncio.Task[Ended] | None = None
        self._is_pausing = False
        if self._limits.cost is not None and not model.is_priced:
            raise ConfigurationError(
                f"agent.max_cost cannot be kept: nobody knows the price of {model.name}",
                hint="set agent.input_price and agent.output_price, or agent.max_cost to 0",
            )

    def pause(self) -> None:
        """End at once with `Outcome.PAUSED`: what is under way is given up."""
        self._is_pausing = True
        if self._work is not None:
            self._work.cancel()

    async def run(self, instructions: str, prompt: str, earlier: Sequence[Turn] = ()) -> Ended:
        """Work on `prompt` to the end. `earlier`: what was said before a pause.

        Whoever cancels it gets the cancellation, after `Ended` was told.
        """
        offers = [each for each in self._tools.offers if each.name != DONE.name]
        context = Context(instructions, [*offers, DONE], window_tokens=self._limits.window_tokens)
        context.turns = [Told(text=prompt), *earlier]
        state = _State(context)
        names = tuple(offer.name for offer in context.offers)
        self._listener(
            Began(model=self._model.name, tools=names, instructions=instructions, prompt=prompt)
        )
        ended = await self._watch(asyncio.ensure_future(self._steps(state)), state)
        self._listener(ended)
        return ended

    async def _watch(self, work: "asyncio.Task[Ended]", state: _State) -> Ended:
        self._work = work
        if self._is_pausing:
            work.cancel()
        try:
            await asyncio.wait([work], timeout=self._limits.seconds)
        except asyncio.CancelledError:
            await _given_up(work)
            self._listener(self._ended(state, Outcome.CANCELLED))
            raise
        if not work.done():
            await _given_up(work)
            said = f"the time limit of {self._limits.seconds:g} s is reached"
            return self._ended(state, Outcome.TIME_LIMIT, error=said)
        if work.cancelled():
            return self._ended(state, Outcome.PAUSED)
        return work.result()

    def _ended(
        self, state: _State, outcome: Outcome, *, summary: str = "", error: str = ""
    ) -> Ended:
        return Ended(
            outcome=outcome, steps=state.step, usage=state.usage, summary=summary, error=error
        )

    # --- Steps -------------------------------------------------------------------------------

    async def _steps(self, state: _State) -> Ended:
        while (limit := self._limit(state)) is None:
            state.step += 1
            try:
                answer = await self._ask(state)
            except ModelError as error:
                way = f" ({error.hint})" if error.hint else ""
                return self._ended(state, Outcome.MODEL_FAILED, error=f"{error}{way}")
            if self._limits.cost is not None and not answer.usage.input_tokens:
                said = "the model does not report its usage, so agent.max_cost cannot be kept"
                return self._ended(state, Outcome.COST_LIMIT, error=said)
            ended = await self._act(state, answer)
            if ended is not None:
                return ended
        return limit

    def _limit(self, state: _State) -> Ended | None:
        limits = self._limits
        if state.unreadable >= limits.unreadable:
            said = f"{state.unreadable} answers in a row could not be read"
            return self._ended(state, Outcome.NONSENSE, error=said)
        if limits.cost is not None and (state.usage.cost or 0) >= limits.cost:
            said = f"the cost limit of {limits.cost:g} USD is reached"
            return self._ended(state, Outcome.COST_LIMIT, error=said)
        if state.step >= limits.steps:
            said = f"the limit of {limits.steps} steps is reached"
            return self._ended(state, Outcome.STEP_LIMIT, error=said)
        return None

    async def _ask(self, state: _State) -> Answer:
        context = state.context
        self._fit(state, shrink=False)
        self._listener(StepStarted(step=state.step, tokens=context.tokens))
        tries = shrinks = 0
        while True:
            try:
                answer = await self._model.ask(context.instructions, context.turns, context.offers)
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
        context.measured(answer.usage.input_tokens)
        state.usage += answer.usage
        context.turns.append(answer)
        self._listener(
            ModelSaid(step=state.step, text=answer.text, usage=answer.usage, total=state.usage)
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

    async def _act(self, state: _State, answer: Answer) -> Ended | None:
        finished = _finished(answer)
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
        state.context.turns.append(Replies(replies=tuple(replies)))
        known = {offer.name for offer in state.context.offers}
        readable = any(not each.fault and each.tool in known for each in answer.requests)
        state.unreadable = 0 if readable else state.unreadable + 1
        state.failures = state.failures + 1 if any(map(is_failure, replies)) else 0
        self._reflect(state, replies)
        return None

    async def _do(self, state: _State, request: Request) -> Reply:
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
            reply = Reply(request=request, text=request.fault, is_error=True)
        elif request.tool == DONE.name:
            reply = Reply(request=request, text=_NOT_YET, is_error=True)
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

    def _reflect(self, state: _State, replies: Sequence[Reply]) -> None:
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
        state.context.turns.append(Told(text=text))
        self._listener(ModelTold(step=state.step, text=text))


async def _given_up(work: "asyncio.Task[Ended]") -> None:
    """Cancel it, and see it end: a tool that is called is told so, and ends what it runs."""
    work.cancel()
    await asyncio.wait([work], timeout=_ENDING_S)


def _finished(answer: Answer) -> dict[str, Any] | None:
    """What the model says when it is done: by the tool, or as JSON in its text (spec A, 7.1)."""
    if answer.requests:
        only = answer.requests[0]
        is_done = len(answer.requests) == 1 and only.tool == DONE.name and not only.fault
        return dict(only.arguments) if is_done else None
    block = _first_fenced(answer.text)
    try:
        said = json.loads(answer.text if block is None else block)
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict) or said.get("done") is not True:
        return None
    return {**said, "summary": said.get("summary") or said.get("comment") or ""}


def _first_fenced(text: str) -> str | None:
    """What stands between the first two fences of a text; None if there are none.

    Line by line: a pattern for it takes minutes over some thousand empty lines.
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
