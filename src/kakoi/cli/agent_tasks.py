"""`kakoi agent` on tasks of trackers: one, or those of the queue, until all is done or a signal."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from kakoi.agent.events import Event
from kakoi.agent.servers import Ask
from kakoi.agent.tools import MCPToolClient, open_tools
from kakoi.cli.agent_view import View
from kakoi.cli.extras import load
from kakoi.cli.live import Signals
from kakoi.config.agents import servers_from
from kakoi.config.handlers import OpenTools, open_environments, sweep, task_handler
from kakoi.config.recording import audit_file
from kakoi.config.settings import Settings
from kakoi.config.sources import task_getter, task_queue
from kakoi.errors import KakoiError
from kakoi.gate import Gate
from kakoi.printable import shown
from kakoi.tasks.consuming import Consumed, Consumer, Produced, produce
from kakoi.tasks.queue import TaskQueue
from kakoi.tasks.removal import sweep_once
from kakoi.tasks.sources.source import TaskGetter

_T = TypeVar("_T")
_FAILED: Final = 1


class Tasks:
    """What the settings describe, with a view for people. `as_json`: a line for each task."""

    def __init__(
        self, settings: Settings, view: View, *, as_json: bool, quiet: bool, ask: Ask | None = None
    ) -> None:
        self._settings = settings
        self._view = view
        self._as_json = as_json
        self._quiet = quiet
        self._ask = ask

    # --- Doors -------------------------------------------------------------------------------

    def run(self, key: str) -> int:
        """Do one task; the exit status."""
        return self._until_signal(self._run(key))

    def consume(self, *, continuous: bool) -> int:
        """Do what is in the queue; the exit status."""
        return self._until_signal(self._consume(continuous=continuous))

    def produce(self, *, continuous: bool) -> int:
        """Queue what waits on the trackers; the exit status."""
        return self._until_signal(self._produce(continuous=continuous))

    def _until_signal(self, work: Coroutine[Any, Any, int]) -> int:
        return asyncio.run(self._caught(work))

    async def _caught(self, work: Coroutine[Any, Any, int]) -> int:
        signals = Signals()
        with signals.caught():
            doing = asyncio.ensure_future(work)
            signals.end(doing)
            await asyncio.wait([doing])
        self._view.flush()
        if doing.cancelled():
            return 128 + (signals.received or 2)
        return doing.result()

    # --- Work --------------------------------------------------------------------------------

    async def _run(self, key: str) -> int:
        async with self._open() as (getter, consumer):
            task = await getter.fetch(key)
            consumed = await consumer.consume_this(task)
            self._tell(consumed)
        return _status(consumed)

    async def _consume(self, *, continuous: bool) -> int:
        pause_s = self._settings.tasks.queue.poll_seconds
        status = 0
        async with self._open(for_many=continuous) as (_getter, consumer):
            while True:
                consumed = await self._patiently(consumer.consume, continuous=continuous)
                if consumed is not None:
                    self._tell(consumed)
                    status = max(status, _status(consumed))
                elif not continuous:
                    return status
                if consumed is None or consumed.is_back:
                    await asyncio.sleep(pause_s)

    async def _produce(self, *, continuous: bool) -> int:
        pause_s = self._settings.tasks.sources.interval_seconds
        async with self._sweeping(continuous=continuous), task_getter(self._settings) as getter:
            queue = task_queue(self._settings)
            try:
                while True:
                    produced = await self._patiently(
                        lambda: produce(getter, queue), continuous=continuous
                    )
                    if produced is not None:
                        self._tell_produced(produced)
                    if not continuous:
                        return _FAILED if produced is None or produced.failures else 0
                    await asyncio.sleep(pause_s)
            finally:
                await _closed(queue)

    async def _patiently(
        self, once: Callable[[], Awaitable[_T | None]], *, continuous: bool
    ) -> _T | None:
        """What it gives. Who goes on for ever is not ended by a queue that is away for a while."""
        try:
            return await once()
        except KakoiError as error:
            if not continuous:
                raise
            self._view.say(f"kakoi: {shown(str(error))}")
            return None

    @contextlib.asynccontextmanager
    async def _sweeping(self, *, continuous: bool) -> AsyncIterator[None]:
        """Look for leftovers now, and while it goes on every now and then."""
        settings = self._settings
        interval = timedelta(hours=settings.tasks.cleanup.interval_hours)
        async with open_environments(settings) as environments:
            await sweep_once(lambda: sweep(settings, environments))

            async def again() -> None:
                while True:
                    await asyncio.sleep(interval.total_seconds())
                    await sweep_once(lambda: sweep(settings, environments))

            sweeping = asyncio.ensure_future(again()) if continuous else None
            try:
                yield
            finally:
                if sweeping is not None:
                    sweeping.cancel()
                    await asyncio.wait([sweeping])

    @contextlib.asynccontextmanager
    async def _open(self, *, for_many: bool = False) -> AsyncIterator[tuple[TaskGetter, Consumer]]:
        settings = self._settings
        async with (
            open_environments(settings, for_many=for_many) as environments,
            task_getter(settings) as getter,
        ):
            handler = task_handler(settings, environments, self._tools(), listener=self._show)
            queue = task_queue(settings)
            attempts = settings.tasks.queue.max_attempts
            try:
                yield getter, Consumer(queue, getter, handler, max_attempts=attempts)
            finally:
                await _closed(queue)

    def _tools(self) -> OpenTools:
        settings = self._settings
        serving = load("kakoi.mcp_server.serving", extra="mcp", what="the agent")
        others = servers_from(settings.agent)

        @contextlib.asynccontextmanager
        async def tools(gate: Gate, workspace: str) -> AsyncIterator[MCPToolClient]:
            async with (
                serving.open_house_behind(
                    gate,
                    settings=settings,
                    workspace=workspace,
                    audit_file=audit_file(settings),
                    is_here=settings.tasks.place == "folder",
                ) as house,
                open_tools(serving.make_server(house), others, ask=self._ask) as client,
            ):
                yield client

        return tools

    # --- What people see ---------------------------------------------------------------------

    def _show(self, event: Event) -> None:
        if not self._quiet:
            self._view(event)

    def _tell(self, consumed: Consumed) -> None:
        self._view.say(f"kakoi: {_sentence(consumed)}")
        if self._as_json:
            self._print(_as_dict(consumed))

    def _tell_produced(self, produced: Produced) -> None:
        for failure in produced.failures:
            self._view.say(f"kakoi: warning: {shown(str(failure))}")
        if self._as_json:
            failures = [str(each) for each in produced.failures]
            self._print({"queued": produced.queued, "failures": failures})
            return
        for key in produced.queued:
            self._view.say(f"kakoi: queued {shown(key)}")

    def _print(self, value: object) -> None:
        self._view.flush()
        click.echo(json.dumps(value))
        sys.stdout.flush()


def _status(consumed: Consumed) -> int:
    if consumed.error:
        return _FAILED
    return _FAILED if consumed.handled and consumed.handled.stage != "done" else 0


def _sentence(consumed: Consumed) -> str:
    handled, key = consumed.handled, shown(consumed.key)
    if handled is None:
        return f"{key}: {shown(consumed.error) or 'nothing is to be done any more'}"
    where = handled.url or (handled.branch and f"branch {handled.branch}")
    told = [handled.stage, shown(where), shown(" ".join(handled.error.split()))]
    return f"{key}: {', '.join(part for part in told if part)}"


def _as_dict(consumed: Consumed) -> dict[str, object]:
    handled = consumed.handled
    if handled is None:
        return {"task": consumed.key, "stage": None, "error": consumed.error}
    ended = handled.ended
    return {
        "task": consumed.key,
        "stage": handled.stage,
        "outcome": None if ended is None else str(ended.outcome),
        "summary": handled.summary,
        "error": handled.error,
        "branch": handled.branch,
        "url": handled.url,
        "steps": 0 if ended is None else ended.steps,
        "cost": None if ended is None else ended.usage.cost,
        "transcript": None if handled.transcript is None else str(handled.transcript),
    }


async def _closed(queue: TaskQueue) -> None:
    with contextlib.suppress(KakoiError):
        await queue.aclose()


def is_a_task(target: str) -> bool:
    """Is it an address, or a file that names its own repository?"""
    if "://" in target:
        return True
    try:
        with Path(target).open("rb") as file:
            return file.read(4).rstrip(b"\r\n") == b"---"
    except OSError:
        return False
