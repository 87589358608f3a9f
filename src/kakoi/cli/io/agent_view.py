"""The events of an agent as lines for people: steps, commands, verdicts, output, cost.

A thread writes them, so a paused terminal (Ctrl-S) does not block the agent.
"""

import json
import queue
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from kakoi._support.text import shown
from kakoi.agents.conversation import TokenUsage
from kakoi.agents.events import (
    AgentEvent,
    ContextShortened,
    LoopEnded,
    LoopStarted,
    ModelFailed,
    ModelReminded,
    ModelReplied,
    StepStarted,
    ToolAnswered,
    ToolCalled,
)
from kakoi.cli.io.streams import write_stderr

_WIDTH: Final = 200
_TEXT_LINES: Final = 12
_COMMAND_LINES: Final = 20
_TAIL_LINES: Final = 6
_FLUSH_S: Final = 5.0


class AgentView:
    """A listener that prints events. Call `flush` before anything else writes to stderr."""

    def __init__(self, *, color: bool) -> None:
        self._color = color
        self._texts: queue.SimpleQueue[str | threading.Event] = queue.SimpleQueue()
        threading.Thread(target=self._write, daemon=True).start()

    def __call__(self, event: AgentEvent) -> None:
        """Print an event."""
        for line in event_lines(event, color=self._color):
            self.print_line(line)

    def print_line(self, line: str) -> None:
        """Print a line."""
        self._texts.put(line + "\n")

    def flush(self) -> None:
        """Wait until everything is written, but not long: the terminal may be paused."""
        written = threading.Event()
        self._texts.put(written)
        written.wait(_FLUSH_S)

    def _write(self) -> None:
        while True:
            text = self._texts.get()
            if isinstance(text, threading.Event):
                text.set()
            else:
                write_stderr(text)


def event_lines(event: AgentEvent, *, color: bool) -> Iterator[str]:
    """The lines of an event, with all foreign text escaped."""
    paint = _Paint(color)
    if isinstance(event, LoopStarted):
        yield paint(
            f"kakoi: asking {_short(event.model)}, with {len(event.tools)} tools", bold=True
        )
    elif isinstance(event, StepStarted):
        yield paint(f"step {event.step}  (about {event.tokens} tokens)", bold=True)
    elif isinstance(event, ModelReplied):
        yield from _block("  ", event.text, _TEXT_LINES)
        yield paint(f"  {_usage(event.total)}", dim=True)
    elif isinstance(event, ModelFailed):
        yield paint(f"  {_short(event.error)}", fg="yellow")
        yield f"  asking again in {event.wait_s:g} s"
    elif isinstance(event, ToolCalled):
        yield from _call(event, paint)
    elif isinstance(event, ToolAnswered):
        yield from _answer(event, paint)
    elif isinstance(event, ModelReminded):
        yield paint(f"  kakoi: {_short(event.text)}", dim=True)
    elif isinstance(event, ContextShortened):
        text = f"{event.shortened} old answers shortened, {event.dropped} old steps dropped"
        yield paint(f"  {text}: about {event.tokens} tokens", dim=True)
    else:
        yield from _end(event, paint)


class _Paint:
    def __init__(self, color: bool) -> None:
        self._color = color

    def __call__(self, text: str, **style: Any) -> str:
        return click.style(text, **style) if self._color else text


def _call(event: ToolCalled, paint: _Paint) -> Iterator[str]:
    command = event.arguments.get("command")
    if isinstance(command, str):
        first, *rest = command.strip().splitlines()[:_COMMAND_LINES] or [""]
        yield paint(f"  $ {_short(first)}", fg="cyan")
        yield from (paint(f"    {_short(line)}", fg="cyan") for line in rest)
        return
    try:
        arguments = json.dumps(dict(event.arguments), ensure_ascii=False)
    except (TypeError, ValueError):
        arguments = "?"
    yield paint(f"  {_short(event.tool)} {_short(arguments)}", fg="cyan")


def _answer(event: ToolAnswered, paint: _Paint) -> Iterator[str]:
    verdict, color = _verdict(event.meta, is_error=event.is_error)
    lines = event.text.rstrip("\n").splitlines()
    left_out = len(lines) - _TAIL_LINES
    if verdict in ("refused", "not approved"):
        lines, left_out = lines[:_TAIL_LINES], 0
    yield paint(f"    {verdict}", fg=color)
    if left_out > 0:
        yield paint(f"    | … {left_out} lines", dim=True)
    yield from (f"    | {_short(line)}" for line in lines[-_TAIL_LINES:])


def _verdict(meta: Mapping[str, Any], *, is_error: bool) -> tuple[str, str]:
    if meta.get("verdict") == "deny":
        return "refused", "red"
    if meta.get("code") == "USER_CANCELLED":
        return "not approved", "yellow"
    code = meta.get("exit_code")
    if isinstance(code, int):
        return f"allowed, exit code {code}", "green" if code == 0 else "yellow"
    return ("failed", "red") if is_error else ("done", "green")


def _end(event: LoopEnded, paint: _Paint) -> Iterator[str]:
    color = "green" if event.is_success else "red"
    steps = "1 step" if event.steps == 1 else f"{event.steps} steps"
    words = str(event.outcome).replace("_", " ")
    yield paint(f"kakoi: {words} after {steps}, {_usage(event.usage)}", fg=color, bold=True)
    if event.error:
        yield f"  {shown(event.error)[:2000]}"
    yield from _block("  ", event.summary, 100)


def _usage(usage: TokenUsage) -> str:
    cost = "cost unknown" if usage.cost is None else f"{usage.cost:.4f} USD"
    return f"{usage.input_tokens} tokens read, {usage.output_tokens} written, {cost}"


def _block(indent: str, text: str, most: int) -> Iterator[str]:
    lines = text.strip().splitlines()
    yield from (f"{indent}{_short(line)}" for line in lines[:most])
    if len(lines) > most:
        yield f"{indent}… {len(lines) - most} lines"


def _short(line: str) -> str:
    # Cut first: escaping a megabyte in one line would be wasted.
    text = shown(line[: 2 * _WIDTH])
    return text if len(text) <= _WIDTH and len(line) <= 2 * _WIDTH else text[: _WIDTH - 1] + "…"
