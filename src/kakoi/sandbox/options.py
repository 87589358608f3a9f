"""What a `Sandbox` is opened with: its arguments, checked, as one value."""

import math
import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kakoi._support.late import dataclass
from kakoi._support.parsing import LONGEST_S, as_seconds, as_size, nearest
from kakoi._support.text import short_repr
from kakoi.backends.adapter import (
    DEFAULT_CONCURRENCY,
    DEFAULT_TIMEOUT_S,
    LEAST,
    Limits,
    SandboxAdapter,
)
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.kubernetes.pod import KubernetesSettings
from kakoi.backends.settings import (
    AUTO,
    CONFINED_HOST,
    NETWORKS,
    WITH_COPY_ON_WRITE,
    HostSettings,
    SandboxConfig,
)
from kakoi.channel.api import DEFAULT_OUTPUT_BYTES, Command, check_type
from kakoi.errors import ConfigurationError, LimitError, UnsupportedError
from kakoi.gate import Approver, RecordLabels
from kakoi.policy.profiles import load_policy
from kakoi.policy.rules import Policy

if TYPE_CHECKING:
    from kakoi.approvals import Approvals
    from kakoi.audit import AuditLog
    from kakoi.gate.connections import WatchableProxy

WITH_IMAGES: Final = ("docker", "podman", "kubernetes")
# A private workspace of these is a directory of this machine.
_ON_THIS_MACHINE: Final = ("bubblewrap", "host", CONFINED_HOST)
_NETWORKS: Final = ("none", "open", "host")
_LIMITS: Final = {
    "memory": "memory_bytes",
    "cpus": "cpus",
    "processes": "processes",
    "disk": "disk_bytes",
}
# How many commands of a program's own sandbox run at once; others wait.
AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """What a sandbox is opened with.

    `backend`: a backend of the caller's, instead of one that `config` describes.
    `keeps_backend`: closing the sandbox leaves that backend as it is.
    `backend_confines`: that backend confines commands, on a network of its own.
    `proxy`: decides what that backend can reach; results list what it refused.
    `workspace`: the directory of this machine that commands can change; empty: a private one. With
        a backend of the caller's, the directory in which commands start.
    `timeout_s`, `max_output_bytes`: of each command that names none; no time: no limit.
    `audit`: the audit log, instead of the one in `audit_file`; without either, the user's own.
    `unfit`: the backends that `auto` must not choose.
    `approve`, `ask_always`, `validators`, `concurrency`, `approvals`: see `Gate`.
    """

    config: SandboxConfig
    policy: Policy
    backend: SandboxAdapter | None = None
    keeps_backend: bool = False
    backend_confines: bool = False
    proxy: "WatchableProxy | None" = None
    workspace: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    approve: Approver | None = None
    ask_always: bool = False
    validators: Sequence[Callable[[str], object]] = ()
    concurrency: int = DEFAULT_CONCURRENCY
    timeout_s: float | None = DEFAULT_TIMEOUT_S
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    audit: "AuditLog | None" = None
    audit_file: Path | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    unfit: Sequence[str] = ()
    approvals: "Approvals | None" = None

    @property
    def knows_workspace(self) -> bool:
        """Whether `inside` is certain before the sandbox is open."""
        return bool(self.workspace) or (self.backend is None and self.config.type in WITH_IMAGES)

    @property
    def confined(self) -> bool:
        """Whether whichever backend is opened confines commands, on a network of its own."""
        return self.config.confines if self.backend is None else self.backend_confines

    @property
    def inside(self) -> str:
        """Where commands start, unless a private directory of this machine is made for them."""
        section = self.config.kubernetes if self.config.type == "kubernetes" else self.config.docker
        return self.workspace or section.inside

    @property
    def record_labels(self) -> dict[str, str]:
        """The labels that the audit log has fields for."""
        known = RecordLabels.__slots__
        return {name: text for name, text in self.labels.items() if name in known}


def options_from_arguments(
    backend: object,
    *,
    workspace: object,
    image: object,
    network: object,
    memory: object,
    cpus: object,
    processes: object,
    disk: object,
    env: object,
    user: object,
    policy: object,
    approve: object,
    copy_on_write: object,
    timeout: object,
    lifetime: object,
    audit: object,
    labels: object,
) -> SandboxOptions:
    """Check the arguments of `Sandbox`. Raises ConfigurationError that names the wrong one."""
    own = backend if _is_backend(backend) else None
    name = AUTO if own is not None else _backend_name(backend)
    folder = "" if workspace is None else workspace_path(workspace, is_local=own is None)
    config = _config(
        name,
        image=image,
        network=network,
        limits=_limits(memory=memory, cpus=cpus, processes=processes, disk=disk),
        user=user,
        copy_on_write=copy_on_write,
    )
    if own is None:
        _check_workspace(name, folder, config)
    else:
        _check_own_backend(config, image=image, user=user, lifetime=lifetime)
    lifetime_s = None if lifetime is None else seconds("lifetime", lifetime)
    return SandboxOptions(
        config=replace(config, lifetime_s=lifetime_s),
        policy=_policy(policy),
        backend=own,  # type: ignore[arg-type]  # It has the methods of one.
        workspace=folder,
        env=_texts("env", env),
        approve=_approver(approve),
        timeout_s=seconds("timeout", timeout),
        audit_file=_audit_file(audit),
        labels=_texts("labels", labels),
        unfit=_unfit(config, folder, image=image, user=user),
        concurrency=AT_ONCE,
    )


