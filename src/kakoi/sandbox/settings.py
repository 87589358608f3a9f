"""SandboxConfig: the `sandbox:` section of a configuration, read strictly.

Spec B writes its keys in camelCase; both spellings are read, and we write snake_case. Times in
files are seconds. An unknown key is an error that names the nearest known one.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kakoi.errors import ConfigurationError
from kakoi.runner.commands import check_type
from kakoi.sandbox.adapter import Network
from kakoi.sandbox.docker_cli import IMAGE, DockerSettings

AUTO: Final = "auto"
NAMES: Final = ("bubblewrap", "docker", "podman", "container-use", "host")
# Which networks each can give; the first is what it gives unasked.
NETWORKS: Final[Mapping[str, tuple[Network, ...]]] = {
    "bubblewrap": ("none", "host"),
    "docker": ("none", "bridge", "host"),
    "podman": ("none", "bridge", "host"),
    "container-use": ("bridge",),
    "host": ("host",),
}
# What container-use calls its environments; the first character keeps it from being an option.
ENVIRONMENT_ID: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}"
_DEFAULT_TIMEOUT_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """The host as a place to run: how long commands may take, and if it warns that it is none."""

    timeout_s: float = _DEFAULT_TIMEOUT_S
    warn_on_start: bool = True

    def __post_init__(self) -> None:
        _seconds(self.timeout_s, "timeout_s")
        check_type("warn_on_start", self.warn_on_start, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerUseSettings:
    """Environments of container-use. `image`: what new ones are made of; empty is its own choice.
    `env_id`: one that exists already; it is used, and left alone at the end."""

    image: str = ""
    env_id: str = ""
    timeout_s: float = _DEFAULT_TIMEOUT_S

    def __post_init__(self) -> None:
        if _text(self.image, "image") and not IMAGE.fullmatch(self.image):
            raise _wrong("image", self.image, "the name of an image")
        if not re.fullmatch(f"({ENVIRONMENT_ID})?", _text(self.env_id, "env_id")):
            raise _wrong("env_id", self.env_id, "the id of an environment")
        _seconds(self.timeout_s, "timeout_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxConfig:
    """Where to run: `type`, else `fallback`, and what each of them is like.

    `network`: for whichever sandbox it will be; None is the least that one can give.
    """

    type: str = AUTO
    fallback: str | None = None
    network: Network | None = None
    docker: DockerSettings = field(default_factory=DockerSettings)
    container_use: ContainerUseSettings = field(default_factory=ContainerUseSettings)
    host: HostSettings = field(default_factory=HostSettings)

    def __post_init__(self) -> None:
        check_name("type", self.type)
        if self.fallback is not None:
            check_name("fallback", self.fallback)
        if self.network not in (None, "none", "bridge", "host"):
            raise _wrong("network", self.network, "`none`, `bridge` or `host`")
        check_type("docker", self.docker, DockerSettings)
        check_type("container_use", self.container_use, ContainerUseSettings)
        check_type("host", self.host, HostSettings)
        if self.network is not None:
            object.__setattr__(self, "docker", replace(self.docker, network=self.network))

    @classmethod
    def parse(cls, section: object, *, origin: str = "sandbox") -> "SandboxConfig":
        """The section as it is in a file; None and {} are the defaults."""
        given = _keys(section, origin, "type fallback network docker container_use host")
        parts: dict[str, Any] = {
            name: _text(given[name], f"{origin}.{name}")
            for name in ("type", "fallback", "network")
            if given.get(name) is not None
        }
        for name in ("type", "fallback"):
            if name in parts:
                check_name(f"{origin}.{name}", parts[name])
        if parts.get("network") not in (None, "none", "bridge", "host"):
            raise _wrong(f"{origin}.network", parts["network"], "`none`, `bridge` or `host`")
        if "docker" in given:
            parts["docker"] = _docker(given["docker"], f"{origin}.docker")
        if "container_use" in given:
            parts["container_use"] = _container_use(given["container_use"], origin)
        if "host" in given:
            parts["host"] = _host(given["host"], f"{origin}.host")
        return cls(**parts)


def check_name(what: str, name: object) -> None:
    """Refuse what is no sandbox."""
    known = (AUTO, *NAMES)
    if name not in known:
        shown = _cut(str(name))
        close = difflib.get_close_matches(shown, known, n=1)
        advice = f"; did you mean `{close[0]}`?" if close else ""
        raise ConfigurationError(
            f"{what}: there is no sandbox `{shown}`{advice}", hint=f"one of: {', '.join(known)}"
        )


def _docker(section: object, origin: str) -> DockerSettings:
    given = _keys(section, origin, "image network timeout")
    parts: dict[str, Any] = {}
    for name in ("image", "network"):
        if given.get(name) is not None:
            parts[name] = _text(given[name], f"{origin}.{name}")
    if given.get("timeout") is not None:
        parts["timeout_s"] = _seconds(given["timeout"], f"{origin}.timeout")
    try:
        return DockerSettings(**parts)
    except ConfigurationError as error:
        raise ConfigurationError(f"{origin}: {error}", hint=error.hint) from None


def _container_use(section: object, above: str) -> ContainerUseSettings:
    origin = f"{above}.container_use"
    given = _keys(section, origin, "image env_id timeout")
    parts: dict[str, Any] = {
        name: _text(given[name], f"{origin}.{name}")
        for name in ("image", "env_id")
        if given.get(name) is not None
    }
    if given.get("timeout") is not None:
        parts["timeout_s"] = _seconds(given["timeout"], f"{origin}.timeout")
    try:
        return ContainerUseSettings(**parts)
    except ConfigurationError as error:
        raise ConfigurationError(f"{origin}: {error}", hint=error.hint) from None


def _host(section: object, origin: str) -> HostSettings:
    given = _keys(section, origin, "timeout warn_on_start")
    warn, timeout = given.get("warn_on_start", True), given.get("timeout")
    if not isinstance(warn, bool):
        raise _wrong(f"{origin}.warn_on_start", warn, "true or false")
    return HostSettings(
        timeout_s=_DEFAULT_TIMEOUT_S if timeout is None else _seconds(timeout, f"{origin}.timeout"),
        warn_on_start=warn,
    )


def _keys(section: object, origin: str, known: str) -> dict[str, object]:
    """The section with its keys in snake_case."""
    if section is None:
        return {}
    if not isinstance(section, Mapping):
        raise _wrong(origin, section, "a section of keys and values")
    found: dict[str, object] = {}
    for key, value in section.items():
        name = _known(key, origin, known.split())
        if name in found:
            raise ConfigurationError(f"{origin}: `{name}` is given twice, in two spellings")
        found[name] = value
    return found


def _known(key: object, origin: str, known: Iterable[str]) -> str:
    shown = _cut(str(key))
    plain = re.sub(r"(?<=[a-z])([A-Z])", r"_\1", shown).lower().replace("-", "_")
    if plain in known:
        return plain
    close = difflib.get_close_matches(plain, list(known), n=1)
    advice = f"; did you mean `{close[0]}`?" if close else ""
    raise ConfigurationError(
        f"{origin}: unknown key `{shown}`{advice}", hint=f"known are: {', '.join(known)}"
    )


def _text(value: object, origin: str) -> str:
    if not isinstance(value, str):
        raise _wrong(origin, value, "text")
    return value


def _seconds(value: object, origin: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 2**31:
        raise _wrong(origin, value, "a number of seconds above zero")
    return float(value)


def _wrong(origin: str, value: object, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"{origin} is {_cut(repr(value))}; it must be {wanted}")


def _cut(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."
