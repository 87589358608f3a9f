"""How the containers of tasks are made and found again, each with its way out."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime

from kakoi.audit import AuditLog
from kakoi.process.executor import ProcessExecutor
from kakoi.sandbox.docker import DockerAdapter
from kakoi.sandbox.docker_cli import DockerSettings, Tag
from kakoi.sandbox.docker_engine import Engine
from kakoi.sandbox.outlet import Outlet
from kakoi.tasks.reaching import MakeProxy, Reach, Reachable, is_proxied


@dataclass(frozen=True, slots=True)
class Made:
    """A container, and the proxy of its way out, if it has one."""

    adapter: DockerAdapter
    reach: Reach | None = None

    def give_to(self, task_uuid: str, reachable: Reachable) -> None:
        """It is this task's, which may reach this."""
        if self.reach is not None:
            self.reach.belong_to(task_uuid)
            self.change(reachable)

    def change(self, reachable: Reachable) -> None:
        """From now on this may be reached, also for who attaches later."""
        if self.reach is not None:
            self.reach.change(reachable)
            self.adapter.keep_way(reachable.note)

    async def close(self) -> None:
        """Let go of it. The container stays as it is."""
        await self.adapter.close()
        if self.reach is not None:
            await self.reach.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class Maker:
    """Makes them on one engine. `max_age_s`: after that they may be swept."""

    executor: ProcessExecutor
    owner: str
    engine_env: Mapping[str, str]
    engine: Engine
    clock: Callable[[], datetime]
    max_age_s: float
    audit: AuditLog | None
    make_proxy: MakeProxy

    def make(self, settings: DockerSettings, name: str, task_uuid: str = "") -> Made:
        """A container that is made when it is entered. Its way out leads nowhere yet."""
        reach = self._reach(Reachable("none")) if is_proxied(settings.network) else None
        adapter = DockerAdapter(
            settings,
            self.executor,
            program=self.engine.program,
            lifetime="sandbox",
            tag=Tag(owner=self.owner, task=task_uuid, name=name, max_age_s=self.max_age_s),
            clock=lambda: self.clock().timestamp(),
            engine_env=self.engine_env,
            engine=self.engine,
            outlet=None if reach is None else reach.outlet,
        )
        return Made(adapter, reach)

    async def attach(self, settings: DockerSettings, name: str, task_uuid: str) -> Made:
        """One that is there, and its way out, served by what was noted about it."""
        reaches: list[Reach] = []

        def outlet_for(note: str) -> Outlet:
            reaches.append(self._reach(Reachable.from_note(note)))
            reaches[0].belong_to(task_uuid)
            return reaches[0].outlet

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
        return Made(adapter, reaches[0] if reaches else None)

    def _reach(self, reachable: Reachable) -> Reach:
        return Reach(reachable, audit=self.audit, make=self.make_proxy)
