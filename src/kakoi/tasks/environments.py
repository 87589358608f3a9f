"""ExecutionEnvironmentManager: one clean container for each task, from its clone to its removal.

    prepare: remove one of the same name → create → start → clone → checkout → dependencies → ready
    cleanup: stop (10 s, then kill) → remove, with its volumes; what cannot be removed is a leftover

The names and labels of the containers are the only record: after `kill -9`, a sweep finds them.
"""

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Final, Self

from kakoi._support.asyncio import finish
from kakoi.audit import AuditLog
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import Program
from kakoi.backends.docker.container import default_owner
from kakoi.backends.docker.engine import Engine
from kakoi.backends.docker.inventory import (
    ContainerUsage,
    ListedContainer,
    is_container,
    read_disk_usage,
    read_usage,
)
from kakoi.backends.settings import SandboxConfig
from kakoi.channel.api import Command
from kakoi.errors import ConfigurationError, SandboxError, SecurityError
from kakoi.gate import Approver, Gate
from kakoi.images.project_image import check_pull
from kakoi.network.git_remotes import GitCredential
from kakoi.network.proxy import Proxy
from kakoi.process.executor import ProcessExecutor
from kakoi.results import ExecutionResult, Reason
from kakoi.sandbox.doors import DoorSandbox
from kakoi.sandbox.options import SandboxOptions
from kakoi.settings.tasks import EXECUTOR_IS_OFF, HOW_TO_ENABLE
from kakoi.tasks.checkout import PROJECT, Checkout
from kakoi.tasks.containers import (
    ContainerFactory,
    OwnedContainers,
    Pool,
    TaskContainer,
    find_stale,
)
from kakoi.tasks.dependencies import install_dependencies
from kakoi.tasks.environment import (
    ContainerInfo,
    Counters,
    Environment,
    EnvironmentOptions,
    EnvironmentStatus,
    ProjectOptions,
    ReadProject,
    build_engine,
)
from kakoi.tasks.network import ProxyFactory, explain_refusals, is_proxied
from kakoi.tasks.stats import EnvironmentStats, measure, record_preparation
from kakoi.tasks.task import Task, container_name

__all__ = ["ContainerInfo", "EnvironmentOptions", "ExecutionEnvironmentManager"]
_log = logging.getLogger(__name__)
_CREATE_TRIES: Final = 3
_PAUSE_S: Final = 0.5


