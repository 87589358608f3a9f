"""SandboxConfig: the `sandbox:` section of a configuration, read strictly.

Spec B writes its keys in camelCase; both spellings are read, and we write snake_case. Times in
files are seconds. An unknown key is an error that names the nearest known one.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, get_args

from kakoi.errors import ConfigurationError
from kakoi.runner.commands import check_type
from kakoi.sandbox.adapter import DEFAULT_TIMEOUT_S, PROXIED, Network
from kakoi.sandbox.docker_cli import IMAGE, DockerSettings
from kakoi.sandbox.kubernetes_pod import POD_NETWORKS, KubernetesSettings
from kakoi.sections import Section, nearest, wrong

AUTO: Final = "auto"
# What the host is if it is confined (`host.confine`); `auto` may take it.
CONFINED_HOST: Final = "confined-host"
NAMES: Final = ("bubblewrap", "docker", "podman", "container-use", "kubernetes", "host")
# Which networks each can give; the first is what it gives unasked.
NETWORKS: Final[Mapping[str, tuple[Network, ...]]] = {
    "bubblewrap": ("none", *PROXIED, "host"),
    "docker": ("none", *PROXIED, "bridge", "host"),
    "podman": ("none", *PROXIED, "bridge", "host"),
    "container-use": ("bridge",),
    "kubernetes": POD_NETWORKS,
    "host": ("host",),
    CONFINED_HOST: ("none", "host"),
}
# Which can write to a copy of the workspace, and leave the workspace as it is.
WITH_COPY_ON_WRITE: Final = ("bubblewrap",)
# What container-use calls its environments; the first character keeps it from being an option.
ENVIRONMENT_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The host as a place to run: how long commands may take, and if it warns that it is none.
    `confine`: the kernel keeps commands from the rest of the machine, by Landlock."""

    timeout_s: float = DEFAULT_TIMEOUT_S
    warn_on_start: bool = True
    confine: bool = False

    def __post_init__(self) -> None:
        _check_time(self.timeout_s)
        check_type("warn_on_start", self.warn_on_start, bool)
        check_type("confine", self.confine, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUseSettings:
    """Environments of container-use. `image`: what new ones are made of; empty is its own choice.
    `env_id`: one that exists already; it is used, and left alone at the end."""

    image: str = ""
    env_id: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        check_type("image", self.image, str)
        check_type("env_id", self.env_id, str)
        if self.image and not IMAGE.fullmatch(self.image):
            raise wrong("image", self.image, "the name of an image")
        if not re.fullmatch(f"({ENVIRONMENT_ID})?", self.env_id):
            raise wrong("env_id", self.env_id, "the id of an environment")
        _check_time(self.timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """Where to run: `type`, else `fallback`, and what each of them is like.

    `network`: for whichever sandbox it will be; None is `allowlist` if there are `allowed_domains`,
        and otherwise the least that one can give.
    `allowed_domains`: what the network `allowlist` leads to (egress/domains.py).
    `kernel_allowlist`: the kernel keeps the list of programs, too: what the policy does not list
        cannot be executed, whoever tries.
    `credentials`: headers that are added on the way out (egress/credentials.py).
    `copy_on_write`: commands change a copy only; `kakoi.overlay.Overlay` says what, and takes it
        over. Only bubblewrap can do that. `overlays`: where copies are kept; empty is our place.
    """

    type: str = AUTO
    fallback: str | None = None
    network: Network | None = None
    allowed_domains: tuple[str, ...] = ()
    kernel_allowlist: bool = False
    credentials: tuple[str, ...] = ()
    copy_on_write: bool = False
    overlays: str = ""
    docker: DockerSettings = field(default_factory=DockerSettings)
    container_use: ContainerUseSettings = field(default_factory=ContainerUseSettings)
    kubernetes: KubernetesSettings = field(default_factory=KubernetesSettings)
    host: HostSettings = field(default_factory=HostSettings)

    def __post_init__(self) -> None:
        check_name("type", self.type)
        if self.fallback is not None:
            check_name("fallback", self.fallback)
        if self.network not in (None, *get_args(Network)):
            raise wrong("network", self.network, f"one of {', '.join(get_args(Network))}")
        check_type("allowed_domains", self.allowed_domains, tuple)
        check_type("credentials", self.credentials, tuple)
        if self.allowed_domains and self.network is None:
            object.__setattr__(self, "network", "allowlist")
        check_type("kernel_allowlist", self.kernel_allowlist, bool)
        check_type("copy_on_write", self.copy_on_write, bool)
        check_type("overlays", self.overlays, str)
        check_type("docker", self.docker, DockerSettings)
        check_type("container_use", self.container_use, ContainerUseSettings)
        check_type("kubernetes", self.kubernetes, KubernetesSettings)
        check_type("host", self.host, HostSettings)
        if self.network is not None:
            object.__setattr__(self, "docker", replace(self.docker, network=self.network))

    @property
    def proxied(self) -> Network | None:
        """The network that a proxy of ours is needed for, if it is one of these."""
        wanted = self.network or self.docker.network
        return wanted if wanted in PROXIED else None

    @classmethod
    def parse(cls, section: object, *, origin: str = "sandbox") -> "SandboxConfig":
        """The section as it is in a file; None and {} are the defaults."""
        keys = (
            "type fallback network allowed_domains credentials kernel_allowlist copy_on_write "
            "overlays docker container_use kubernetes host"
        )
        given = Section(section, origin, keys)
        with _naming(origin):
            return cls(
                **_texts(given, "type", "fallback", "network", "overlays"),
                allowed_domains=given.texts("allowed_domains") or (),
                kernel_allowlist=given.flag("kernel_allowlist", False),
                credentials=given.texts("credentials") or (),
                copy_on_write=given.flag("copy_on_write", False),
                docker=_docker(given),
                container_use=_container_use(given),
                kubernetes=_kubernetes(given),
                host=_host(given),
            )


def _check_time(seconds: object) -> None:
    check_type("timeout_s", seconds, int, float)
    if not (isinstance(seconds, int | float) and 0 < seconds < 2**31):
        raise wrong("timeout_s", seconds, "a number of seconds above zero")


def check_name(what: str, name: object) -> None:
    """Refuse what is no sandbox."""
    known = (AUTO, *NAMES)
    if name not in known:
        raise ConfigurationError(
            f"{what}: there is no sandbox `{str(name)[:80]}`{nearest(name, known)}",
            hint=f"one of: {', '.join(known)}",
        )


def _docker(above: Section) -> DockerSettings:
    given = Section(above.raw("docker"), above.at("docker"), "image network timeout")
    with _naming(given.origin):
        return DockerSettings(**_texts(given, "image", "network"), **_timeout(given))


def _container_use(above: Section) -> ContainerUseSettings:
    given = Section(above.raw("container_use"), above.at("container_use"), "image env_id timeout")
    with _naming(given.origin):
        return ContainerUseSettings(**_texts(given, "image", "env_id"), **_timeout(given))


def _kubernetes(above: Section) -> KubernetesSettings:
    keys = "context namespace image network runtime_class timeout start_timeout max_age user"
    given = Section(above.raw("kubernetes"), above.at("kubernetes"), keys)
    with _naming(given.origin):
        return KubernetesSettings(
            **_texts(given, "context", "namespace", "image", "network", "runtime_class"),
            **_timeout(given),
            **_timeout(given, "start_timeout"),
            **_timeout(given, "max_age"),
            user=given.raw("user"),  # type: ignore[arg-type]  # It is checked there.
        )


def _host(above: Section) -> HostSettings:
    given = Section(above.raw("host"), above.at("host"), "timeout warn_on_start confine")
    return HostSettings(
        warn_on_start=given.flag("warn_on_start", True),
        confine=given.flag("confine", False),
        **_timeout(given),
    )


def _texts(given: Section, *names: str) -> dict[str, Any]:
    return {name: given.text(name) for name in names if given.has(name)}


def _timeout(given: Section, name: str = "timeout") -> dict[str, Any]:
    return {f"{name}_s": given.seconds(name, 0)} if given.has(name) else {}


@contextlib.contextmanager
def _naming(origin: str) -> Iterator[None]:
    """Say of an error where the value is."""
    try:
        yield
    except ConfigurationError as error:
        if str(error).startswith(origin):
            raise
        raise ConfigurationError(f"{origin}.{error}", hint=error.hint) from None
