"""The containers of tasks: how they are created, found again and removed, each with its proxy.

The pool keeps started containers that wait for a task, so that `prepare` need not create one. They
are as good as new: nothing has ever run in them. A container is claimed by giving it the task's
name, which an engine does only once. The name is the record, so a sweep recognizes one that was
left behind.
"""

import asyncio
import dataclasses
import hashlib
import logging
import os
import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from kakoi._support.asyncio import finish
from kakoi._support.late import dataclass, pattern
from kakoi.audit import AuditLog
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings, Tag
from kakoi.backends.docker.engine import HELPER, Engine
from kakoi.backends.docker.fork import remove_image
from kakoi.backends.docker.inventory import ListedContainer, list_containers, list_fork_images
from kakoi.backends.outlet import Outlet, discard_kept
from kakoi.channel.api import new_id
from kakoi.errors import KakoiError
from kakoi.process.executor import ProcessExecutor
from kakoi.tasks.network import NetworkAccess, ProxyFactory, TaskProxy, is_proxied
from kakoi.tasks.task import PREFIX

_POOLED = pattern(re.escape(PREFIX) + r"_pool-(\d+)-(\d+)-[0-9a-f]+-[0-9a-f]+")


def pool_name(key: str) -> str:
    """A new name for a pooled container of configuration `key`, created by this process."""
    pid = os.getpid()
    return f"{PREFIX}_pool-{pid}-{_start_time(pid)}-{key[:12]}-{new_id()}"


def is_pooled(name: str) -> bool:
    """Is it the name of a container that waits for a task?"""
    return _POOLED.fullmatch(name) is not None


def is_orphan(name: str) -> bool:
    """Has the process that created it ended? A reused pid has another start time."""
    found = _POOLED.fullmatch(name)
    return found is not None and _start_time(int(found[1])) != found[2]


