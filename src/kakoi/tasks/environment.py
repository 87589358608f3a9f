"""The environment of one task: its options, its state, and what the manager reports about it."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from kakoi._support.late import dataclass
from kakoi.backends.adapter import Limits, Network
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings, Program
from kakoi.backends.docker.engine import Engine
from kakoi.backends.outlet import proxy_variables
from kakoi.channel.api import Channel, Command
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.gate import Gate
from kakoi.images.project_image import MAX_CONTEXT_BYTES, BuildLimits, ProjectBuilder
from kakoi.packages.allowlist import AllowlistConfig
from kakoi.policy.profiles import load_policy
from kakoi.policy.rules import Policy
from kakoi.process.executor import ProcessExecutor
from kakoi.sandbox.doors import DoorSandbox
from kakoi.settings.model import ExecutionSection
from kakoi.settings.tasks import TaskSection
from kakoi.tasks.checkout import PROJECT, TEMPORARY, WORKSPACE, CloneError, CloneOptions
from kakoi.tasks.containers import TaskContainer
from kakoi.tasks.dependencies import InstalledDependencies, PackageCache
from kakoi.tasks.network import NetworkAccess, is_proxied
from kakoi.tasks.task import container_name
from kakoi.tasks.transfer import read_files, read_output

_TASKS: Final = TaskSection()
_EXECUTION: Final = ExecutionSection()


def _default_policy() -> Policy:
    return load_policy(roots=[WORKSPACE])


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentOptions:
    """The options of environments. `timeout_s` and `max_output_bytes` hold for each command.

    `dockerfile`: a path in the project; its image replaces `image`.
    `allowed_domains`: what the network `allowlist` can reach. The clone and the installation of
        dependencies are restricted to it as well.
    `lists`: the packages that a project's files may ask for; None allows everything.
    `cache`: downloads of which each task gets a copy.
    `install_policy`: judges the installation of dependencies, whose names `lists` has checked;
        None means `policy`.
    `pool_size`: how many started containers wait for the next tasks.
    `is_shared`: another command executor enters the containers too.
    """

    image: str = _TASKS.base_image
    dockerfile: str = _TASKS.dockerfile
    network: Network = "open"
    allowed_domains: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    clone: CloneOptions = field(default_factory=CloneOptions)
    install_dependencies: bool = _TASKS.clone.auto_install_deps
    lists: AllowlistConfig | None = None
    cache: PackageCache | None = None
    timeout_s: float = _EXECUTION.timeout_seconds
    max_output_bytes: int = _EXECUTION.max_output_size
    stale_after: timedelta = timedelta(hours=_TASKS.cleanup.stale_threshold_hours)
    policy: Policy = field(default_factory=_default_policy)
    install_policy: Policy | None = None
    pool_size: int = _TASKS.pool_size
    is_shared: bool = False

    @property
    def access(self) -> NetworkAccess:
        """What commands can reach on the network."""
        return NetworkAccess(self.network, self.allowed_domains)

    @property
    def container(self) -> DockerSettings:
        """The settings of the container."""
        return DockerSettings(
            image=self.image,
            network=self.network,
            limits=self.limits,
            timeout_s=self.timeout_s,
            inside=PROJECT,
            directories=(WORKSPACE, TEMPORARY),
            env={"TMPDIR": TEMPORARY},
            is_shared=self.is_shared,
        )


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """A task's environment. `installed`: the results of installing its dependencies.

    `commit`: where its project was when it was cloned; nothing that ran there since can change it.
    """

    container_id: str
    task_uuid: str
    workspace_path: str
    created_at: datetime
    status: str
    name: str = ""
    installed: tuple[InstalledDependencies, ...] = ()
    commit: str = ""


@dataclass(slots=True)
class Counters:
    """How many environments and commands succeeded and failed so far."""

    prepared: int = 0
    create_failures: int = 0
    clone_failures: int = 0
    timeouts: int = 0
    commands: int = 0

    def count(self, error: BaseException) -> None:
        """Count an error that kept an environment from being prepared."""
        self.clone_failures += isinstance(error, CloneError)
        self.create_failures += isinstance(error, SandboxError) and not isinstance(
            error, CloneError
        )


class EnvironmentStatus(StrEnum):
    """The state of an environment."""

    CREATED = "created"
    INITIALIZING = "initializing"
    READY = "ready"
    RUNNING = "running"
    STOPPED = "stopped"
    DELETED = "deleted"


# Every state can stop: an environment that fails half-way is removed as well.
TRANSITIONS: Final[Mapping[EnvironmentStatus, frozenset[EnvironmentStatus]]] = {
    EnvironmentStatus.CREATED: frozenset(
        {EnvironmentStatus.INITIALIZING, EnvironmentStatus.STOPPED}
    ),
    EnvironmentStatus.INITIALIZING: frozenset({EnvironmentStatus.READY, EnvironmentStatus.STOPPED}),
    EnvironmentStatus.READY: frozenset({EnvironmentStatus.RUNNING, EnvironmentStatus.STOPPED}),
    EnvironmentStatus.RUNNING: frozenset({EnvironmentStatus.READY, EnvironmentStatus.STOPPED}),
    EnvironmentStatus.STOPPED: frozenset({EnvironmentStatus.DELETED}),
    EnvironmentStatus.DELETED: frozenset(),
}


class Lifecycle:
    """The state of one environment. It is ready again when its last running command ends."""

    def __init__(self) -> None:
        self.status = EnvironmentStatus.CREATED
        self._running = 0

    def move(self, to: EnvironmentStatus) -> None:
        """Change the state; SandboxError if that transition is not allowed."""
        if to not in TRANSITIONS[self.status]:
            raise SandboxError(
                f"an environment cannot go from {self.status} to {to}",
                details={"from": self.status, "to": to},
            )
        self.status = to

    def begin_command(self) -> None:
        """A command starts."""
        if self.status is not EnvironmentStatus.RUNNING:
            self.move(EnvironmentStatus.RUNNING)
        self._running += 1

    def end_command(self) -> None:
        """A command has ended. The environment may have been stopped meanwhile."""
        self._running -= 1
        if self._running == 0 and self.status is EnvironmentStatus.RUNNING:
            self.move(EnvironmentStatus.READY)


@dataclass(eq=False, slots=True)
class Environment:
    """The environment of one task. Its agent's commands run through `gate` only."""

    task_uuid: str
    container: TaskContainer
    box: DoorSandbox
    created_at: datetime
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    container_id: str = ""
    installed: tuple[InstalledDependencies, ...] = ()
    commit: str = ""

    @property
    def gate(self) -> Gate:
        """The gate to its container."""
        return self.box.gate

    @property
    def adapter(self) -> DockerAdapter:
        """The backend of its container."""
        return self.container.adapter

    @property
    def name(self) -> str:
        """The name of its container."""
        return container_name(self.task_uuid)

    def info(self) -> ContainerInfo:
        """The public description of the environment."""
        return ContainerInfo(
            container_id=self.container_id,
            task_uuid=self.task_uuid,
            workspace_path=PROJECT,
            created_at=self.created_at,
            status=self.lifecycle.status,
            name=self.name,
            installed=self.installed,
            commit=self.commit,
        )

    async def detach(self) -> None:
        """Disconnect from the container. It stays as it is, with its jobs."""
        await self.box.close()
        await self.container.close()


