"""ExecutionEnvironmentManager: one clean container for each task, from its clone to its removal.

    prepare: remove a namesake → create → start → clone → checkout → dependencies → ready
    cleanup: stop (10 s, then kill) → remove, with its volumes; what stays is written down

The names and labels of containers are the only register: after `kill -9`, a sweep finds them.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from kakoi.audit import AuditLog
from kakoi.errors import ConfigurationError, KakoiError, SandboxError
from kakoi.gate import Approver, Gate, Labels
from kakoi.policy.profiles import load_policy
from kakoi.policy.rules import Policy
from kakoi.process.executor import ProcessExecutor
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import MIB, Command
from kakoi.sandbox.adapter import Limits, Network
from kakoi.sandbox.docker import DockerAdapter
from kakoi.sandbox.docker_cli import DockerSettings, Program, Tag
from kakoi.sandbox.docker_container import default_owner, finish
from kakoi.sandbox.docker_engine import Engine
from kakoi.sandbox.docker_listing import Listed, list_containers, stale
from kakoi.tasks.checkout import PROJECT, Checkout, CloneError, CloneOptions
from kakoi.tasks.dependencies import Step, steps_for
from kakoi.tasks.lifecycle import Lifecycle, Status
from kakoi.tasks.remotes import Credential
from kakoi.tasks.task import PREFIX, Task, container_name

_log = logging.getLogger(__name__)
WORKSPACE: Final = "/workspace"
TEMPORARY: Final = "/workspace/tmp"
GRACE_S: Final = 10
_TRIES: Final = 3
_PAUSE_S: Final = 0.5
_INSTALL_S: Final = 600.0


def _default_policy() -> Policy:
    return load_policy(roots=[WORKSPACE])


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentOptions:
    """What environments are like. `timeout_s` and `max_output_bytes` are those of one command."""

    image: str = "coding-agent-executor:latest"
    network: Network = "bridge"
    limits: Limits = field(default_factory=Limits)
    clone: CloneOptions = field(default_factory=CloneOptions)
    install_dependencies: bool = True
    timeout_s: float = 1800.0
    max_output_bytes: int = MIB
    stale_after: timedelta = timedelta(hours=24)
    policy: Policy = field(default_factory=_default_policy)


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """A task's environment. `installed` says how the installation of dependencies went."""

    container_id: str
    task_uuid: str
    workspace_path: str
    created_at: datetime
    status: str
    name: str = ""
    installed: tuple["Installed", ...] = ()


@dataclass(frozen=True, slots=True)
class Installed:
    """One step of the installation of dependencies, and what came of it."""

    step: Step
    ok: bool
    said: str = ""


@dataclass(slots=True)
class Counters:
    """What went wrong so far (spec A 13.2), and what did not."""

    prepared: int = 0
    create_failures: int = 0
    clone_failures: int = 0
    timeouts: int = 0
    commands: int = 0


@dataclass(eq=False, slots=True)
class _Environment:
    task: Task
    adapter: DockerAdapter
    gate: Gate
    created_at: datetime
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    container_id: str = ""
    installed: tuple[Installed, ...] = ()

    def info(self) -> ContainerInfo:
        return ContainerInfo(
            container_id=self.container_id,
            task_uuid=self.task.uuid,
            workspace_path=PROJECT,
            created_at=self.created_at,
            status=self.lifecycle.status,
            name=container_name(self.task.uuid),
            installed=self.installed,
        )