# --- Values ----------------------------------------------------------------------------------


def seconds(name: str, value: object) -> float | None:
    """Return a time in seconds; None for `math.inf`, which means unlimited."""
    if isinstance(value, int | float) and LONGEST_S <= value < math.inf:
        raise ConfigurationError(
            f"{name} is {short_repr(value)}; it must be below {LONGEST_S:g} seconds",
            hint="math.inf means unlimited",
        )
    return None if value == math.inf else as_seconds(value, name)


def _texts(name: str, value: object) -> dict[str, str]:
    check_type(name, value, Mapping)
    if name == "env":
        Command(command="true", env=value)  # type: ignore[arg-type]  # It checks variables.
    found: dict[str, str] = {}
    for key, text in dict(value).items():  # type: ignore[call-overload]
        if not isinstance(key, str) or not isinstance(text, str):
            raise ConfigurationError(
                f"{name} contains {short_repr(key)}; it must map names to text"
            )
        found[key] = text
    return found


def _limits(*, memory: object, cpus: object, processes: object, disk: object) -> Limits:
    standard = Limits()
    given = {
        "memory_bytes": None if memory is None else as_size(memory, "memory"),
        "cpus": cpus,
        "processes": processes,
        "disk_bytes": None if disk is None else as_size(disk, "disk"),
    }
    for name, value in (("cpus", cpus), ("processes", processes)):
        kinds = (int, float) if name == "cpus" else (int,)
        check_type(name, value, *kinds, type(None))
        if isinstance(value, int | float) and not 0 < value < 2**31:
            raise ConfigurationError(f"{name} is {value}; it must be above zero")
    for argument, limit in _LIMITS.items():
        number = given[limit]
        if isinstance(number, int) and number < LEAST[limit]:
            raise ConfigurationError(f"{argument} is {number}; it must be at least {LEAST[limit]}")
    return replace(standard, **given)  # type: ignore[arg-type]


def path_text(name: str, value: object) -> str:
    """Return a path as text. Raises ConfigurationError if it cannot be one."""
    check_type(name, value, str, os.PathLike)
    text = os.fsdecode(value) if isinstance(value, str | os.PathLike) else ""
    if not text or "\0" in text:
        raise ConfigurationError(f"{name} is {short_repr(text)}; it must be a path")
    return text


def _policy(value: object) -> Policy:
    if isinstance(value, Policy):
        return value
    if not isinstance(value, str):
        raise ConfigurationError(
            f"policy is {type(value).__name__}; it must be the name of a profile, or a Policy"
        )
    return load_policy(value)


def _approver(value: object) -> Approver | None:
    if value is not None and not callable(value):
        raise ConfigurationError(f"approve is {type(value).__name__}; it must be a function")
    return value


def _audit_file(value: object) -> Path | None:
    check_type("audit", value, str, os.PathLike, type(None))
    return None if value is None else Path(path_text("audit", value)).absolute()


def workspace_path(value: object, *, is_local: bool = True) -> str:
    """Return the directory without links. Raises ConfigurationError if it is not a directory.

    `is_local`: it is a directory of this machine, not one that only a backend knows.
    """
    text = path_text("workspace", value)
    if not is_local:
        if not text.startswith("/"):
            raise ConfigurationError(f"workspace is {short_repr(text)}; it must be absolute")
        return posixpath.normpath(text)
    if not os.path.isdir(text):
        raise ConfigurationError(
            f"workspace is {short_repr(text)}, which is not a directory",
            hint="create it first, or leave it out for a private one",
        )
    return os.path.realpath(text)


# --- The backend -----------------------------------------------------------------------------


def _is_backend(value: object) -> bool:
    return not isinstance(value, str) and all(
        hasattr(type(value), each)
        for each in ("run", "channel", "shell", "cleanup", "limit_report")
    )


def _backend_name(value: object) -> str:
    known = [AUTO, *NETWORKS]
    if not isinstance(value, str):
        raise ConfigurationError(
            f"backend is {type(value).__name__}; it must be a name, or a backend of your own",
            hint=f"one of: {', '.join(known)}",
        )
    if value not in known:
        # Looking for plug-ins takes a moment.
        from kakoi.backends.plugins import plugin_names

        known += [each for each in plugin_names() if each not in known]
    if value not in known:
        raise ConfigurationError(
            f"backend is {short_repr(value)}, which does not exist{nearest(value, known)}",
            hint=f"one of: {', '.join(known)}",
        )
    return value


