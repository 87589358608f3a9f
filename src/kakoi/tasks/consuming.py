"""Producer and consumer: what waits on the trackers is queued, and what is queued is done."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from kakoi.errors import ConfigurationError, KakoiError, QueueError, SourceError
from kakoi.tasks.queue import Lease, TaskQueue, keep
from kakoi.tasks.sources.source import STAGES_DUE, TaskGetter, TaskSource, is_due
from kakoi.tasks.task import Task, uuid_of
from kakoi.tasks.telling import Handled, tell
from kakoi.waiting import finish

_log = logging.getLogger(__name__)


class Handler(Protocol):
    """Who does a task."""

    async def handle(self, task: Task, source: TaskSource, *, attempt: int = 1) -> Handled: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """What was put into the queue, and which sources could not be asked."""

    queued: tuple[str, ...]
    failures: tuple[SourceError, ...] = ()


async def produce(getter: TaskGetter, queue: TaskQueue) -> Produced:
    """Queue what waits; what is in the queue already stays where it is."""
    found = await getter.waiting()
    queued = [key for key in found.keys if await queue.put(key)]
    return Produced(queued=tuple(queued), failures=found.failures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumed:
    """A task that was taken. `handled`: None if nobody had to do it, or it could not be begun."""

    key: str
    handled: Handled | None = None
    error: str = ""
    is_back: bool = False


class Consumer:
    """Takes tasks and does them. A task whose tracker cannot be asked is given back, but no more
    than `max_attempts` times; what can never be done is told on the tracker."""

    def __init__(
        self, queue: TaskQueue, getter: TaskGetter, handler: Handler, *, max_attempts: int = 5
    ) -> None:
        self._queue = queue
        self._getter = getter
        self._handler = handler
        self._max_attempts = max_attempts

    async def consume(self) -> Consumed | None:
        """Do the task that waits longest; None if none waits. Who is cancelled gives it back."""
        lease = await self._queue.take()
        return None if lease is None else await self._do(lease, self._fetched)

    async def consume_this(self, task: Task) -> Consumed:
        """Do this very task. ConfigurationError: somebody does it already."""
        is_ours = await self._queue.put(task.key)
        lease = await self._queue.take(task.key)
        if lease is None:
            raise ConfigurationError(
                f"somebody is at work on {task.key}",
                hint="wait for them; a task whose consumer was killed is free after"
                " tasks.queue.lease_seconds",
            )

        async def given(lease: Lease) -> Handled:
            source = self._getter.source_of(task.key)
            return await self._handler.handle(task, source, attempt=lease.attempt)

        return await self._do(lease, given, keep_queued=not is_ours)

    async def _fetched(self, lease: Lease) -> Handled | None:
        task = await self._getter.fetch(lease.key)
        source = self._getter.source_of(lease.key)
        if not is_due(task, source.labels):
            _log.info("%s is not to be done any more", lease.key)
            return None
        return await self._handler.handle(task, source, attempt=lease.attempt)

    async def _do(
        self,
        lease: Lease,
        work: Callable[[Lease], Awaitable[Handled | None]],
        *,
        keep_queued: bool = True,
    ) -> Consumed:
        leave = self._queue.give_back if keep_queued else self._queue.done
        try:
            handled = await keep(self._queue, lease, work(lease))
        except asyncio.CancelledError:
            await finish(_quietly(leave, lease))
            raise
        except QueueError as error:
            return Consumed(key=lease.key, error=str(error))
        except SourceError as error:
            may_pass = not error.details.get("is_lasting")
            again = keep_queued and may_pass and lease.attempt < self._max_attempts
            _log.error("%s cannot be asked for: %s", lease.key, error)
            if not again:
                await finish(self._tell(lease.key, error))
            await finish(_quietly(leave if again else self._queue.done, lease))
            return Consumed(key=lease.key, error=str(error), is_back=again)
        except KakoiError as error:
            _log.error("%s is no task: %s", lease.key, error)
            await finish(self._tell(lease.key, error))
            await finish(_quietly(self._queue.done, lease))
            return Consumed(key=lease.key, error=str(error))
        await finish(_quietly(self._queue.done, lease))
        return Consumed(key=lease.key, handled=handled)

    async def _tell(self, key: str, error: KakoiError) -> None:
        """Else it would wait on its tracker for ever, and be queued again and again."""
        try:
            source = self._getter.source_of(key)
            found = await source.look(key)
        except (ConfigurationError, SourceError) as unasked:
            _log.warning("that %s failed can be told to nobody: %s", key, unasked)
            return
        if found.state != "open" or source.labels.stage_of(found.labels) not in STAGES_DUE:
            return  # Nobody waits for it any more.
        way = f"\n\n{error.hint}" if error.hint else ""
        handled = Handled(stage="error", error=f"{error}{way} ({error.code})")
        # Nothing but its key is known.
        await tell(source, Task(uuid=uuid_of(key), key=key, repository=""), handled)


async def _quietly(end: Callable[[Lease], Awaitable[None]], lease: Lease) -> None:
    try:
        await end(lease)
    except QueueError as error:
        _log.warning("%s", error)