class ExecutionEnvironmentManager:
    """Makes environments, runs commands in them, and takes them away.

    `clock`: the time of day, with its zone. `credential_for`: a secret for a repository's address,
    or None. `owner`: whose containers these are; nobody else's are touched.
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
        audit: AuditLog | None = None,
        approver: Approver | None = None,
    ) -> None:
        self.options = options or EnvironmentOptions()
        self.counters = Counters()
        self.leftovers: set[str] = set()
        self._clock = clock
        self._executor = executor or ProcessExecutor()
        self._program: Program = program
        self._owner = owner or default_owner()
        self._engine_env = dict(engine_env or {})
        self._engine = Engine(self._executor, program=program, env=self._engine_env)
        self._credential_for = credential_for or (lambda _address: None)
        self._audit = audit
        self._approver = approver
        self._active: dict[str, _Environment] = {}

    # --- Spec A ------------------------------------------------------------------------------

    async def prepare(self, task: Task) -> ContainerInfo:
        """A ready environment for `task`, with its project in it. If it fails, nothing is left.

        SandboxError: the container could not be made. CloneError: the project could not be had.
        """
        await self.cleanup(task.uuid)
        environment = self._new(task)
        self._active[task.uuid] = environment
        try:
            await self._initialize(environment)
        except BaseException as error:
            self._count(error)
            await finish(self.cleanup(task.uuid))
            raise
        self.counters.prepared += 1
        return environment.info()

    async def execute(
        self, container_id: str, command: str, *, timeout_s: float | None = None
    ) -> ExecutionResult:
        """Run a command of the task's agent: judged, recorded, and ended in time.

        SandboxError: it is no environment of ours, or its container is gone.
        """
        environment = self._find(container_id)
        options = self.options
        environment.lifecycle.begin_command()
        try:
            result = await environment.gate.run(
                Command(
                    command=command,
                    cwd=PROJECT,
                    timeout_s=timeout_s or options.timeout_s,
                    max_output_bytes=options.max_output_bytes,
                )
            )
        finally:
            environment.lifecycle.end_command()
        self.counters.commands += 1
        self.counters.timeouts += result.reason is Reason.TIMED_OUT
        if result.reason is Reason.SANDBOX_LOST:
            raise SandboxError(
                f"the environment of task {environment.task.uuid} was lost: {result.error}",
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
        found = await self.existing()
        old = stale(found, prefix=PREFIX, now=self._clock(), older_than=limit)
        ours = {container_name(uuid) for uuid in self._active}
        removed = [each.name for each in old if each.name not in ours]
        gone = await asyncio.gather(*(self._remove(name) for name in removed))
        return [name for name, is_gone in zip(removed, gone, strict=True) if is_gone]

    # --- Beyond ------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[ContainerInfo]:
        """`prepare`, and `cleanup` on every way out."""
        info = await self.prepare(task)
        try:
            yield info
        finally:
            await self.cleanup(task.uuid)

    async def existing(self) -> list[Listed]:
        """Every container of ours that there is, also those of other runs."""
        found = await list_containers(self._engine, owner=self._owner)
        return [each for each in found if each.name.startswith(PREFIX)]

    def active(self) -> list[ContainerInfo]:
        """The environments that this manager has made and not cleaned up."""
        return [environment.info() for environment in self._active.values()]

    async def sweep_forever(
        self, interval: timedelta, *, sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    ) -> None:
        """Look for leftovers now, and again after each `interval`, until cancelled."""
        while True:
            try:
                removed = await self.cleanup_stale_containers()
                if removed:
                    _log.warning("removed what was left behind: %s", ", ".join(removed))
            except KakoiError as error:
                _log.warning("could not look for leftovers: %s", error)
            await sleep(interval.total_seconds())

    # --- Making ------------------------------------------------------------------------------

    def _new(self, task: Task) -> _Environment:
        options = self.options
        settings = DockerSettings(
            image=options.image,
            network=options.network,
            limits=options.limits,
            timeout_s=options.timeout_s,
            inside=PROJECT,
            directories=(WORKSPACE, TEMPORARY),
            env={"TMPDIR": TEMPORARY},
        )
        adapter = DockerAdapter(
            settings,
            self._executor,
            program=self._program,
            lifetime="sandbox",
            tag=Tag(
                owner=self._owner,
                task=task.uuid,
                name=container_name(task.uuid),
                max_age_s=options.stale_after.total_seconds(),
            ),
            clock=lambda: self._clock().timestamp(),
            engine_env=self._engine_env,
        )
        gate = Gate(
            options.policy,
            adapter,
            cwd=PROJECT,
            audit=self._audit,
            approver=self._approver,
            labels=Labels(task=task.uuid),
        )
        return _Environment(task, adapter, gate, self._clock())

    async def _initialize(self, environment: _Environment) -> None:
        task = environment.task
        await self._open(environment)
        environment.lifecycle.move(Status.INITIALIZING)
        name = container_name(task.uuid)
        asked = ["container", "inspect", "--format", "{{.Id}}", name]
        environment.container_id = (
            await self._engine.must(asked, doing="looking at a container", about=name)
        ).strip()
        checkout = Checkout(environment.adapter, self._executor, self.options.clone)
        await checkout.clone(task, self._credential_for(task.repository))
        if self.options.install_dependencies:
            environment.installed = await self._install(environment)
        environment.lifecycle.move(Status.READY)

    async def _open(self, environment: _Environment) -> None:
        """Create and start the container; an engine that was too slow gets another try."""
        for attempt in range(1, _TRIES + 1):
            try:
                await environment.adapter.channel()
                return
            except SandboxError as error:
                if attempt == _TRIES or type(error) is not SandboxError:
                    raise
                _log.warning("trying again to make an environment: %s", error)
                await self._remove(container_name(environment.task.uuid))
                await asyncio.sleep(_PAUSE_S * attempt)

    async def _install(self, environment: _Environment) -> tuple[Installed, ...]:
        """Install what the project depends on. A failure is told, and the task goes on."""
        channel = await environment.adapter.channel()
        files = [each.name for each in await channel.list_files(PROJECT)]
        done = []
        for step in steps_for(files):
            command = Command(command=step.command, cwd=PROJECT, timeout_s=_INSTALL_S)
            result = await environment.adapter.run(command)
            said = "" if result.ok else (result.stderr or result.stdout or result.error)[-2000:]
            if not result.ok:
                _log.warning("`%s` failed in task %s", step.command, environment.task.uuid)
            done.append(Installed(step, result.ok, said))
        return tuple(done)

    # --- Taking away -------------------------------------------------------------------------

    async def _cleanup(self, task_uuid: str) -> None:
        name = container_name(Task(uuid=task_uuid, repository="-").uuid)
        environment = self._active.pop(task_uuid, None)
        if environment is not None:
            environment.lifecycle.move(Status.STOPPED)
        is_gone = await self._remove(name)
        if environment is not None:
            await environment.gate.close()
            await environment.adapter.close()
            if is_gone:
                environment.lifecycle.move(Status.DELETED)

    async def _remove(self, name: str) -> bool:
        """Stop it, kill it after the grace, remove it; False and a leftover if it stays."""
        try:
            state = await self._engine.state(name)
            if state.running:
                args = ["stop", "-t", str(GRACE_S), name]
                await self._engine.call(args, doing="stopping a container")
            if state.status != "gone":
                await self._engine.remove(name)
        except KakoiError as error:
            _log.warning("the container %s could not be removed: %s", name, error)
            self.leftovers.add(name)
            return False
        self.leftovers.discard(name)
        return True

    def _find(self, container_id: str) -> _Environment:
        for environment in self._active.values():
            if container_id in (environment.container_id, container_name(environment.task.uuid)):
                return environment
        raise ConfigurationError(
            f"{container_id!r:.80} is no environment of this manager",
            hint="use the container_id that `prepare` gave",
        )

    def _count(self, error: BaseException) -> None:
        if isinstance(error, CloneError):
            self.counters.clone_failures += 1
        elif isinstance(error, SandboxError):
            self.counters.create_failures += 1
