"""Started containers that wait for a task, so that `prepare` need not create one.

They are as good as new: nothing has ever run in them. A container is claimed by giving it the
task's name, which an engine does only once. The name is the record, so a sweep recognizes one that
was left behind.
"""

import asyncio
import dataclasses
import hashlib
import logging
from collections.abc import Awaitable, Callable
from datetime import datetime, timedelta
from typing import Final

from kakoi._support.asyncio import finish
from kakoi._support.late import dataclass
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.docker.engine import Engine
from kakoi.errors import KakoiError
from kakoi.tasks.containers import TaskContainer, pool_name

_log = logging.getLogger(__name__)
# A sweep goes by the age of a container: one claimed late would be removed under its task.
_FRESH: Final = timedelta(hours=1)
MakeContainer = Callable[[DockerSettings, str], TaskContainer]


@dataclass(frozen=True, slots=True)
class _PooledContainer:
    name: str
    key: str
    container: TaskContainer
    since: datetime


class Pool:
    """The pool. `make` returns a container with these settings and name, not yet started."""

    def __init__(
        self,
        engine: Engine,
        make: MakeContainer,
        *,
        size: int,
        clock: Callable[[], datetime],
        remove: Callable[[str], Awaitable[object]],
    ) -> None:
        self._engine = engine
        self._make = make
        self._size = size
        self._clock = clock
        self._remove = remove
        self._waiting: list[_PooledContainer] = []
        self._refilling: asyncio.Task[None] | None = None
        self._filling = asyncio.Lock()
        self._is_closed = False
        self._creating = ""

    @property
    def names(self) -> list[str]:
        """The containers that wait, and the one being created."""
        return [
            *(each.name for each in self._waiting),
            *([self._creating] if self._creating else []),
        ]

    async def claim(self, settings: DockerSettings, name: str) -> TaskContainer | None:
        """A container with exactly these settings, renamed to `name`; None if there is none."""
        if not self._waiting:
            return None
        key = await self._key(settings)
        while found := next((each for each in self._waiting if each.key == key), None):
            # Removed from the list before anything is awaited, so no one else gets it.
            self._waiting.remove(found)
            if await self._hand_over(found, name):
                return found.container
        return None

    async def fill(self, settings: DockerSettings) -> None:
        """Create the missing containers, and remove those that are too old or outdated."""
        async with self._filling:
            await self._fill(settings)

    async def _fill(self, settings: DockerSettings) -> None:
        key = await self._key(settings)
        for each in [each for each in self._waiting if not self._is_good(each, key)]:
            self._waiting.remove(each)
            await finish(self._discard(each.name, each.container))
        while len(self._waiting) < self._size and not self._is_closed:
            await self._add(settings, key)

    async def close(self) -> None:
        """Remove all waiting containers. Nothing is created afterwards."""
        self._is_closed = True
        if self._refilling is not None:
            self._refilling.cancel()
            await asyncio.wait([self._refilling])
        async with self._filling:  # A fill in progress stops after its next container.
            waiting, self._waiting = self._waiting, []
        await asyncio.gather(*(self._discard(each.name, each.container) for each in waiting))

    async def _key(self, settings: DockerSettings) -> str:
        """A hash of everything that defines a container. An image can change under its name."""
        image = await self._engine.get_image(settings.image)
        values = [dataclasses.asdict(settings), image.id, image.user]
        return hashlib.sha256(repr(values).encode()).hexdigest()

    def _is_good(self, waiting: _PooledContainer, key: str) -> bool:
        return waiting.key == key and self._clock() - waiting.since < _FRESH

    async def _hand_over(self, waiting: _PooledContainer, name: str) -> bool:
        try:
            if self._is_good(waiting, waiting.key):
                await waiting.container.adapter.rename(name)
                # Is it alive? If not, the channel is lost, and opening a new one says why.
                await (await waiting.container.adapter.channel()).stat_file("/")
                return True
        except KakoiError as error:  # It was stopped or removed.
            _log.warning("cannot use a pooled container: %s", error)
            await finish(self._remove(name))
        except BaseException:
            await finish(self._discard(waiting.name, waiting.container))
            raise
        await finish(self._discard(waiting.name, waiting.container))
        return False

    def refill(self, settings: DockerSettings) -> None:
        """Fill the pool in the background, so that no task has to wait for it."""
        is_idle = self._refilling is None or self._refilling.done()
        if self._size and is_idle and not self._is_closed:
            self._refilling = asyncio.get_running_loop().create_task(self._try_to_fill(settings))

    async def _try_to_fill(self, settings: DockerSettings) -> None:
        try:
            await self.fill(settings)
        except KakoiError as error:
            _log.warning("cannot create a container in advance: %s", error)

    async def _add(self, settings: DockerSettings, key: str) -> None:
        name = self._creating = pool_name(key)
        container = self._make(settings, name)
        try:
            await container.adapter.channel()
        except BaseException:
            await finish(self._discard(name, container))
            raise
        finally:
            self._creating = ""
        self._waiting.append(_PooledContainer(name, key, container, self._clock()))

    async def _discard(self, name: str, container: TaskContainer) -> None:
        await container.close()
        await self._remove(name)
