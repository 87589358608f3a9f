"""ExecutionEnvironmentManager: one clean container for each task, from its clone to its removal.

    prepare: remove a namesake → create → start → clone → checkout → dependencies → ready
    cleanup: stop (10 s, then kill) → remove, with its volumes; what stays is written down

The names and labels of containers are the only register: after `kill -9`, a sweep finds them.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Final

from kakoi.audit import AuditLog
from kakoi.egress.proxy import Proxy
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.gate import Approver, Gate, Labels
from kakoi.process.executor import ProcessExecutor
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Command
from kakoi.sandbox.docker import DockerAdapter
from kakoi.sandbox.docker_cli import Program
from kakoi.sandbox.docker_container import default_owner
from kakoi.sandbox.docker_engine import Engine
from kakoi.sandbox.docker_listing import Listed, Usage, disk_of, usage_of
from kakoi.tasks.checkout import PROJECT, Checkout
from kakoi.tasks.installing import install_all
from kakoi.tasks.lifecycle import Status
from kakoi.tasks.making import Made, Maker
from kakoi.tasks.place import Environment
from kakoi.tasks.pool import Pool
from kakoi.tasks.projects import Projects, Read, build_engine
from kakoi.tasks.reaching import MakeProxy, is_proxied, telling_refusals
from kakoi.tasks.recording import recorded
from kakoi.tasks.remotes import Credential
from kakoi.tasks.removal import Removal, stale
from kakoi.tasks.stats import Stats, measure
from kakoi.tasks.task import Task, container_name
from kakoi.tasks.values import (
    TEMPORARY,
    WORKSPACE,
    ContainerInfo,
    Counters,
    EnvironmentOptions,
    Installed,
)
from kakoi.waiting import finish

__all__ = [
    "TEMPORARY",
    "WORKSPACE",
    "ContainerInfo",
    "Counters",
    "EnvironmentOptions",
    "ExecutionEnvironmentManager",
    "Installed",
]
_log = logging.getLogger(__name__)
_TRIES: Final = 3
_PAUSE_S: Final = 0.5


class ExecutionEnvironmentManager:
    """Makes environments, runs commands in them, and takes them away.

    `clock`: the time of day, with its zone. `credential_for`: a secret for a repository's address,
    or None. `ssh_env`: variables of ssh, for repositories that are fetched by it.
    `owner`: whose containers these are; nobody else's are touched. `project_files`,
    `read_project`: what a project's own settings make of `options`; see projects.py.
    `make_proxy`: how the proxies are made that the networks `open` and `allowlist` lead through.
    """

    def __init__(
        self,
        options: EnvironmentOptions | None = None,
        *,
        clock: Callable[[], datetime],
        executor: ProcessExecutor | None = None,
        program: Program = "docker",
        owner: str = "",
        engine_env: Mapping[str, str] | None = None,
        credential_for: Callable[[str], Credential | None] | None = None,
        ssh_env: Mapping[str, str] | None = None,
        audit: AuditLog | None = None,
        approver: Approver | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        project_files: tuple[str, ...] = (),
        read_project: Read | None = None,
        make_proxy: MakeProxy = Proxy,
    ) -> None:
        self.options = options or EnvironmentOptions()
        self.counters = Counters()
        self._clock = clock
        self._executor = executor or ProcessExecutor()
        owner, env = owner or default_owner(), dict(engine_env or {})
        self._engine = Engine(self._executor, program=program, env=env, owner=owner)
        self._maker = Maker(
            executor=self._executor,
            owner=owner,
            engine_env=env,
            engine=self._engine,
            clock=clock,
            max_age_s=self.options.stale_after.total_seconds(),
            audit=audit,
            make_proxy=make_proxy,
        )
        self._credential_for = credential_for or (lambda _address: None)
        self._ssh_env = dict(ssh_env or {})
        self._audit = audit
        self._approver = approver
        self._sleep = sleep
        self._active: dict[str, Environment] = {}
        self._own: dict[str, EnvironmentOptions] = {}  # Of tasks whose projects say something.
        self._projects = Projects(
            project_files, read_project, build_engine(self._executor, program, env)
        )
        self._preparing: set[str] = set()
        self._removal = Removal(self._engine, owner=owner, clock=clock)
        size, remove = self.options.pool_size, self._removal.remove
        self._pool = Pool(self._engine, self._maker.make, size=size, clock=clock, remove=remove)

    @property
    def leftovers(self) -> set[str]:
        """The names of containers that could not be removed."""
        return self._removal.leftovers

    # --- Spec A ------------------------------------------------------------------------------

    async def prepare(self, task: Task) -> ContainerInfo:
        """A ready environment for `task`, with its project in it. If it fails, nothing is left.

        SandboxError: the container could not be made. CloneError: the project could not be had.
        """
        if task.uuid in self._preparing:
            raise ConfigurationError(f"task {task.uuid} is being prepared already")
        self._preparing.add(task.uuid)
        try:
            async with recorded(self._audit, task, sandbox=self._engine.program):
                await self.cleanup(task.uuid)
                try:
                    return await self._prepare(task)
                except BaseException as error:
                    self.counters.count(error)
                    await finish(self.cleanup(task.uuid))
                    raise
        finally:
            self._preparing.discard(task.uuid)
            self.begin_to_warm()

    async def _prepare(self, task: Task) -> ContainerInfo:
        container_id = await self._create_container(task)
        await self._clone_project(container_id, task)
        container_id = await self._heed_project(container_id, task)
        if self.options.install_dependencies:
            await self._install_dependencies(container_id)
        environment = self.find(container_id)
        environment.lifecycle.move(Status.READY)
        self.counters.prepared += 1
        return environment.info()

    async def execute(
        self, container_id: str, command: str, *, timeout_s: float | None = None
    ) -> ExecutionResult:
        """Run a command of the task's agent: judged, recorded, and ended in time.

        ConfigurationError: it is no environment of ours. SandboxError: its container is gone.
        """
        environment = self.find(container_id)
        options = self._options_of(environment.task_uuid)
        environment.lifecycle.begin_command()
        try:
            result = await environment.gate.run(
                Command(
                    command=command,
                    cwd=PROJECT,
                    timeout_s=options.timeout_s if timeout_s is None else timeout_s,
                    max_output_bytes=options.max_output_bytes,
                )
            )
        finally:
            environment.lifecycle.end_command()
        self.counters.commands += 1
        self.counters.timeouts += result.reason is Reason.TIMED_OUT
        if result.reason is Reason.SANDBOX_LOST:
            raise SandboxError(
                f"the environment of task {environment.task_uuid} was lost: {result.error}",
                details={"stdout": result.stdout, "stderr": result.stderr},
                hint="prepare it anew",
            )
        return result

    async def cleanup(self, task_uuid: str) -> None:
        """Take a task's environment away, whoever made it. What could not be is a leftover."""
        await finish(self._cleanup(task_uuid))

    async def cleanup_stale_containers(self, older_than: timedelta | None = None) -> list[str]:
        """Remove what earlier runs have left behind, by name and age; returns what was removed."""
        limit = self.options.stale_after if older_than is None else older_than
        return await self._removal.sweep(older_than=limit, keep=self._in_use())

    # --- Beyond ------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[ContainerInfo]:
        """`prepare`, and `cleanup` on every way out."""
        info = await self.prepare(task)
        try:
            yield info
        finally:
            await self.cleanup(task.uuid)

    @contextlib.asynccontextmanager
    async def attached(self, task_uuid: str) -> AsyncIterator[Environment]:
        """The environment that another process has prepared; it stays, with its jobs.

        SandboxError: there is none, or it does not run.
        """
        made = await self._maker.attach(
            self.options.container, container_name(task_uuid), task_uuid
        )
        environment = self._environment(task_uuid, made)
        try:
            yield environment
        finally:
            await finish(environment.let_go())

    async def existing(self) -> list[Listed]:
        """Every environment of ours that there is, also those of other runs, by its task."""
        return await self._removal.existing_tasks()

    async def stale(self, older_than: timedelta | None = None) -> list[str]:
        """The names that `cleanup_stale_containers` would remove now."""
        limit = self.options.stale_after if older_than is None else older_than
        found = stale(await self._removal.existing(), now=self._clock(), older_than=limit)
        return [each.name for each in found if each.name not in self._in_use()]

    def _in_use(self) -> set[str]:
        ours = {container_name(uuid) for uuid in (*self._active, *self._preparing)}
        return ours | set(self._pool.names)

    def active(self) -> list[ContainerInfo]:
        """The environments that this manager has made and not cleaned up."""
        return [environment.info() for environment in self._active.values()]

    async def usage(self) -> dict[str, Usage]:
        """What environments that run use at this moment, by the names of their containers."""
        names = [each.name for each in await self.existing() if each.status == "running"]
        return await usage_of(self._engine, names)

    async def disk(self) -> dict[str, int]:
        """How many bytes environments have written, running or not, by the same names."""
        return await disk_of(self._engine, [each.name for each in await self.existing()])

    async def stats(self, counters: Counters | None = None) -> Stats:
        """What environments use, and what has failed: as counted here, if nobody says otherwise."""
        left = self.leftovers | set(await self.stale())
        return await measure(
            self._engine,
            await self.existing(),
            leftovers=len(left),
            counters=counters or self.counters,
        )

    async def warm(self) -> None:
        """Fill the pool now, and not after the first task has gone without it."""
        await self._pool.fill(self.options.container)

    def begin_to_warm(self) -> None:
        """Fill the pool in the background; what stands against it is logged."""
        self._pool.refill(self.options.container)

    async def close(self) -> None:
        """Take the pool away, and let go of environments without removing them."""
        await finish(self._pool.close())
        for environment in self._active.values():
            await finish(environment.let_go())

    # --- Making ------------------------------------------------------------------------------

    def _environment(self, task_uuid: str, made: Made) -> Environment:
        return Environment(task_uuid, made, self._gate(task_uuid, made), self._clock())

    def _gate(self, task_uuid: str, made: Made) -> Gate:
        return Gate(
            self._options_of(task_uuid).policy,
            made.adapter,
            cwd=PROJECT,
            audit=self._audit,
            approver=self._approver,
            labels=Labels(task=task_uuid),
            proxy=None if made.reach is None else made.reach.proxy,
        )

    async def _create_container(self, task: Task) -> str:
        """A started container of the task's name: one that waited, or a new one. Gives its id."""
        name = container_name(task.uuid)
        settings = self._options_of(task.uuid).container
        claimed = await self._pool.claim(settings, name)
        made = claimed or self._maker.make(settings, name, task.uuid)
        environment = self._active[task.uuid] = self._environment(task.uuid, made)
        if claimed is None:
            await self._open(made.adapter, name)
        made.give_to(task.uuid, self.options.reachable)
        environment.lifecycle.move(Status.INITIALIZING)
        environment.container_id = made.adapter.container_id
        return environment.container_id

    async def _open(self, adapter: DockerAdapter, name: str) -> None:
        """Create and start the container; an engine that was too slow gets another try."""
        for attempt in range(1, _TRIES + 1):
            try:
                await adapter.channel()
                return
            except SandboxError as error:
                if attempt == _TRIES or type(error) is not SandboxError:
                    raise
                _log.warning("trying again to make an environment: %s", error)
                await self._remove_container(name)
                await self._sleep(_PAUSE_S * attempt)

    async def _clone_project(self, container_id: str, task: Task) -> None:
        environment = self.find(container_id)
        channel = await environment.adapter.channel()
        clone = self.options.clone
        reach = environment.made.reach
        proxy = None if reach is None else reach.proxy
        checkout = Checkout(channel, self._executor, clone, proxy=proxy, ssh_env=self._ssh_env)
        with telling_refusals(reach):
            await checkout.clone(task, self._credential_for(task.repository))

    async def _heed_project(self, container_id: str, task: Task) -> str:
        """Do as the project's own settings say. If they want another container, it is there."""
        environment = self.find(container_id)
        ours, channel = self.options, await environment.adapter.channel()
        own = await self._projects.read(channel, ours)
        if own is ours and not own.dockerfile:
            return container_id
        environment.made.change(own.reachable)
        own = await self._projects.built(channel, own, environment.name)
        # By its proxy a container comes to reach less; made with less, it could not be cloned into.
        kept = dataclasses.replace(own, network=ours.network) if is_proxied(ours.network) else own
        self._own[task.uuid] = kept
        if kept.container == ours.container:
            environment.gate = self._gate(task.uuid, environment.made)
            return container_id
        await self._cleanup(task.uuid)
        self._own[task.uuid] = kept
        container_id = await self._create_container(task)
        await self._clone_project(container_id, task)
        self.find(container_id).made.change(own.reachable)
        return container_id

    async def _install_dependencies(self, container_id: str) -> None:
        """Install what the project depends on. A failure is told, and the task goes on."""
        environment = self.find(container_id)
        lists, cache = self._options_of(environment.task_uuid).lists, self.options.cache
        environment.installed = await install_all(
            environment.adapter,
            lists,
            task_uuid=environment.task_uuid,
            cache=cache,
            reach=environment.made.reach,
        )

    # --- Taking away -------------------------------------------------------------------------

    async def _cleanup(self, task_uuid: str) -> None:
        name = container_name(task_uuid)
        environment = self._active.pop(task_uuid, None)
        self._own.pop(task_uuid, None)
        if environment is not None:
            environment.lifecycle.move(Status.STOPPED)
        is_gone = await self._remove_container(name)
        if environment is not None:
            await environment.let_go()
            if is_gone:
                environment.lifecycle.move(Status.DELETED)

    async def _remove_container(self, name: str) -> bool:  # Spec A 11.1 has the name.
        return await self._removal.remove(name)

    def find(self, container_id: str) -> Environment:
        """The environment that `prepare` gave; ConfigurationError if it is none of ours."""
        for environment in self._active.values():
            if container_id and container_id in (environment.container_id, environment.name):
                return environment
        raise ConfigurationError(
            f"{container_id!r:.80} is no environment of this manager",
            hint="use the container_id that `prepare` gave",
        )

    def _options_of(self, task_uuid: str) -> EnvironmentOptions:
        return self._own.get(task_uuid, self.options)
