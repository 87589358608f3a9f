"""SandboxConfig: the `sandbox:` section of a configuration, read strictly.

Keys can be in camelCase or snake_case. Times are in seconds. An unknown key is an error that names
the nearest known one.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final, get_args

from kakoi._support.fields import (
    FLAG,
    PATH,
    TEXT,
    TEXTS,
    ValueKind,
    described,
    or_empty,
    read_section,
    subsection,
)
from kakoi._support.late import dataclass
from kakoi._support.parsing import as_seconds, as_text, nearest, wrong
from kakoi.backends.adapter import NETWORK, PROXIED, Network, timeout_field
from kakoi.backends.docker.arguments import IMAGE, DockerSettings
from kakoi.backends.kubernetes.pod import POD_NETWORKS, KubernetesSettings
from kakoi.channel.api import check_type
from kakoi.errors import ConfigurationError
from kakoi.network.domains import DOMAINS

AUTO: Final = "auto"
# The host with `host.confine`; `auto` can choose it.
CONFINED_HOST: Final = "confined-host"
NAMES: Final = ("bubblewrap", "docker", "podman", "container-use", "kubernetes", "host")
# The networks that each can provide; the first is its default.
NETWORKS: Final[Mapping[str, tuple[Network, ...]]] = {
    "bubblewrap": ("none", *PROXIED, "host"),
    "docker": ("none", *PROXIED, "bridge", "host"),
    "podman": ("none", *PROXIED, "bridge", "host"),
    "container-use": ("bridge",),
    "kubernetes": POD_NETWORKS,
    "host": ("host",),
    CONFINED_HOST: ("none", "host"),
}
# Those that can write to a copy of the workspace, and leave the workspace unchanged.
WITH_COPY_ON_WRITE: Final = ("bubblewrap", "docker", "podman")
# The ids of container-use environments; the first character keeps them from being an option.
ENVIRONMENT_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """Settings for the host."""

    timeout_s: float = timeout_field()
    warn_on_start: bool = described(True, FLAG, "Warn once that nothing is confined.")
    confine: bool = described(
        False,
        FLAG,
        "Confine commands on the host with Landlock; an error if the kernel does not support it.",
    )

    def __post_init__(self) -> None:
        as_seconds(self.timeout_s, "timeout_s")
        check_type("warn_on_start", self.warn_on_start, bool)
        check_type("confine", self.confine, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUseSettings:
    """Environments of container-use. One that exists already is not deleted at the end."""

    image: str = described(
        "", TEXT, "The image for new environments; empty leaves the choice to container-use."
    )
    env_id: str = described("", TEXT, "The id of an existing environment to use.")
    timeout_s: float = timeout_field()

    def __post_init__(self) -> None:
        check_type("image", self.image, str)
        check_type("env_id", self.env_id, str)
        if self.image and not IMAGE.fullmatch(self.image):
            raise wrong("image", self.image, "the name of an image")
        if not re.fullmatch(f"({ENVIRONMENT_ID})?", self.env_id):
            raise wrong("env_id", self.env_id, "the id of an environment")
        as_seconds(self.timeout_s, "timeout_s")


def confines(name: str, fallback: str | None, network: str | None, *, confine: bool) -> bool:
    """Whether these built-in sandboxes confine commands, on a network of their own.

    `confine`: the host is confined. A plug-in is not known to confine anything.
    """
    known = {AUTO, *NAMES} if confine else {AUTO, *NAMES} - {"host"}
    return {name, fallback or name} <= known and network != "host"


def check_name(what: str, name: object) -> None:
    """Raise ConfigurationError unless `name` is a sandbox: a built-in one, or a plug-in's."""
    known = [AUTO, *NAMES]
    if name in known:
        return
    # Here and not above: looking for plug-ins takes a moment.
    from kakoi.backends.plugins import plugin_names

    known += [each for each in plugin_names() if each not in known]
    if name not in known:
        raise ConfigurationError(
            f"{what}: unknown sandbox `{str(name)[:80]}`{nearest(name, known)}",
            hint=f"one of: {', '.join(known)}",
        )