def _start_time(pid: int) -> str:
    """When a process started, in kernel clock ticks; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


@dataclass(frozen=True, slots=True)
class TaskContainer:
    """A container, and its proxy if its network is proxied."""

    adapter: DockerAdapter
    task_proxy: TaskProxy | None = None

    def assign(self, task_uuid: str, access: NetworkAccess) -> None:
        """Give the container to a task, with this network access."""
        if self.task_proxy is not None:
            self.task_proxy.record_for(task_uuid)
            self.set_access(access)

    def set_access(self, access: NetworkAccess) -> None:
        """Allow this from now on, also for processes that attach later."""
        if self.task_proxy is not None:
            self.task_proxy.set_access(access)
            self.adapter.keep_outlet(access.to_json())

    async def close(self) -> None:
        """Disconnect from it. The container stays as it is."""
        await self.adapter.close()
        if self.task_proxy is not None:
            await self.task_proxy.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerFactory:
    """Creates containers on one engine. `max_age_s`: the age at which a sweep may remove them."""

    executor: ProcessExecutor
    owner: str
    engine_env: Mapping[str, str]
    engine: Engine
    clock: Callable[[], datetime]
    max_age_s: float
    audit: AuditLog | None
    make_proxy: ProxyFactory

    def make(self, settings: DockerSettings, name: str, task_uuid: str = "") -> TaskContainer:
        """A container that is created on first use. Its network reaches nothing yet."""
        task_proxy = self._proxy(NetworkAccess("none")) if is_proxied(settings.network) else None
        adapter = DockerAdapter(
            settings,
            self.executor,
            program=self.engine.program,
            lifetime="sandbox",
            tag=Tag(owner=self.owner, task=task_uuid, name=name, max_age_s=self.max_age_s),
            clock=lambda: self.clock().timestamp(),
            engine_env=self.engine_env,
            engine=self.engine,
            outlet=None if task_proxy is None else task_proxy.outlet,
        )
        return TaskContainer(adapter, task_proxy)

    async def attach(self, settings: DockerSettings, name: str, task_uuid: str) -> TaskContainer:
        """Attach to an existing container and serve its proxy with the recorded access."""
        proxies: list[TaskProxy] = []

        def outlet_for(note: str) -> Outlet:
            proxies.append(self._proxy(NetworkAccess.from_json(note)))
            proxies[0].record_for(task_uuid)
            return proxies[0].outlet

        adapter = await DockerAdapter.attach(
            name,
            settings,
            self.executor,
            program=self.engine.program,
            owner=self.owner,
            engine_env=self.engine_env,
            engine=self.engine,
            outlet_for=outlet_for,
        )
        return TaskContainer(adapter, proxies[0] if proxies else None)

    def _proxy(self, access: NetworkAccess) -> TaskProxy:
        return TaskProxy(access, audit=self.audit, make=self.make_proxy)


_log = logging.getLogger(__name__)
GRACE_S: Final = 10
_AT_ONCE: Final = 8


class OwnedContainers:
    """The containers of one owner. `leftovers`: the names of those that could not be removed."""

    def __init__(self, engine: Engine, *, owner: str, clock: Callable[[], datetime]) -> None:
        self.leftovers: set[str] = set()
        self._engine = engine
        self._owner = owner
        self._clock = clock

    async def remove(self, name: str) -> bool:
        """Stop it, kill it after the grace period, remove it. False if it stays, as a leftover."""
        way = ""
        try:
            state = await self._engine.state(name)
            if state.status == "gone":
                self.leftovers.discard(name)
                return True
            way = (state.labels or {}).get("kakoi.way", "")
            if state.running:
                await self._engine.stop(name, GRACE_S)
        except KakoiError as error:
            _log.warning("cannot stop container %s: %s", name, error)
        try:
            await self._engine.remove(name)
        except KakoiError as error:
            _log.warning("cannot remove container %s: %s", name, error)
            self.leftovers.add(name)
            return False
        discard_kept(way)
        self.leftovers.discard(name)
        return True

    async def list_all(self) -> list[ListedContainer]:
        """Every container of the owner: for tasks, in a pool, or used to create one."""
        found = await list_containers(self._engine, owner=self._owner)
        return [each for each in found if each.name.startswith((PREFIX, HELPER))]

    async def list_tasks(self) -> list[ListedContainer]:
        """Those of them that belong to a task, with its uuid."""
        return [
            dataclasses.replace(each, task=each.name.removeprefix(PREFIX))
            for each in await self.list_all()
            if each.name.startswith(PREFIX) and not is_pooled(each.name)
        ]

    async def stale_images(self, older_than: timedelta) -> list[str]:
        """The images of forks that nothing uses and that are at least that old."""
        found = await list_fork_images(self._engine, owner=self._owner)
        return [each.id for each in found if self._clock() - each.created >= older_than]

    async def _sweep_images(self, older_than: timedelta) -> list[str]:
        gone = []
        for id in await self.stale_images(older_than):
            try:
                await remove_image(self._engine, id)
                gone.append(id)
            except KakoiError as error:
                _log.warning("cannot remove image %s: %s", id, error)
        return gone

    async def sweep(self, *, older_than: timedelta, keep: Collection[str]) -> list[str]:
        """Remove stale containers and leftovers except `keep`, and stale images of forks.

        Returns the names removed.
        """
        found = await self.list_all()
        # They may have disappeared while the engine was down.
        self.leftovers &= {each.name for each in found}
        old = {each.name for each in find_stale(found, now=self._clock(), older_than=older_than)}
        names = sorted((old | self.leftovers) - set(keep))
        turns = asyncio.Semaphore(_AT_ONCE)

        async def remove(name: str) -> bool:
            async with turns:
                return await self.remove(name)

        gone = await asyncio.gather(*(remove(name) for name in names))
        removed = [name for name, is_gone in zip(names, gone, strict=True) if is_gone]
        return [*removed, *await self._sweep_images(older_than)]


async def sweep_once(sweep: Callable[[], Awaitable[list[str]]]) -> None:
    """Sweep, and log what was removed or what failed; never raises a KakoiError."""
    try:
        removed = await sweep()
        if removed:
            _log.warning("removed leftovers of earlier runs: %s", ", ".join(removed))
    except KakoiError as error:
        _log.warning("cannot look for leftovers: %s", error)


def find_stale(
    containers: Collection[ListedContainer],
    *,
    now: datetime,
    older_than: timedelta,
    is_orphan: Callable[[str], bool] = is_orphan,
) -> list[ListedContainer]:
    """The containers that are at least `older_than` old, and pooled containers of any age whose
    process has died."""
    return [
        each
        for each in containers
        if now - each.created >= older_than or (is_pooled(each.name) and is_orphan(each.name))
    ]


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
