"""Is a task still wanted while it is worked on? Its tracker is asked between two steps."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from kakoi.agent.conversation import Answer, Model, Offer, Turn
from kakoi.errors import SourceError
from kakoi.tasks.sources.labels import Labels, Stage
from kakoi.tasks.sources.source import Look, TaskSource, is_still_assigned
from kakoi.tasks.task import Task

_log = logging.getLogger(__name__)


class Watch:
    """Asks, at most every `every_s`. `stage`: what somebody wants instead; None is to go on.

    `pause`: what to do then.
    """

    def __init__(self, source: TaskSource, task: Task, *, every_s: float) -> None:
        self.stage: Stage | None = None
        self.pause: Callable[[], None] = _nothing
        self._source = source
        self._task = task
        self._every_s = every_s
        self._asked_at: float | None = None

    async def look(self) -> None:
        """Ask, if it is time to. A tracker that does not answer is asked again later."""
        now = asyncio.get_running_loop().time()
        if self._asked_at is not None and now - self._asked_at < self._every_s:
            return
        self._asked_at = now
        try:
            found = await self._source.look(self._task.key)
        except SourceError as error:
            _log.warning("is %s still wanted? %s", self._task.key, error)
            return
        self.stage = wanted_instead(self._task, found, self._source.labels, self._source.assignee)
        if self.stage is not None:
            self.pause()


def wanted_instead(task: Task, found: Look, labels: Labels, assignee: str) -> Stage | None:
    """`stopped` or `paused`, if somebody wants that: by taking the task from us, or by a label."""
    if not is_still_assigned(task, found, assignee):
        return "stopped"
    given = labels.stage_of(found.labels)
    return given if given in ("paused", "stopped") else None


class WatchedModel:
    """A model that is asked only as long as its task is wanted. `before`: done before each time."""

    def __init__(
        self, model: Model, watch: Watch, before: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self.watch = watch
        self._model = model
        self._before = before

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def is_priced(self) -> bool:
        return self._model.is_priced

    async def ask(
        self, instructions: str, turns: Sequence[Turn], offers: Sequence[Offer]
    ) -> Answer:
        if self._before is not None:
            await self._before()
        await self.watch.look()
        # Whoever paused the loop has cancelled us: here is where that is noticed.
        await asyncio.sleep(0)
        return await self._model.ask(instructions, turns, offers)


def _nothing() -> None: ...
