"""What environments of tasks are like, and what is told about them."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from kakoi.errors import SandboxError
from kakoi.packages.allowlist import AllowlistConfig
from kakoi.policy.profiles import load_policy
from kakoi.policy.rules import Policy
from kakoi.runner.commands import MIB
from kakoi.sandbox.adapter import Limits, Network
from kakoi.sandbox.docker_cli import DockerSettings
from kakoi.tasks.caching import Cache
from kakoi.tasks.checkout import PROJECT, CloneError, CloneOptions
from kakoi.tasks.dependencies import Step
from kakoi.tasks.reaching import Reachable
from kakoi.tasks.task import DEFAULT_IMAGE

WORKSPACE: Final = "/workspace"
TEMPORARY: Final = "/workspace/tmp"


def _default_policy() -> Policy:
    return load_policy(roots=[WORKSPACE])


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentOptions:
    """What environments are like. `timeout_s` and `max_output_bytes` are those of one command.

    `dockerfile`: a path in the project; the image that it describes takes the place of `image`.
    `allowed_domains`: what the network `allowlist` leads to; the clone and the installation
        of dependencies go by it, too.
    `lists`: what the project's own files may ask for; None is everything.
    `cache`: downloads that each task is given a copy of.
    `pool_size`: how many started containers wait for the next tasks.
    """

    image: str = DEFAULT_IMAGE
    dockerfile: str = ""
    network: Network = "open"
    allowed_domains: tuple[str, ...] = ()
    limits: Limits = field(default_factory=Limits)
    clone: CloneOptions = field(default_factory=CloneOptions)
    install_dependencies: bool = True
    lists: AllowlistConfig | None = None
    cache: Cache | None = None
    timeout_s: float = 1800.0
    max_output_bytes: int = MIB
    stale_after: timedelta = timedelta(hours=24)
    policy: Policy = field(default_factory=_default_policy)
    pool_size: int = 0

    @property
    def reachable(self) -> Reachable:
        """What commands may reach."""
        return Reachable(self.network, self.allowed_domains)

    @property
    def container(self) -> DockerSettings:
        """The container that they ask for."""
        return DockerSettings(
            image=self.image,
            network=self.network,
            limits=self.limits,
            timeout_s=self.timeout_s,
            inside=PROJECT,
            directories=(WORKSPACE, TEMPORARY),
            env={"TMPDIR": TEMPORARY},
        )


@dataclass(frozen=True, slots=True)
class Installed:
    """One step of the installation of dependencies, and what came of it."""

    step: Step
    ok: bool
    said: str = ""


@dataclass(frozen=True, slots=True)
class ContainerInfo:
    """A task's environment. `installed` says how the installation of dependencies went."""

    container_id: str
    task_uuid: str
    workspace_path: str
    created_at: datetime
    status: str
    name: str = ""
    installed: tuple[Installed, ...] = ()


@dataclass(slots=True)
class Counters:
    """What went wrong so far (spec A 13.2), and what did not."""

    prepared: int = 0
    create_failures: int = 0
    clone_failures: int = 0
    timeouts: int = 0
    commands: int = 0

    def count(self, error: BaseException) -> None:
        """An environment could not be made."""
        self.clone_failures += isinstance(error, CloneError)
        self.create_failures += isinstance(error, SandboxError) and not isinstance(
            error, CloneError
        )
