"""Settings: everything that can be set, in one typed model.

Each value has its meaning, its variable, its other names in the specs' files and what a project's
own file may do with it beside it. Files, the environment, `kakoi config` and the schema for editors
all read this one description.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, get_args

from kakoi.config.agent_settings import AgentSection
from kakoi.config.kinds import (
    COUNT,
    DOMAINS,
    FLAG,
    NUMBER,
    PATH,
    RULES,
    SIZE,
    TEXT,
    TEXTS,
    choice,
    or_none,
)
from kakoi.config.setting import Setting, described
from kakoi.config.task_settings import TaskSection
from kakoi.policy.profiles import DEFAULT_PROFILE, PROFILES
from kakoi.runner.commands import MIB
from kakoi.sandbox.adapter import DEFAULT_TIMEOUT_S, Limits, Network
from kakoi.sandbox.docker_cli import DockerSettings
from kakoi.sandbox.kubernetes_pod import POD_NETWORKS, KubernetesSettings
from kakoi.sandbox.settings import AUTO, NAMES

_DOCKER: Final = DockerSettings()
_KUBERNETES: Final = KubernetesSettings()
_LIMITS: Final = Limits()
NETWORK_NAMES: Final[tuple[str, ...]] = get_args(Network)
_TIMEOUT: Final = "Seconds for a command that names no time."


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """What may run."""

    profile: str = described(
        DEFAULT_PROFILE, choice(*PROFILES), "Which policy to judge by.", env="KAKOI_PROFILE"
    )
    use_default: bool = described(
        True,
        FLAG,
        "Start from the profile's list; false: `custom_list` is the whole list.",
        also="command_executor.allowed_commands.use_default",
    )
    additional: tuple[str, ...] = described(
        (),
        TEXTS,
        "Programs that may run, too.",
        also="command_executor.allowed_commands.additional",
    )
    exclude: tuple[str, ...] = described(
        (),
        TEXTS,
        "Programs of the list that may not run.",
        also="command_executor.allowed_commands.exclude",
        project="add",
    )
    custom_list: tuple[str, ...] = described(
        (),
        TEXTS,
        "The list, where `use_default` is false.",
        also="command_executor.allowed_commands.custom_list shell.allowed_commands",
    )
    blocked: tuple[str, ...] = described(
        (),
        TEXTS,
        "Commands that may not run whatever else is said: `git push`, `rm -r`.",
        also="shell.blocked_commands",
        project="add",
    )
    block_patterns: tuple[str, ...] = described(
        (),
        TEXTS,
        "Texts that no command may hold.",
        also="security.block_patterns",
        project="add",
    )
    packages: str = described(
        "unrestricted",
        choice("unrestricted", "allowlist"),
        "May commands install packages? `allowlist`: only the installer does, from its lists.",
        env="KAKOI_PACKAGES",
        also="packages.policy",
    )
    rules: tuple[Mapping[str, Any], ...] = described(
        (), RULES, "Rules of your own; those of a project may ask and deny.", project="add"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSection:
    """Containers."""

    image: str = described(
        _DOCKER.image, TEXT, "The image of containers.", env="KAKOI_IMAGE", project="choose"
    )
    network: str = described("none", choice(*NETWORK_NAMES), "What containers may reach.")
    timeout: float = described(DEFAULT_TIMEOUT_S, NUMBER, _TIMEOUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUseSection:
    """Environments of container-use."""

    image: str = described("", TEXT, "What new ones are made of; empty is its own choice.")
    env_id: str = described("", TEXT, "One that exists already.")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSection:
    """Pods of a cluster."""

    context: str = described("", TEXT, "The context of the kubeconfig; empty is its current one.")
    namespace: str = described("", TEXT, "Where pods are made; empty is the context's.")
    image: str = described(_KUBERNETES.image, TEXT, "The image of pods; it must have python3.")
    network: str = described("none", choice(*POD_NETWORKS), "What pods may reach.")
    runtime_class: str = described("", TEXT, "A RuntimeClass of the cluster.")
    timeout: float = described(DEFAULT_TIMEOUT_S, NUMBER, _TIMEOUT)
    start_timeout: float = described(
        _KUBERNETES.start_timeout_s, NUMBER, "Seconds until a pod must run, its image pulled."
    )
    max_age: float = described(
        _KUBERNETES.max_age_s, NUMBER, "Seconds after which the cluster ends a pod."
    )
    user: int | None = described(
        None, or_none(COUNT), "The uid of commands; `none` is one of its own for each pod."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSection:
    """This machine itself, which confines nothing unless it is told to."""

    timeout: float = described(DEFAULT_TIMEOUT_S, NUMBER, _TIMEOUT)
    warn_on_start: bool = described(True, FLAG, "Say once that nothing is confined.")
    confine: bool = described(
        False,
        FLAG,
        "Confine commands on the host by Landlock; refused where the kernel cannot.",
        env="KAKOI_CONFINE",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSection:
    """Where commands run."""

    type: str = described(
        AUTO,
        choice(AUTO, *NAMES),
        "The sandbox; `auto` is the strongest that works here, never the host unconfined.",
        env="KAKOI_SANDBOX",
        also="executor.sandbox shell.sandbox",
    )
    fallback: str = described(
        "",
        choice("", AUTO, *NAMES),
        "Where else, if that one cannot be used; with a warning.",
        env="KAKOI_FALLBACK",
    )
    network: str = described(
        "",
        choice("", *NETWORK_NAMES),
        "What may be reached, in whichever sandbox; empty is `allowlist` if there are "
        "`allowed_domains`, else the least it can give.",
        env="KAKOI_NETWORK",
        project="narrow",
    )
    allowed_domains: tuple[str, ...] = described(
        (),
        DOMAINS,
        "What `allowlist` leads to: example.org, *.example.org, example.org:8443, 10.1.0.0/16.",
        env="KAKOI_ALLOWED_DOMAINS",
        project="narrow",
    )
    kernel_allowlist: bool = described(
        False,
        FLAG,
        "The kernel keeps the list of programs, too; scripts in the workspace need their shell.",
        env="KAKOI_KERNEL_ALLOWLIST",
    )
    credentials: tuple[str, ...] = described(
        (),
        TEXTS,
        "Headers that are added on the way out: `api.example.org Authorization=VARIABLE`. The "
        "sandbox asks for http://api.example.org/, and the request goes on by TLS.",
    )
    copy_on_write: bool = described(
        False,
        FLAG,
        "Change a copy of the workspace only: see `kakoi changes`, `apply` and `discard`.",
        env="KAKOI_COW",
    )
    overlays: str = described(
        "",
        PATH,
        "Where such copies are kept; empty is kakoi/overlays in $XDG_STATE_HOME or ~/.local/state.",
        env="KAKOI_OVERLAYS",
    )
    docker: DockerSection = dataclasses.field(default_factory=DockerSection)
    container_use: ContainerUseSection = dataclasses.field(default_factory=ContainerUseSection)
    kubernetes: KubernetesSection = dataclasses.field(default_factory=KubernetesSection)
    host: HostSection = dataclasses.field(default_factory=HostSection)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSection:
    """What a sandbox may use; `none` is no limit. `kakoi doctor` says what keeps each here."""

    cpu_limit: float | None = described(
        _LIMITS.cpus,
        or_none(NUMBER),
        "Processors.",
        env="EXECUTOR_CPU_LIMIT",
        also="command_executor.docker.resources.cpu_limit",
        project="lower",
    )
    memory_limit: int | None = described(
        _LIMITS.memory_bytes,
        or_none(SIZE),
        "Memory.",
        env="EXECUTOR_MEMORY_LIMIT",
        also="command_executor.docker.resources.memory_limit",
        project="lower",
    )
    disk_limit: int | None = described(
        _LIMITS.disk_bytes,
        or_none(SIZE),
        "Disk; a workspace that is a directory of this machine is not counted.",
        also="command_executor.docker.resources.disk_limit",
        project="lower",
    )
    processes: int | None = described(
        _LIMITS.processes, or_none(COUNT), "Processes.", project="lower"
    )
    open_files: int | None = described(
        _LIMITS.open_files, or_none(COUNT), "Files that one process has open.", project="lower"
    )
    file_size_limit: int | None = described(
        _LIMITS.file_bytes, or_none(SIZE), "The size of one file.", project="lower"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSection:
    """How commands run."""

    timeout_seconds: float = described(
        1800.0,
        NUMBER,
        "How long a command may take, with all that it starts.",
        env="EXECUTOR_TIMEOUT",
        also="command_executor.execution.timeout_seconds executor.timeout shell.timeout",
        project="lower",
    )
    max_output_size: int = described(
        MIB,
        SIZE,
        "How much of each stream is kept.",
        also="command_executor.execution.max_output_size",
        project="lower",
    )
    concurrency: int = described(16, COUNT, "How many commands run at once.", project="lower")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSection:
    """The record of what happened."""

    file: str = described(
        "",
        PATH,
        "Where it is; empty is kakoi/audit.jsonl in $XDG_STATE_HOME or ~/.local/state.",
        env="KAKOI_AUDIT_FILE",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagesSection:
    """Packages that may be installed (`kakoi install`)."""

    allowlist: str = described(
        "", PATH, "The folder of apt.txt, pip.txt and npm.txt; empty are the lists of the images."
    )
    cache_dir: str = described(
        "",
        PATH,
        "Where `kakoi cache` keeps downloads; empty is kakoi/packages among the user's caches.",
    )
    log_dir: str = described(
        "",
        PATH,
        "Where requests are written to; empty is the folder of the audit log.",
        env="INSTALL_LOG_DIR",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything."""

    policy: PolicySettings = dataclasses.field(default_factory=PolicySettings)
    sandbox: SandboxSection = dataclasses.field(default_factory=SandboxSection)
    resources: ResourceSection = dataclasses.field(default_factory=ResourceSection)
    execution: ExecutionSection = dataclasses.field(default_factory=ExecutionSection)
    audit: AuditSection = dataclasses.field(default_factory=AuditSection)
    packages: PackagesSection = dataclasses.field(default_factory=PackagesSection)
    tasks: TaskSection = dataclasses.field(default_factory=TaskSection)
    agent: AgentSection = dataclasses.field(default_factory=AgentSection)


