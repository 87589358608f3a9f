"""Started containers that wait for a task, so that `prepare` need not make one.

They are as new: nothing has ever run in them. One is claimed by giving it the task's name, which
an engine does once; the name is the register, so one that we leave behind is known as ours.
"""

import asyncio
import dataclasses
import hashlib
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from kakoi.errors import KakoiError
from kakoi.sandbox.docker_cli import DockerSettings
from kakoi.sandbox.docker_engine import Engine
from kakoi.tasks.making import Made
from kakoi.tasks.pool_names import pool_name
from kakoi.waiting import finish

_log = logging.getLogger(__name__)
# A sweep goes by the age of a container: one that is claimed late would be taken from its task.
_FRESH: Final = timedelta(hours=1)
Make = Callable[[DockerSettings, str], Made]


@dataclass(frozen=True, slots=True)
class _Waiting:
    name: str
    key: str
    made: Made
    since: datetime


class Pool:
    """`make` gives a container of that configuration and name, not yet entered."""

    def __init__(
        self,
        engine: Engine,
        make: Make,
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
        self._waiting: list[_Waiting] = []
        self._refilling: asyncio.Task[None] | None = None
        self._filling = asyncio.Lock()
        self._is_closed = False
        self._coming = ""

    @property
    def names(self) -> list[str]:
        """Those that wait, and the one that is being made."""
        return [*(each.name for each in self._waiting), *([self._coming] if self._coming else [])]

    async def claim(self, settings: DockerSettings, name: str) -> Made | None:
        """One of exactly these settings, under its new name; None if none is there."""
        if not self._waiting:
            return None
        key = await self._key(settings)
        while found := next((each for each in self._waiting if each.key == key), None):
            # Out of the list before anything is awaited: nobody else gets it.
            self._waiting.remove(found)
            if await self._hand_over(found, name):
                return found.made
        return None

    async def fill(self, settings: DockerSettings) -> None:
        """Make what is missing, and take away what nobody will claim any more."""
        async with self._filling:
            await self._fill(settings)

    async def _fill(self, settings: DockerSettings) -> None:
        key = await self._key(settings)
        for each in [each for each in self._waiting if not self._is_good(each, key)]:
            self._waiting.remove(each)
            await finish(self._take_away(each.name, each.made))
        while len(self._waiting) < self._size and not self._is_closed:
            await self._add(settings, key)

    async def close(self) -> None:
        """Take away all that wait. Nothing is made afterwards."""
        self._is_closed = True
        if self._refilling is not None:
            self._refilling.cancel()
            await asyncio.wait([self._refilling])
        async with self._filling:  # Whoever fills it at this moment stops after the next one.
            waiting, self._waiting = self._waiting, []
        await asyncio.gather(*(self._take_away(each.name, each.made) for each in waiting))

    async def _key(self, settings: DockerSettings) -> str:
        """Of everything that makes a container what it is; an image may change under its name."""
        image = await self._engine.get_image(settings.image)
        values = [dataclasses.asdict(settings), image.id, image.user]
        return hashlib.sha256(repr(values).encode()).hexdigest()

    def _is_good(self, waiting: _Waiting, key: str) -> bool:
        return waiting.key == key and self._clock() - waiting.since < _FRESH

    async def _hand_over(self, waiting: _Waiting, name: str) -> bool:
        try:
            if self._is_good(waiting, waiting.key):
                await waiting.made.adapter.rename(name)
                # Does it live? If not, the channel is lost, and a new one says why there is none.
                await (await waiting.made.adapter.channel()).stat_file("/")
                return True
        except KakoiError as error:  # Somebody has stopped it or taken it away.
            _log.warning("a waiting container cannot be used: %s", error)
            await finish(self._remove(name))
        except BaseException:
            await finish(self._take_away(waiting.name, waiting.made))
            raise
        await finish(self._take_away(waiting.name, waiting.made))
        return False

    def refill(self, settings: DockerSettings) -> None:
        """Fill it up in the background: after a task has what it needs, which would wait longer."""
        is_idle = self._refilling is None or self._refilling.done()
        if self._size and is_idle and not self._is_closed:
            self._refilling = asyncio.get_running_loop().create_task(self._try_to_fill(settings))

    async def _try_to_fill(self, settings: DockerSettings) -> None:
        try:
            await self.fill(settings)
        except KakoiError as error:
            _log.warning("no container could be made in advance: %s", error)

    async def _add(self, settings: DockerSettings, key: str) -> None:
        name = self._coming = pool_name(key)
        made = self._make(settings, name)
        try:
            await made.adapter.channel()
        except BaseException:
            await finish(self._take_away(name, made))
            raise
        finally:
            self._coming = ""
        self._waiting.append(_Waiting(name, key, made, self._clock()))

    async def _take_away(self, name: str, made: Made) -> None:
        await made.close()
        await self._remove(name)
