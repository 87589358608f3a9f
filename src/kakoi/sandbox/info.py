"""What a sandbox is, and what it can do."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, Literal, get_args

from kakoi._support.late import dataclass
from kakoi._support.parsing import nearest
from kakoi._support.text import short_repr
from kakoi.backends.adapter import (
    CanCheckpoint,
    CanFork,
    CanPause,
    LimitReport,
    SandboxAdapter,
)
from kakoi.backends.settings import AUTO, CONFINED_HOST
from kakoi.errors import ConfigurationError
from kakoi.sandbox.abilities import Copies
from kakoi.sandbox.options import SandboxOptions

if TYPE_CHECKING:
    from kakoi.sandbox.opened import OpenSandbox

Ability = Literal[
    "files", "jobs", "terminal", "watch", "copy_on_write", "checkpoint", "fork", "pause", "attach"
]
_ALL: Final = frozenset(get_args(Ability))
_EVERY_BACKEND: Final = frozenset({"files", "jobs", "terminal", "watch"})
_ABILITIES: Final[Mapping[str, frozenset[str]]] = {
    "bubblewrap": _EVERY_BACKEND | {"copy_on_write", "checkpoint", "fork", "pause"},
    "docker": _EVERY_BACKEND | {"copy_on_write", "checkpoint", "fork", "pause", "attach"},
    "podman": _EVERY_BACKEND | {"copy_on_write", "checkpoint", "fork", "pause", "attach"},
    "kubernetes": _EVERY_BACKEND,
    "host": _EVERY_BACKEND | {"pause"},
    CONFINED_HOST: (_EVERY_BACKEND - {"watch"}) | {"pause"},  # Landlock does not limit inotify.
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxInfo:
    """An open sandbox.

    `backend`: what it is made of. `workspace`: where commands start, as they see it.
    `private`: the workspace ends with the sandbox. `network`: `none`, `open`, `host`, or the
    domains that it reaches; `unknown` with a backend of your own. `limits`: `limits.enforced` says
    what enforces each, and `limits.unenforced` why another is not, by the names of the arguments
    (`memory`, `disk`); there are also `open_files` and `file_size`, of each process. `image` is
    empty if there is none.
    """

    id: str
    backend: str
    workspace: str
    private: bool
    network: str | tuple[str, ...]
    limits: LimitReport
    policy: str
    image: str = ""
    paused: bool = False
    labels: Mapping[str, str]


def info_of(opened: "OpenSandbox") -> SandboxInfo:
    """Describe an open sandbox."""
    options, adapter = opened.options, opened.adapter
    config = options.config
    has_image = adapter.name in ("docker", "podman")
    image = config.docker.image if has_image else ""
    return SandboxInfo(
        id=opened.id,
        backend=adapter.name,
        workspace=opened.workspace,
        private=not options.workspace and options.backend is None,
        network=_network(opened),
        limits=_limits(adapter.limit_report),
        policy=options.policy.name,
        image=config.kubernetes.image if adapter.name == "kubernetes" else image,
        paused=opened.paused,
        labels=dict(options.labels),
    )


def _limits(report: LimitReport) -> LimitReport:
    """Return the report by the names of the arguments of `Sandbox`."""
    names = {"memory_bytes": "memory", "disk_bytes": "disk", "file_bytes": "file_size"}
    return LimitReport(
        {names.get(name, name): how for name, how in report.enforced.items()},
        {names.get(name, name): why for name, why in report.unenforced.items()},
    )


def _network(opened: "OpenSandbox") -> str | tuple[str, ...]:
    config = opened.options.config
    if opened.adapter.name == "host":
        return "host"
    if opened.options.backend is not None:
        return "unknown"
    if config.network == "allowlist":
        return config.allowed_domains
    return config.network or "none"


def supports(options: SandboxOptions, opened: "OpenSandbox | None", ability: str) -> bool:
    """Whether a sandbox can do something."""
    known = get_args(Ability)
    if ability not in known:
        raise ConfigurationError(
            f"ability is {short_repr(ability)}, which is unknown{nearest(ability, known)}",
            hint=f"one of: {', '.join(known)}",
        )
    if options.backend is not None:
        return _of_own_backend(options.backend, ability)
    if opened is None and options.config.type == AUTO:
        raise ConfigurationError(
            "which backend `auto` chooses is known once the sandbox is open",
            hint="await box.open() first",
        )
    name = options.config.type if opened is None else opened.adapter.name
    if opened is None and name == "host" and options.config.host.confine:
        name = CONFINED_HOST
    abilities = _ABILITIES.get(name, frozenset())
    if ability == "copy_on_write" or (ability in ("checkpoint", "fork") and options.workspace):
        return ability in abilities and options.config.copy_on_write
    if ability == "pause" and opened is not None:
        adapter = opened.adapter
        return ability in abilities and isinstance(adapter, CanPause) and adapter.can_pause
    if ability == "attach":
        outlives = options.config.outlives_us if opened is None else opened.outlives
        return ability in abilities and outlives
    return ability in abilities


def _of_own_backend(adapter: SandboxAdapter, ability: str) -> bool:
    """Whether the methods for it are there; some backends find out more when they are called."""
    if ability not in _ABILITIES.get(adapter.name, _ALL - {"attach"}):
        return False
    if ability == "copy_on_write":
        return isinstance(adapter, Copies)
    if ability == "checkpoint":
        return isinstance(adapter, CanCheckpoint)
    if ability == "fork":
        return isinstance(adapter, CanFork)
    if ability == "pause":
        return isinstance(adapter, CanPause) and adapter.can_pause
    return ability != "attach"
