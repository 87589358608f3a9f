"""Settings: everything that can be set, in one typed model.

Each field states its description, its environment variables, its names in other configuration files
and what a project's own file can do with it. The loader, `kakoi config` and the JSON Schema for
editors all read this one model.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from kakoi._support.fields import (
    COUNT,
    FLAG,
    FOLDERS,
    FROM_ZERO,
    PATH,
    RULES,
    SECONDS,
    SIZE,
    TEXTS,
    Setting,
    choice,
    described,
    or_none,
    same_as,
    subsection,
)
from kakoi._support.late import dataclass
from kakoi.backends.adapter import DEFAULT_CONCURRENCY, Limits, Network
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.kubernetes.pod import KubernetesSettings
from kakoi.backends.settings import ContainerUseSettings, HostSettings, SandboxConfig
from kakoi.channel.api import DEFAULT_OUTPUT_BYTES
from kakoi.policy.profiles import DEFAULT_PROFILE, PROFILES, AllowedCommands
from kakoi.settings.agent import AgentSection
from kakoi.settings.tasks import TaskSection


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Which commands are allowed to run."""

    profile: str = described(
        DEFAULT_PROFILE,
        choice(*PROFILES),
        "The policy that commands are checked against. `open` refuses nothing: only the sandbox "
        "protects.",
        env="KAKOI_PROFILE",
    )
    use_default: bool = same_as(
        AllowedCommands, "use_default", also="command_executor.allowed_commands.use_default"
    )
    additional: tuple[str, ...] = same_as(
        AllowedCommands, "additional", also="command_executor.allowed_commands.additional"
    )
    exclude: tuple[str, ...] = same_as(
        AllowedCommands,
        "exclude",
        also="command_executor.allowed_commands.exclude",
        project="add",
    )
    custom_list: tuple[str, ...] = same_as(
        AllowedCommands,
        "custom_list",
        also="command_executor.allowed_commands.custom_list shell.allowed_commands",
    )
    blocked: tuple[str, ...] = described(
        (),
        TEXTS,
        "Commands to refuse even if something else allows them: `git push`, `rm -r`.",
        also="shell.blocked_commands",
        project="add",
    )
    block_patterns: tuple[str, ...] = described(
        (),
        TEXTS,
        "Strings that no command may contain.",
        also="security.block_patterns",
        project="add",
    )
    packages: str = described(
        "unrestricted",
        choice("unrestricted", "allowlist"),
        "Whether commands can install packages. `allowlist`: only the installer can, from its "
        "lists.",
        env="KAKOI_PACKAGES",
        also="packages.policy",
    )
    enabled: bool = described(
        True,
        FLAG,
        "Whether any command can run; `false` refuses all of them.",
        also="shell.enabled",
    )
    require_confirmation: bool = described(
        False,
        FLAG,
        "Ask the user before every command that the policy allows.",
        also="shell.require_confirmation",
    )
    remember_days: int = described(
        30,
        FROM_ZERO,
        "How many days a remembered approval is valid; `0` turns remembered approvals off.",
        env="KAKOI_REMEMBER_DAYS",
        project="lower",
    )
    allowed_directories: tuple[str, ...] | None = described(
        None,
        or_none(FOLDERS),
        "The directories that a workspace must be in; `none` means anywhere.",
        also="shell.allowed_directories",
    )
    rules: tuple[Mapping[str, Any], ...] = described(
        (), RULES, "Your own rules; a project's rules can only ask or deny.", project="add"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class DockerSection:
    """Docker containers."""

    image: str = same_as(DockerSettings, "image", env="KAKOI_IMAGE", project="choose")
    network: Network | None = same_as(DockerSettings, "network")
    timeout: float = same_as(DockerSettings, "timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUseSection:
    """Environments of container-use."""

    image: str = same_as(ContainerUseSettings, "image")
    env_id: str = same_as(ContainerUseSettings, "env_id")
    timeout: float = same_as(ContainerUseSettings, "timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesSection:
    """Kubernetes pods."""

    context: str = same_as(KubernetesSettings, "context")
    namespace: str = same_as(KubernetesSettings, "namespace")
    image: str = same_as(KubernetesSettings, "image")
    network: Network | None = same_as(KubernetesSettings, "network")
    runtime_class: str = same_as(KubernetesSettings, "runtime_class")
    timeout: float = same_as(KubernetesSettings, "timeout_s")
    start_timeout: float = same_as(KubernetesSettings, "start_timeout_s")
    max_age: float = same_as(KubernetesSettings, "max_age_s")
    user: int | None = same_as(KubernetesSettings, "user")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSection:
    """This machine itself, which confines nothing unless `confine` is set."""

    timeout: float = same_as(HostSettings, "timeout_s")
    warn_on_start: bool = same_as(HostSettings, "warn_on_start")
    confine: bool = same_as(HostSettings, "confine", env="KAKOI_CONFINE")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxSection:
    """Where commands run."""

    type: str = same_as(
        SandboxConfig, "type", env="KAKOI_SANDBOX", also="executor.sandbox shell.sandbox"
    )
    fallback: str | None = same_as(SandboxConfig, "fallback", env="KAKOI_FALLBACK")
    network: Network | None = same_as(
        SandboxConfig, "network", env="KAKOI_NETWORK", project="narrow"
    )
    allowed_domains: tuple[str, ...] = same_as(
        SandboxConfig, "allowed_domains", env="KAKOI_ALLOWED_DOMAINS", project="narrow"
    )
    kernel_allowlist: bool = same_as(
        SandboxConfig, "kernel_allowlist", env="KAKOI_KERNEL_ALLOWLIST"
    )
    credentials: tuple[str, ...] = same_as(SandboxConfig, "credentials")
    copy_on_write: bool = same_as(SandboxConfig, "copy_on_write", env="KAKOI_COW")
    overlays: str = same_as(SandboxConfig, "overlays", env="KAKOI_OVERLAYS")
    docker: DockerSection = subsection(DockerSection)
    container_use: ContainerUseSection = subsection(ContainerUseSection)
    kubernetes: KubernetesSection = subsection(KubernetesSection)
    host: HostSection = subsection(HostSection)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSection:
    """Limits of a sandbox; `none` means no limit. `kakoi doctor` shows what enforces each here."""

    cpu_limit: float | None = same_as(
        Limits,
        "cpus",
        env="EXECUTOR_CPU_LIMIT",
        also="command_executor.docker.resources.cpu_limit",
        project="lower",
    )
    memory_limit: int | None = same_as(
        Limits,
        "memory_bytes",
        env="EXECUTOR_MEMORY_LIMIT",
        also="command_executor.docker.resources.memory_limit",
        project="lower",
    )
    disk_limit: int | None = same_as(
        Limits,
        "disk_bytes",
        also="command_executor.docker.resources.disk_limit",
        project="lower",
    )
    processes: int | None = same_as(Limits, "processes", project="lower")
    open_files: int | None = same_as(Limits, "open_files", project="lower")
    file_size_limit: int | None = same_as(Limits, "file_bytes", project="lower")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionSection:
    """How commands run."""

    # Other entry points have a default timeout of their own: `backends/adapter.py` (Python),
    # `tools/commands.py` (models), `shell.py` and `bash_executor/executor.py`.

    timeout_seconds: float = described(
        1800.0,
        SECONDS,
        "Timeout in seconds for a command and everything it starts.",
        env="EXECUTOR_TIMEOUT",
        also="command_executor.execution.timeout_seconds executor.timeout shell.timeout",
        project="lower",
    )
    max_output_size: int = described(
        DEFAULT_OUTPUT_BYTES,
        SIZE,
        "How much of each output stream is kept.",
        also="command_executor.execution.max_output_size",
        project="lower",
    )
    concurrency: int = described(
        DEFAULT_CONCURRENCY, COUNT, "How many commands run at once.", project="lower"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSection:
    """The audit log: the record of what happened."""

    file: str = described(
        "",
        PATH,
        "The log file; empty means kakoi/audit.jsonl in $XDG_STATE_HOME or ~/.local/state.",
        env="KAKOI_AUDIT_FILE",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagesSection:
    """Package installation (`kakoi install`)."""

    allowlist: str = described(
        "",
        PATH,
        "The folder with apt.txt, pip.txt and npm.txt; empty means the lists that kakoi's images "
        "use.",
    )
    cache_dir: str = described(
        "",
        PATH,
        "The folder where `kakoi cache` keeps downloads; empty means kakoi/packages in the user's "
        "cache folder.",
    )
    log_dir: str = described(
        "",
        PATH,
        "The folder where install requests are logged; empty means the folder of the audit log.",
        env="INSTALL_LOG_DIR",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings."""

    policy: PolicySettings = subsection(PolicySettings)
    sandbox: SandboxSection = subsection(SandboxSection)
    resources: ResourceSection = subsection(ResourceSection)
    execution: ExecutionSection = subsection(ExecutionSection)
    audit: AuditSection = subsection(AuditSection)
    packages: PackagesSection = subsection(PackagesSection)
    tasks: TaskSection = subsection(TaskSection)
    agent: AgentSection = subsection(AgentSection)


@cache
def settings_table() -> Mapping[str, Setting]:
    """Return every setting by its path, in order."""
    return dict(_leaves(Settings, ""))


@cache
def defaults() -> Mapping[str, Any]:
    """Return the default values by path."""
    built = Settings()
    return {path: value_at(built, path) for path in settings_table()}


@cache
def section_docs() -> Mapping[str, str]:
    """Return the description of each section by path."""
    return dict(_section_docs(Settings, ""))


def value_at(settings: Settings, path: str) -> Any:
    """Return the value at a path."""
    found: Any = settings
    for name in path.split("."):
        found = getattr(found, name)
    return found


def build(values: Mapping[str, Any]) -> Settings:
    """Build settings from values by path; missing ones are the defaults."""
    built: Settings = _build(Settings, values, "")
    return built


def _leaves(model: Any, prefix: str) -> Iterator[tuple[str, Setting]]:
    for field in dataclasses.fields(model):
        path = f"{prefix}{field.name}"
        if "section" in field.metadata:
            yield from _leaves(field.metadata["section"], f"{path}.")
        else:
            yield path, field.metadata["setting"]


def _section_docs(model: Any, prefix: str) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(model):
        if "section" in field.metadata:
            path, section = f"{prefix}{field.name}", field.metadata["section"]
            yield path, section.__doc__
            yield from _section_docs(section, f"{path}.")


def _build(model: Any, values: Mapping[str, Any], prefix: str) -> Any:
    parts: dict[str, Any] = {}
    for field in dataclasses.fields(model):
        path = f"{prefix}{field.name}"
        if "section" in field.metadata:
            parts[field.name] = _build(field.metadata["section"], values, f"{path}.")
        elif path in values:
            parts[field.name] = values[path]
    return model(**parts)