class ExecutionEnvironmentManager:
    """Creates environments, runs commands in them, and removes them.

    At the end of `async with`, the environments that it prepared are removed. The settings describe
    one: `kakoi.tasks.environment_manager()`.

    `clock`: the time of day, with its time zone. `credential_for`: the credential for a repository,
    or None. `ssh_env`: variables for ssh, for repositories that are fetched with it.
    `owner`: the owner of the containers; those of other owners are left alone. `project_files`,
    `read_project`: how a project's own settings change `options`; see `ProjectOptions`.
    `make_proxy`: creates the proxies of the networks `open` and `allowlist`.
    `enabled`: false as long as the settings keep tasks from running commands; then nothing is
    created, and what exists can still be used and removed.
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
        credential_for: Callable[[str], GitCredential | None] | None = None,
        ssh_env: Mapping[str, str] | None = None,
        audit: AuditLog | None = None,
        approver: Approver | None = None,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        project_files: tuple[str, ...] = (),
        read_project: ReadProject | None = None,
        make_proxy: ProxyFactory = Proxy,
        enabled: bool = True,
    ) -> None:
        self.options = options or EnvironmentOptions()
        self._enabled = enabled
        self.counters = Counters()
        self._clock = clock
        self._executor = executor or ProcessExecutor()
        owner, env = owner or default_owner(), dict(engine_env or {})
        self._engine = Engine(
            self._executor, program=program, env=env, owner=owner, by_socket=executor is None
        )
        self._factory = ContainerFactory(
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
        self._audit, self._approver = audit, approver
        self._sleep = sleep
        self._active: dict[str, Environment] = {}
        self._project_options: dict[str, EnvironmentOptions] = {}
        builder = build_engine(self._executor, program, env)
        self._projects = ProjectOptions(project_files, read_project, builder)
        self._preparing: set[str] = set()
        self._containers = OwnedContainers(self._engine, owner=owner, clock=clock)
        size, remove = self.options.pool_size, self._containers.remove
        self._pool = Pool(self._engine, self._factory.make, size=size, clock=clock, remove=remove)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        for task_uuid in list(self._active):
            await self.cleanup(task_uuid)
        await self.close()

    @property
    def leftovers(self) -> set[str]:
        """The names of containers that could not be removed."""
        return self._containers.leftovers

    # --- One task ------------------------------------------------------------------------------

    async def prepare(self, task: Task) -> ContainerInfo:
        """Create a ready environment for `task`, with its project. If it fails, nothing is left.

        SandboxError: the container could not be created. CloneError: the project could not be
        cloned. ConfigurationError: the settings keep tasks from running commands.
        """
        return (await self.prepare_environment(task)).info()

    async def prepare_environment(self, task: Task) -> Environment:
        """Like `prepare`, but return the environment itself, with its gate."""
        self._check_enabled()
        if task.uuid in self._preparing:
            raise ConfigurationError(f"task {task.uuid} is already being prepared")
        self._preparing.add(task.uuid)
        try:
            async with record_preparation(self._audit, task, sandbox=self._engine.program):
                await self.cleanup(task.uuid)
                try:
                    return await self._prepare(task)
                except BaseException as error:
                    self.counters.count(error)
                    await finish(self.cleanup(task.uuid))
                    raise
        finally:
            self._preparing.discard(task.uuid)
            self.warm_in_background()

    async def _prepare(self, task: Task) -> Environment:
        container_id = await self._create_container(task)
        await self._clone_project(container_id, task)
        container_id = await self._apply_project_options(container_id, task)
        if self.options.install_dependencies:
            await self._install_dependencies(container_id)
        environment = self.find(container_id)
        environment.lifecycle.move(EnvironmentStatus.READY)
        self.counters.prepared += 1
        return environment

    async def execute(
        self, container_id: str, command: str, *, timeout_s: float | None = None
    ) -> ExecutionResult:
        """Run a command of the task's agent: judged, recorded, and ended at its timeout.

        ConfigurationError: not an environment of this manager. SandboxError: its container is gone.
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
                hint="prepare it again",
            )
        return result

    async def cleanup(self, task_uuid: str) -> None:
        """Remove a task's environment, even another process's. One that stays is a leftover."""
        await finish(self._cleanup(task_uuid))

    async def cleanup_stale_containers(self, older_than: timedelta | None = None) -> list[str]:
        """Remove what earlier runs left behind, by name and age; returns the names removed."""
        limit = self.options.stale_after if older_than is None else older_than
        return await self._containers.sweep(older_than=limit, keep=self._in_use())

    # --- All environments --------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[ContainerInfo]:
        """`prepare`, and `cleanup` at the end, whatever happens."""
        info = await self.prepare(task)
        try:
            yield info
        finally:
            await self.cleanup(task.uuid)

    @contextlib.asynccontextmanager
    async def attached(self, task_uuid: str) -> AsyncIterator[Environment]:
        """The environment that another process prepared. It stays afterwards, with its jobs.

        Its project's own settings tighten the policy, as when it was prepared. SandboxError: it
        does not exist, or is not running.
        """
        container = await self._factory.attach(
            self.options.container, container_name(task_uuid), task_uuid
        )
        try:
            options = self._project_options.get(task_uuid) or await self._projects.read(
                await container.adapter.channel(), self.options
            )
        except BaseException:
            await finish(container.close())
            raise
        box = self._box(task_uuid, container, options)
        environment = Environment(task_uuid, container, box, self._clock())
        environment.container_id = container.adapter.container_id
        try:
            yield environment
        finally:
            await finish(environment.detach())

    async def existing(self) -> list[ListedContainer]:
        """All environments of the owner, including those of other runs, each with its task."""
        return await self._containers.list_tasks()

    async def stale(self, older_than: timedelta | None = None) -> list[str]:
        """The names that `cleanup_stale_containers` would remove now."""
        limit = self.options.stale_after if older_than is None else older_than
        found = find_stale(await self._containers.list_all(), now=self._clock(), older_than=limit)
        names = [each.name for each in found if each.name not in self._in_use()]
        return [*names, *await self._containers.stale_images(limit)]

    def _in_use(self) -> set[str]:
        active = {container_name(uuid) for uuid in (*self._active, *self._preparing)}
        return active | set(self._pool.names)

    def active(self) -> list[ContainerInfo]:
        """The environments that this manager created and has not cleaned up."""
        return [environment.info() for environment in self._active.values()]

    async def usage(self) -> dict[str, ContainerUsage]:
        """What the running environments use now, by the names of their containers."""
        names = [each.name for each in await self.existing() if each.status == "running"]
        return await read_usage(self._engine, names)

    async def disk(self) -> dict[str, int]:
        """How many bytes the environments have written, running or not, by the same names."""
        return await read_disk_usage(self._engine, [each.name for each in await self.existing()])

    async def stats(self, counters: Counters | None = None) -> EnvironmentStats:
        """What environments use and what failed. `counters`: by default, those of this manager."""
        left = self.leftovers | set(await self.stale())
        return await measure(
            self._engine,
            await self.existing(),
            leftovers=len(left),
            counters=counters or self.counters,
        )

    async def warm(self) -> None:
        """Fill the pool now, instead of after the first task."""
        self._check_enabled()
        await self._pool.fill(self.options.container)

    def warm_in_background(self) -> None:
        """Fill the pool in the background; errors are logged."""
        self._check_enabled()
        self._pool.refill(self.options.container)

    async def close(self) -> None:
        """Remove the pool, and disconnect from environments without removing them."""
        await finish(self._pool.close())
        for environment in self._active.values():
            await finish(environment.detach())

    # --- Creation ----------------------------------------------------------------------------

    def _box(
        self, task_uuid: str, container: TaskContainer, options: EnvironmentOptions
    ) -> DoorSandbox:
        """The sandbox around a container, which it leaves as it is."""
        return DoorSandbox(
            SandboxOptions(
                config=SandboxConfig(docker=options.container),
                policy=options.policy,
                backend=container.adapter,
                keeps_backend=True,
                backend_confines=options.container.network != "host",
                proxy=None if container.task_proxy is None else container.task_proxy.proxy,
                workspace=PROJECT,
                approve=self._approver,
                audit=self._audit,
                labels={"task": task_uuid},
            )
        )

    async def _create_container(self, task: Task) -> str:
        """Start a container with the task's name, from the pool or new; returns its id."""
        name = container_name(task.uuid)
        settings = self._options_of(task.uuid).container
        claimed = await self._pool.claim(settings, name)
        container = claimed or self._factory.make(settings, name, task.uuid)
        box = self._box(task.uuid, container, self._options_of(task.uuid))
        environment = Environment(task.uuid, container, box, self._clock())
        self._active[task.uuid] = environment
        if claimed is None:
            await self._open(container.adapter, name)
        container.assign(task.uuid, self.options.access)
        environment.lifecycle.move(EnvironmentStatus.INITIALIZING)
        environment.container_id = container.adapter.container_id
        return environment.container_id

    async def _open(self, adapter: DockerAdapter, name: str) -> None:
        """Create and start the container. An engine that was too slow is tried again."""
        for attempt in range(1, _CREATE_TRIES + 1):
            try:
                await adapter.channel()
                return
            except SandboxError as error:
                if attempt == _CREATE_TRIES or type(error) is not SandboxError:
                    raise
                _log.warning("trying again to create an environment: %s", error)
                await self._remove_container(name)
                await self._sleep(_PAUSE_S * attempt)

    async def _clone_project(self, container_id: str, task: Task) -> None:
        environment = self.find(container_id)
        channel = await environment.adapter.channel()
        clone = self.options.clone
        task_proxy = environment.container.task_proxy
        proxy = None if task_proxy is None else task_proxy.proxy
        checkout = Checkout(channel, self._executor, clone, proxy=proxy, ssh_env=self._ssh_env)
        with explain_refusals(task_proxy):
            environment.commit = await checkout.clone(task, self._credential_for(task.repository))

    async def _apply_project_options(self, container_id: str, task: Task) -> str:
        """Apply the project's own settings; returns the id of the container they need."""
        environment = self.find(container_id)
        defaults, channel = self.options, await environment.adapter.channel()
        own = await self._projects.read(channel, defaults)
        if own is defaults and not own.dockerfile:
            return container_id
        environment.container.set_access(own.access)
        if own.image != defaults.image:
            await check_pull(self._engine, own.image)
        own = await self._projects.with_image(channel, own, environment.name)
        # The proxy restricts the container later; created with less, it could not be cloned into.
        kept = (
            dataclasses.replace(own, network=defaults.network)
            if is_proxied(defaults.network)
            else own
        )
        self._project_options[task.uuid] = kept
        if kept.container == defaults.container:
            await environment.box.close()
            environment.box = self._box(task.uuid, environment.container, kept)
            return container_id
        await self._cleanup(task.uuid)
        self._project_options[task.uuid] = kept
        container_id = await self._create_container(task)
        await self._clone_project(container_id, task)
        self.find(container_id).container.set_access(own.access)
        return container_id

    async def _install_dependencies(self, container_id: str) -> None:
        """Install the project's dependencies. A failure is reported, and the task continues."""
        environment = self.find(container_id)
        environment.installed = await install_dependencies(
            self.install_gate(environment),
            self._options_of(environment.task_uuid).lists,
            task_uuid=environment.task_uuid,
            cache=self.options.cache,
            task_proxy=environment.container.task_proxy,
        )

    def install_gate(self, environment: Environment) -> Gate:
        """The gate through which kakoi itself installs the dependencies of a project."""
        policy = self._options_of(environment.task_uuid).install_policy
        gate = environment.gate
        return gate if policy is None else gate.with_policy(policy, approver=None, session="")

    # --- Removal -----------------------------------------------------------------------------

    async def _cleanup(self, task_uuid: str) -> None:
        name = container_name(task_uuid)
        environment = self._active.pop(task_uuid, None)
        self._project_options.pop(task_uuid, None)
        if environment is not None:
            environment.lifecycle.move(EnvironmentStatus.STOPPED)
        is_gone = await self._remove_container(name)
        if environment is not None:
            await environment.detach()
            if is_gone:
                environment.lifecycle.move(EnvironmentStatus.DELETED)

    async def _remove_container(self, name: str) -> bool:  # A name that the spec uses.
        return await self._containers.remove(name)

    def find(self, container_id: str) -> Environment:
        """The environment that `prepare` returned; ConfigurationError if it is unknown."""
        for environment in self._active.values():
            if container_id and container_id in (environment.container_id, environment.name):
                return environment
        raise ConfigurationError(
            f"{container_id!r:.80} is not an environment of this manager",
            hint="use the container_id that `prepare` returned",
        )

    def _check_enabled(self) -> None:
        if not self._enabled:
            raise ConfigurationError(EXECUTOR_IS_OFF, hint=HOW_TO_ENABLE)

    def _options_of(self, task_uuid: str) -> EnvironmentOptions:
        return self._project_options.get(task_uuid, self.options)


async def find_environment(manager: ExecutionEnvironmentManager, task: str) -> ListedContainer:
    """The environment of a task; a unique prefix of its name is enough."""
    found = await manager.existing()
    exact = [each for each in found if each.task == task]
    close = exact or [each for each in found if task and each.task.startswith(task)]
    if len(close) == 1:
        return close[0]
    if close:
        names = ", ".join(each.task for each in close[:5])
        raise SandboxError(f"several tasks begin with `{task}`: {names}")
    raise SandboxError(f"task `{task}` has no environment", hint="`kakoi env ls` lists them")


async def find_container(manager: ExecutionEnvironmentManager, container: str) -> ListedContainer:
    """The environment with this container; SecurityError if it is not one of the owner's."""
    for each in await manager.existing():
        if is_container(container, name=each.name, id=each.id):
            return each
    raise SecurityError(
        f"the environment {container[:80]!r} is not yours", hint="`kakoi env ls` lists yours"
    )
