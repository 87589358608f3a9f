"""Taking containers away: stopped with care, removed for certain, or written down as left over."""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime, timedelta
from typing import Final

from kakoi.errors import KakoiError
from kakoi.sandbox.docker_engine import HELPER, Engine
from kakoi.sandbox.docker_listing import Listed, list_containers
from kakoi.sandbox.outlet import discard_kept
from kakoi.tasks.pool_names import is_orphan, is_pooled
from kakoi.tasks.task import PREFIX

_log = logging.getLogger(__name__)
GRACE_S: Final = 10
_AT_ONCE: Final = 8


class Removal:
    """Removes containers of one owner. `leftovers`: the names of those that could not be."""

    def __init__(self, engine: Engine, *, owner: str, clock: Callable[[], datetime]) -> None:
        self.leftovers: set[str] = set()
        self._engine = engine
        self._owner = owner
        self._clock = clock

    async def remove(self, name: str) -> bool:
        """Stop it, kill it after the grace, remove it; False and a leftover if it stays."""
        way = ""
        try:
            state = await self._engine.state(name)
            if state.status == "gone":
                self.leftovers.discard(name)
                return True
            way = (state.labels or {}).get("kakoi.way", "")
            if state.running:
                args = ["stop", "-t", str(GRACE_S), name]
                await self._engine.call(args, doing="stopping a container")
        except KakoiError as error:
            _log.warning("the container %s could not be stopped: %s", name, error)
        try:
            await self._engine.remove(name)
        except KakoiError as error:
            _log.warning("the container %s could not be removed: %s", name, error)
            self.leftovers.add(name)
            return False
        discard_kept(way)
        self.leftovers.discard(name)
        return True

    async def existing(self) -> list[Listed]:
        """Every container of the owner that is a task's, waits for one, or helped to make one."""
        found = await list_containers(self._engine, owner=self._owner)
        return [each for each in found if each.name.startswith((PREFIX, HELPER))]

    async def existing_tasks(self) -> list[Listed]:
        """Those of them that have a task, by its name."""
        return [
            dataclasses.replace(each, task=each.name.removeprefix(PREFIX))
            for each in await self.existing()
            if each.name.startswith(PREFIX) and not is_pooled(each.name)
        ]

    async def sweep(self, *, older_than: timedelta, keep: Collection[str]) -> list[str]:
        """Remove what is stale or left over, but for the names in `keep`; returns what is gone."""
        found = await self.existing()
        # The engine was not there to say that they are gone.
        self.leftovers &= {each.name for each in found}
        old = {each.name for each in stale(found, now=self._clock(), older_than=older_than)}
        names = sorted((old | self.leftovers) - set(keep))
        turns = asyncio.Semaphore(_AT_ONCE)

        async def remove(name: str) -> bool:
            async with turns:
                return await self.remove(name)

        gone = await asyncio.gather(*(remove(name) for name in names))
        return [name for name, is_gone in zip(names, gone, strict=True) if is_gone]


async def sweep_once(sweep: Callable[[], Awaitable[list[str]]]) -> None:
    """One of many sweeps: what it removed and what failed is told, and nothing is raised."""
    try:
        removed = await sweep()
        if removed:
            _log.warning("removed what was left behind: %s", ", ".join(removed))
    except KakoiError as error:
        _log.warning("could not look for leftovers: %s", error)


def stale(
    containers: Collection[Listed],
    *,
    now: datetime,
    older_than: timedelta,
    is_orphan: Callable[[str], bool] = is_orphan,
) -> list[Listed]:
    """Those of tasks that were made longer ago than `older_than`; and, whatever their age, those
    that wait for a task in a pool whose process has died."""
    return [
        each
        for each in containers
        if now - each.created >= older_than or (is_pooled(each.name) and is_orphan(each.name))
    ]