def _config(
    name: str,
    *,
    image: object,
    network: object,
    limits: Limits,
    user: object,
    copy_on_write: object,
) -> SandboxConfig:
    check_type("image", image, str, type(None))
    check_type("user", user, str, type(None))
    check_type("copy_on_write", copy_on_write, bool)
    pictured = {} if image is None else {"image": image}
    docker = DockerSettings(limits=limits, user=user, **pictured)  # type: ignore[arg-type]
    pod = KubernetesSettings(**pictured)  # type: ignore[arg-type]
    if user is not None and name == "kubernetes":
        pod = replace(pod, user=_uid(user))
    if user is not None and name not in (AUTO, *WITH_IMAGES):
        raise ConfigurationError(
            f"user is {short_repr(user)}; {name} chooses the user of commands itself",
            hint=f"leave it out, or use {', '.join(WITH_IMAGES)}",
        )
    if image is not None and name not in (AUTO, *WITH_IMAGES):
        raise ConfigurationError(
            f"image is {short_repr(image)}; {name} has no images",
            hint=f"leave it out, or use {', '.join(WITH_IMAGES)}",
        )
    word, domains = _network(name, network)
    return SandboxConfig(
        type="host" if name == CONFINED_HOST else name,
        network=word,  # type: ignore[arg-type]  # It is checked there.
        allowed_domains=domains,
        copy_on_write=bool(copy_on_write),
        docker=docker,
        kubernetes=pod,
        host=HostSettings(confine=name == CONFINED_HOST),
    )


def _uid(user: object) -> int:
    if isinstance(user, str) and user.isascii() and user.isdigit():
        return int(user)
    raise ConfigurationError(f"user is {short_repr(user)}; for kubernetes it must be a number")


def _network(name: str, value: object) -> tuple[str | None, tuple[str, ...]]:
    """Return the network and the domains that it reaches."""
    if isinstance(value, list | tuple) and all(isinstance(each, str) for each in value):
        # Few sandboxes have a network.
        from kakoi.network.domains import parse_domains

        word, domains = "allowlist", tuple(value)
        parse_domains(domains, origin="network")
        if not domains:
            word = "none"
    elif isinstance(value, str) and value in _NETWORKS:
        word, domains = value, ()
    else:
        raise ConfigurationError(
            f"network is {short_repr(value)}; it must be `none`, `open`, `host` or a list of "
            f"domains{nearest(value, _NETWORKS)}"
        )
    possible = NETWORKS.get(name)
    if possible is None or word in possible:
        return word, domains
    if name == "host" and word == "none":
        # Nothing is asked for, and the host cannot keep anything from the network.
        return None, ()
    raise ConfigurationError(
        f"network is {short_repr(value)}, which {name} does not have",
        hint="it has " + ", ".join(f"`{each}`" for each in possible if each in _NETWORKS),
    )


def _check_workspace(name: str, folder: str, config: SandboxConfig) -> None:
    """Refuse a workspace that the backend cannot show, copy or limit as requested."""
    if config.copy_on_write and not folder:
        raise ConfigurationError(
            "copy_on_write is True, but there is no workspace to copy",
            hint="pass `workspace`; a private one has checkpoints and forks without it",
        )
    if config.copy_on_write and name not in (AUTO, *WITH_COPY_ON_WRITE):
        raise UnsupportedError(
            f"copy_on_write is True; {name} has no copies of a workspace",
            hint=f"use {', '.join(WITH_COPY_ON_WRITE)}",
        )
    if folder and name == "kubernetes":
        raise ConfigurationError(
            f"workspace is {short_repr(folder)}; a pod cannot see directories of this machine",
            hint="leave it out, and copy the files with `files.upload`",
        )
    if not folder and name in _ON_THIS_MACHINE and config.docker.limits.is_asked("disk_bytes"):
        raise LimitError(
            f"{name} cannot limit the disk of a private workspace, which is a directory of this "
            "machine",
            details={"limits": ["disk"]},
            hint="use docker, or leave `disk` out",
        )


def _check_own_backend(config: SandboxConfig, **given: object) -> None:
    """Refuse what would describe a backend: the caller has already made it."""
    limits = config.docker.limits
    given |= {
        "network": None if config.network == "none" else config.network,
        "copy_on_write": config.copy_on_write or None,
        **{argument: limits.is_asked(name) or None for argument, name in _LIMITS.items()},
    }
    for argument, value in given.items():
        if value is not None:
            raise ConfigurationError(
                f"{argument} is given with a backend of your own, which decides that itself",
                hint=f"leave `{argument}` out, and set it where you make the backend",
            )


def _unfit(config: SandboxConfig, folder: str, *, image: object, user: object) -> list[str]:
    """Return the backends that `auto` must not choose: they cannot do what was asked for."""
    if config.type != AUTO:
        return []
    with_images = image is not None or user is not None
    limited_disk = not folder and config.docker.limits.is_asked("disk_bytes")
    return [
        name
        for name, networks in NETWORKS.items()
        if (with_images and name not in WITH_IMAGES)
        or (config.network is not None and config.network not in networks)
        or (limited_disk and name in _ON_THIS_MACHINE)
    ]
