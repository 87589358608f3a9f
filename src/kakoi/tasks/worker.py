"""Producer and consumer: queue the tasks that wait on the trackers, and handle queued tasks."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from kakoi._support.asyncio import finish
from kakoi._support.late import dataclass
from kakoi.errors import ConfigurationError, KakoiError, QueueError, SourceError
from kakoi.settings.tasks import QueueSection
from kakoi.tasks.comments import TaskResult, report
from kakoi.tasks.queue.api import Lease, TaskQueue, run_with_lease
from kakoi.tasks.sources.source import STAGES_DUE, TaskGetter, TaskSource, is_due
from kakoi.tasks.task import Task, uuid_from_key

_log = logging.getLogger(__name__)


class Handler(Protocol):
    """Handles a task."""

    async def handle(self, task: Task, source: TaskSource, *, attempt: int = 1) -> TaskResult: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedTasks:
    """The keys that were queued, and the errors of sources that failed."""

    queued: tuple[str, ...]
    failures: tuple[SourceError, ...] = ()


async def produce(getter: TaskGetter, queue: TaskQueue) -> QueuedTasks:
    """Queue the waiting tasks. Those already in the queue keep their position."""
    found = await getter.waiting()
    queued = [key for key in found.keys if await queue.put(key)]
    return QueuedTasks(queued=tuple(queued), failures=found.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumedTask:
    """A task from the queue. `result`: None if it was no longer due, or could not be started.

    `is_back`: it was returned to the queue.
    """

    key: str
    result: TaskResult | None = None
    error: str = ""
    is_back: bool = False


class Consumer:
    """Takes tasks from the queue and handles them.

    A task whose tracker does not answer goes back to the queue, at most `max_attempts` times. A
    task that can never be handled is reported on its tracker.
    """

    def __init__(
        self,
        queue: TaskQueue,
        getter: TaskGetter,
        handler: Handler,
        *,
        max_attempts: int = QueueSection().max_attempts,
    ) -> None:
        self._queue = queue
        self._getter = getter
        self._handler = handler
        self._max_attempts = max_attempts

    async def consume(self) -> ConsumedTask | None:
        """Handle the task that has waited longest; None if none waits. Cancelling returns it."""
        lease = await self._queue.take()
        return None if lease is None else await self._do(lease, self._fetch_and_handle)

    async def consume_task(self, task: Task) -> ConsumedTask:
        """Handle this task. ConfigurationError: another consumer is working on it."""
        is_new = await self._queue.put(task.key)
        lease = await self._queue.take(task.key)
        if lease is None:
            raise ConfigurationError(
                f"another consumer is working on {task.key}",
                hint="wait for it; a task whose consumer was killed is free after"
                " tasks.queue.lease_seconds",
            )

        async def handle(lease: Lease) -> TaskResult:
            source = self._getter.source_of(task.key)
            return await self._handler.handle(task, source, attempt=lease.attempt)

        return await self._do(lease, handle, keep_queued=not is_new)

    async def _fetch_and_handle(self, lease: Lease) -> TaskResult | None:
        task = await self._getter.fetch(lease.key)
        source = self._getter.source_of(lease.key)
        if not is_due(task, source.labels):
            _log.info("%s is no longer due", lease.key)
            return None
        return await self._handler.handle(task, source, attempt=lease.attempt)

    async def _do(
        self,
        lease: Lease,
        work: Callable[[Lease], Awaitable[TaskResult | None]],
        *,
        keep_queued: bool = True,
    ) -> ConsumedTask:
        leave = self._queue.give_back if keep_queued else self._queue.done
        try:
            result = await run_with_lease(self._queue, lease, work(lease))
        except asyncio.CancelledError:
            await finish(_end_lease(leave, lease))
            raise
        except QueueError as error:
            return ConsumedTask(key=lease.key, error=str(error))
        except SourceError as error:
            may_pass = not error.details.get("is_lasting")
            again = keep_queued and may_pass and lease.attempt < self._max_attempts
            _log.error("cannot fetch %s: %s", lease.key, error)
            if not again:
                await finish(self._report(lease.key, error))
            await finish(_end_lease(leave if again else self._queue.done, lease))
            return ConsumedTask(key=lease.key, error=str(error), is_back=again)
        except KakoiError as error:
            _log.error("%s is not a valid task: %s", lease.key, error)
            await finish(self._report(lease.key, error))
            await finish(_end_lease(self._queue.done, lease))
            return ConsumedTask(key=lease.key, error=str(error))
        await finish(_end_lease(self._queue.done, lease))
        return ConsumedTask(key=lease.key, result=result)

    async def _report(self, key: str, error: KakoiError) -> None:
        """Report the error; otherwise the task would be queued again and again."""
        try:
            source = self._getter.source_of(key)
            found = await source.fetch_status(key)
        except (ConfigurationError, SourceError) as failure:
            _log.warning("cannot report the failure of %s: %s", key, failure)
            return
        if found.state != "open" or source.labels.stage_of(found.labels) not in STAGES_DUE:
            return  # The task is no longer due.
        hint = f"\n\n{error.hint}" if error.hint else ""
        result = TaskResult(stage="error", error=f"{error}{hint} ({error.code})")
        # Only its key is known.
        await report(source, Task(uuid=uuid_from_key(key), key=key, repository=""), result)


async def _end_lease(end: Callable[[Lease], Awaitable[None]], lease: Lease) -> None:
    try:
        await end(lease)
    except QueueError as error:
        _log.warning("%s", error)
