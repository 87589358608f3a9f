"""`kakoi agent` on tasks of trackers: one task, or the queue, until all are done or a signal."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from datetime import timedelta
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from kakoi._support.text import shown
from kakoi.agents.events import AgentEvent
from kakoi.agents.tools import AskUser
from kakoi.builtin.command_files import is_command_file
from kakoi.cli.io.agent_view import AgentView
from kakoi.cli.io.signals import Signals
from kakoi.errors import KakoiError
from kakoi.settings.model import Settings
from kakoi.settings.tasks import DESIGNED_SERVER_IS_OURS, EXECUTOR_IS_OFF, HOW_TO_ENABLE
from kakoi.tasks.containers import sweep_once
from kakoi.tasks.from_settings import task_getter, task_queue
from kakoi.tasks.handler_from_settings import open_environments, sweep, task_handler
from kakoi.tasks.queue.api import TaskQueue
from kakoi.tasks.sources.source import TaskGetter
from kakoi.tasks.worker import ConsumedTask, Consumer, QueuedTasks, produce

_T = TypeVar("_T")
_FAILED: Final = 1


class TrackerTasks:
    """Runs the tasks that the settings describe. `as_json`: print a line for each task."""

    def __init__(
        self,
        settings: Settings,
        view: AgentView,
        *,
        as_json: bool,
        quiet: bool,
        ask: AskUser | None = None,
    ) -> None:
        self._settings = settings
        self._view = view
        self._as_json = as_json
        self._quiet = quiet
        self._ask = ask

    # --- Entry points ------------------------------------------------------------------------

    def run(self, key: str) -> int:
        """Work on one task; returns the exit code."""
        return self._until_signal(self._run(key))

    def consume(self, *, continuous: bool) -> int:
        """Work on the tasks of the queue; returns the exit code."""
        return self._until_signal(self._consume(continuous=continuous))

    def produce(self, *, continuous: bool) -> int:
        """Queue the tasks that wait on the trackers; returns the exit code."""
        return self._until_signal(self._produce(continuous=continuous))

    def _until_signal(self, work: Coroutine[Any, Any, int]) -> int:
        return asyncio.run(self._caught(work))

    async def _caught(self, work: Coroutine[Any, Any, int]) -> int:
        signals = Signals()
        with signals.caught():
            doing = asyncio.ensure_future(work)
            signals.cancel_on_signal(doing)
            await asyncio.wait([doing])
        self._view.flush()
        if doing.cancelled():
            return 128 + (signals.received or 2)
        return doing.result()

    # --- Work --------------------------------------------------------------------------------

    async def _run(self, key: str) -> int:
        async with self._open() as (getter, consumer):
            task = await getter.fetch(key)
            consumed = await consumer.consume_task(task)
            self._report(consumed)
        return _status(consumed)

    async def _consume(self, *, continuous: bool) -> int:
        pause_s = self._settings.tasks.queue.poll_seconds
        status = 0
        async with self._open(for_many=continuous) as (_getter, consumer):
            while True:
                consumed = await self._retry_later(consumer.consume, continuous=continuous)
                if consumed is not None:
                    self._report(consumed)
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
                    produced = await self._retry_later(
                        lambda: produce(getter, queue), continuous=continuous
                    )
                    if produced is not None:
                        self._report_produced(produced)
                    if not continuous:
                        return _FAILED if produced is None or produced.failures else 0
                    await asyncio.sleep(pause_s)
            finally:
                await _closed(queue)

    async def _retry_later(
        self, once: Callable[[], Awaitable[_T | None]], *, continuous: bool
    ) -> _T | None:
        """The result of `once`. In continuous mode, an error is printed instead of raised."""
        try:
            return await once()
        except KakoiError as error:
            if not continuous:
                raise
            self._view.print_line(f"kakoi: {shown(str(error))}")
            return None

    @contextlib.asynccontextmanager
    async def _sweeping(self, *, continuous: bool) -> AsyncIterator[None]:
        """Remove leftovers now, and in continuous mode at every interval."""
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
            handler = task_handler(settings, environments, ask=self._ask, listener=self._show)
            server = settings.tasks.mcp_server
            if server.command and not server.is_foreign:
                self._view.print_line(f"kakoi: {DESIGNED_SERVER_IS_OURS}")
            if not settings.tasks.enabled:
                self._view.print_line(f"kakoi: warning: {EXECUTOR_IS_OFF}; {HOW_TO_ENABLE}")
            queue = task_queue(settings)
            attempts = settings.tasks.queue.max_attempts
            try:
                yield getter, Consumer(queue, getter, handler, max_attempts=attempts)
            finally:
                await _closed(queue)

    # --- Output for people ---------------------------------------------------------------------

    def _show(self, event: AgentEvent) -> None:
        if not self._quiet:
            self._view(event)

    def _report(self, consumed: ConsumedTask) -> None:
        self._view.print_line(f"kakoi: {_sentence(consumed)}")
        if self._as_json:
            self._print(_as_dict(consumed))

    def _report_produced(self, produced: QueuedTasks) -> None:
        for failure in produced.failures:
            self._view.print_line(f"kakoi: warning: {shown(str(failure))}")
        if self._as_json:
            failures = [str(each) for each in produced.failures]
            self._print({"queued": produced.queued, "failures": failures})
            return
        for key in produced.queued:
            self._view.print_line(f"kakoi: queued {shown(key)}")

    def _print(self, value: object) -> None:
        self._view.flush()
        click.echo(json.dumps(value))
        sys.stdout.flush()


def _status(consumed: ConsumedTask) -> int:
    if consumed.error:
        return _FAILED
    return _FAILED if consumed.result and consumed.result.stage != "done" else 0


def _sentence(consumed: ConsumedTask) -> str:
    handled, key = consumed.result, shown(consumed.key)
    if handled is None:
        return f"{key}: {shown(consumed.error) or 'nothing left to do'}"
    where = handled.url or (handled.branch and f"branch {handled.branch}")
    parts = [handled.stage, shown(where), shown(" ".join(handled.error.split()))]
    return f"{key}: {', '.join(part for part in parts if part)}"


def _as_dict(consumed: ConsumedTask) -> dict[str, object]:
    handled = consumed.result
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


def is_tracker_task(target: str) -> bool:
    """Is it a URL, or a file with front matter that is not a command file?"""
    if "://" in target:
        return True
    try:
        with Path(target).open("rb") as file:
            has_front_matter = file.read(4).rstrip(b"\r\n") == b"---"
    except OSError:
        return False
    return has_front_matter and not is_command_file(target)