def _sandbox_name(value: object, where: str) -> str:
    name = as_text(value, where)
    check_name(where, name)
    return name


_SANDBOX: Final = ValueKind(_sandbox_name, _sandbox_name, {"enum": [AUTO, *NAMES]})


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """Where commands run, and the settings of each sandbox.

    Only bubblewrap can write to a copy; `kakoi.overlay.Overlay` shows the changes and applies them.

    `lifetime_s`: the sandbox ends by itself after this time, whatever became of us.
    """

    type: str = described(
        AUTO,
        _SANDBOX,
        "The sandbox; `auto` is the strongest one that works here, never the unconfined host.",
    )
    fallback: str | None = described(
        None,
        or_empty(_SANDBOX),
        "The sandbox to use, with a warning, if the chosen one is unavailable.",
    )
    network: Network | None = described(
        None,
        or_empty(NETWORK),
        "What commands can reach, in any sandbox; empty means `allowlist` if there are "
        "`allowed_domains`, otherwise the least that the sandbox can provide, and for `git push` "
        "and `git fetch` their repository; `none` means nothing.",
    )
    allowed_domains: tuple[str, ...] = described(
        (),
        DOMAINS,
        "What `allowlist` permits: example.org, *.example.org, example.org:8443, 10.1.0.0/16.",
    )
    kernel_allowlist: bool = described(
        False,
        FLAG,
        "Also enforce the list of programs in the kernel; scripts in the workspace must then be "
        "run by naming their shell.",
    )
    credentials: tuple[str, ...] = described(
        (),
        TEXTS,
        "Headers that the proxy adds to requests: `api.example.org Authorization=VARIABLE`. The "
        "sandbox requests http://api.example.org/, and the proxy forwards it over TLS.",
    )
    copy_on_write: bool = described(
        False, FLAG, "Write only to a copy of the workspace: see `kakoi copy`."
    )
    overlays: str = described(
        "",
        PATH,
        "The folder for copies of workspaces; empty means kakoi/overlays in $XDG_STATE_HOME or "
        "~/.local/state.",
    )
    lifetime_s: float | None = None
    docker: DockerSettings = subsection(DockerSettings)
    container_use: ContainerUseSettings = subsection(ContainerUseSettings)
    kubernetes: KubernetesSettings = subsection(KubernetesSettings)
    host: HostSettings = subsection(HostSettings)

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
        if self.lifetime_s is not None:
            as_seconds(self.lifetime_s, "lifetime_s")
        check_type("docker", self.docker, DockerSettings)
        check_type("container_use", self.container_use, ContainerUseSettings)
        check_type("kubernetes", self.kubernetes, KubernetesSettings)
        check_type("host", self.host, HostSettings)
        if self.network is not None:
            object.__setattr__(self, "docker", replace(self.docker, network=self.network))

    @property
    def proxied(self) -> Network | None:
        """The network, if it needs a proxy of ours."""
        wanted = self.network or self.docker.network
        return wanted if wanted in PROXIED else None

    @property
    def confines(self) -> bool:
        """Whether every sandbox that it can choose confines commands, on a network of its own."""
        network = self.network or self.docker.network
        return confines(self.type, self.fallback, network, confine=self.host.confine)

    @property
    def outlives_us(self) -> bool:
        """Whether a container goes on without this process until its lifetime ends.

        What serves a proxied network is in this process, and so is the lock of a copy.
        """
        return self.lifetime_s is not None and self.proxied is None and not self.copy_on_write

    @classmethod
    def parse(cls, section: object, *, origin: str = "sandbox") -> "SandboxConfig":
        """Read the section as it is in a file; None and {} are the defaults."""
        return read_section(cls, section, origin=origin)