@cache
def table() -> Mapping[str, Setting]:
    """Every setting by its path, in order."""
    return dict(_leaves(Settings, ""))


@cache
def defaults() -> Mapping[str, Any]:
    """What holds where nobody says otherwise, by path."""
    built = Settings()
    return {path: value_at(built, path) for path in table()}


@cache
def section_docs() -> Mapping[str, str]:
    """What each section is about, by its path."""
    return dict(_section_docs(Settings, ""))


def value_at(settings: Settings, path: str) -> Any:
    """The value of a path."""
    found: Any = settings
    for name in path.split("."):
        found = getattr(found, name)
    return found


def build(values: Mapping[str, Any]) -> Settings:
    """Settings from values by path; the defaults where there is none."""
    built: Settings = _build(Settings, values, "")
    return built


def _leaves(model: Any, prefix: str) -> Iterator[tuple[str, Setting]]:
    for field in dataclasses.fields(model):
        path = f"{prefix}{field.name}"
        if "setting" in field.metadata:
            yield path, field.metadata["setting"]
        else:
            yield from _leaves(_section(field), f"{path}.")


def _section_docs(model: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(model):
        if "setting" not in field.metadata:
            path = f"{prefix}{field.name}"
            yield path, _section(field).__doc__
            yield from _section_docs(_section(field), f"{path}.")


def _build(model: Any, values: Mapping[str, Any], prefix: str) -> Any:
    parts: dict[str, Any] = {}
    for field in dataclasses.fields(model):
        path = f"{prefix}{field.name}"
        if "setting" not in field.metadata:
            parts[field.name] = _build(_section(field), values, f"{path}.")
        elif path in values:
            parts[field.name] = values[path]
    return model(**parts)


def _section(field: "dataclasses.Field[Any]") -> Any:
    """A section is made by its own class."""
    return field.default_factory