_MAX_SETTINGS_BYTES: Final = 256 * 1024
_ARCHIVE_S: Final = 300.0
# From the names and contents of the settings files that exist in a project.
ReadProject = Callable[[Mapping[str, bytes]], EnvironmentOptions]


class ProjectOptions:
    """Reads a project's own options for its environment: settings, and an image from a Dockerfile.

    They are known once the project is cloned. If it needs another container than the one it was
    cloned into, it is cloned again, into that one.

    `files`: the names of settings files. `read`: the options that result from their contents.
    `builder`: an engine whose builds respect limits; None builds nothing.
    """

    def __init__(
        self, files: tuple[str, ...], read: ReadProject | None, builder: Engine | None
    ) -> None:
        self._files = files if read is not None else ()
        self._read = read
        self._builder = builder

    async def read(self, channel: Channel, default: EnvironmentOptions) -> EnvironmentOptions:
        """The options for the cloned project; `default` itself if it has no settings."""
        found = await read_files(channel, PROJECT, self._files, most_bytes=_MAX_SETTINGS_BYTES)
        return self._read(found) if found and self._read is not None else default

    async def with_image(
        self, channel: Channel, own: EnvironmentOptions, container: str
    ) -> EnvironmentOptions:
        """The same options, with the image built from the project's Dockerfile, if it has one.

        `container`: holds the project. A build uses its network access, through the same proxy.
        """
        if not own.dockerfile:
            return own
        if self._builder is None:
            raise ConfigurationError(
                "only docker can build the Dockerfile of a project",
                hint="set tasks.base_image to an image",
            )
        by_proxy = is_proxied(own.network)
        limits = BuildLimits(
            network=f"container:{container}" if by_proxy else own.network,
            variables=proxy_variables() if by_proxy else {},
            memory_bytes=own.limits.memory_bytes,
            cpus=own.limits.cpus,
            timeout_s=own.timeout_s,
        )
        archive = await _archive(channel)
        image = await ProjectBuilder(self._builder, limits).build(archive, own.dockerfile)
        return dataclasses.replace(own, image=image, dockerfile="")


async def _archive(channel: Channel) -> bytes:
    """The project's committed files, as a tar archive."""
    argv = ["git", "-c", "core.hooksPath=/dev/null", "archive", "--format=tar", "HEAD"]
    data, result = await read_output(
        channel,
        Command(command=argv, cwd=PROJECT, timeout_s=_ARCHIVE_S),
        most_bytes=MAX_CONTEXT_BYTES,
        too_much=SandboxError(
            f"the project exceeds {MAX_CONTEXT_BYTES} bytes; no image is built from it",
            hint="build the image yourself, and set tasks.base_image to it",
        ),
    )
    if not result.ok:
        raise SandboxError(f"cannot read the project's files: {result.stderr.strip()[:300]}")
    return data


def build_engine(
    executor: ProcessExecutor, program: Program, env: Mapping[str, str]
) -> Engine | None:
    """An engine whose builds respect limits: docker's legacy builder."""
    if program != "docker":
        return None
    return Engine(executor, program=program, env={**env, "DOCKER_BUILDKIT": "0"})
