"""Options → policy, sandbox and gate, for the commands that run something."""

import contextlib
import os
import pwd
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TypeVar

import click
from click.core import ParameterSource

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.gate import Approver, Gate, Labels
from kakoi.policy.rules import Policy
from kakoi.sandbox.adapter import Network, SandboxAdapter
from kakoi.sandbox.select import AUTO, AUTO_ORDER, SandboxFactory

_Decorated = TypeVar("_Decorated", bound=Callable[..., object])

# Which networks each sandbox can give; the first is what it gives unasked.
NETWORKS: Final[Mapping[str, tuple[Network, ...]]] = {
    "bubblewrap": ("none", "host"),
    "docker": ("none", "bridge", "host"),
    "podman": ("none", "bridge", "host"),
    "host": ("host",),
}
_WITH_IMAGES: Final = ("docker", "podman")
# How a client finds its engine. Nothing else of our environment is the engine's business.
_OF_THE_ENGINE: Final = """PATH HOME XDG_RUNTIME_DIR SSH_AUTH_SOCK DOCKER_HOST DOCKER_CONTEXT
    DOCKER_CONFIG DOCKER_TLS_VERIFY DOCKER_CERT_PATH DOCKER_API_VERSION CONTAINER_HOST
    CONTAINER_CONNECTION CONTAINERS_CONF""".split()


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to run, as the options say. `image_is_asked_for`: a sandbox without images won't do."""

    sandbox: str = AUTO
    fallback: str | None = None
    image: str | None = None
    image_is_asked_for: bool = False
    network: Network | None = None
    workspace: str = "."

    @property
    def directory(self) -> str:
        """The workspace, without links. Every sandbox shows it at this, its own path."""
        return os.path.realpath(self.workspace)

    def within(self, cwd: str) -> str:
        """The directory `cwd`, seen from the workspace."""
        return os.path.normpath(os.path.join(self.directory, cwd))


_OPTIONS: Final = (
    click.option(
        "--sandbox",
        default=AUTO,
        metavar="NAME",
        envvar="KAKOI_SANDBOX",
        show_default=True,
        show_envvar=True,
        help=f"Where to run: {AUTO}, {', '.join(NETWORKS)}.",
    ),
    click.option(
        "--fallback",
        metavar="NAME",
        envvar="KAKOI_FALLBACK",
        show_envvar=True,
        help="Where else, if that sandbox cannot be used; there is a warning.",
    ),
    click.option(
        "--image",
        metavar="IMAGE",
        envvar="KAKOI_IMAGE",
        show_envvar=True,
        help="The image of containers.",
    ),
    click.option(
        "--network",
        type=click.Choice(["none", "bridge", "host"]),
        help="What may be reached. A sandbox that cannot give it is refused. [default: none; "
        "in the sandbox `host`: host]",
    ),
    click.option(
        "--workspace",
        metavar="DIR",
        default=".",
        help="The directory that commands may change (default: this one).",
    ),
    click.option(
        "--cwd", metavar="DIR", help="Where in the workspace to start (default: at its top)."
    ),
    click.option(
        "--env",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="A variable for the command; without a value, ours. May be given again.",
    ),
    click.option(
        "--audit-file",
        type=click.Path(path_type=Path),
        envvar="KAKOI_AUDIT_FILE",
        show_envvar=True,
        help="Where it is recorded (see `kakoi audit`).",
    ),
)


def place_options(command: _Decorated) -> _Decorated:
    """The options that say where to run, and where that is recorded."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def place_from(context: click.Context) -> Place:
    """What `place_options` were given."""
    asked = context.get_parameter_source("image") is ParameterSource.COMMANDLINE
    names = ("sandbox", "fallback", "image", "network", "workspace")
    return Place(**{name: context.params[name] for name in names}, image_is_asked_for=asked)


def variables(given: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """`NAME=VALUE` and `NAME` as a mapping; a NAME that we do not have ourselves is an error."""
    found = {}
    for each in given:
        name, has_value, value = each.partition("=")
        if not has_value and name not in environ:
            raise ConfigurationError(
                f"--env {name}: there is no such variable here", hint=f"--env {name}=VALUE sets it"
            )
        found[name] = value if has_value else environ[name]
    return found


@contextlib.asynccontextmanager
async def open_sandbox(place: Place) -> AsyncIterator[SandboxAdapter]:
    """The sandbox for `place`; taken away at the end."""
    sandbox = await _choose(place, {name: _maker(name, place) for name in _candidates(place)})
    try:
        yield sandbox
    finally:
        await sandbox.cleanup()


def make_gate(
    policy: Policy,
    sandbox: SandboxAdapter,
    *,
    cwd: str,
    approver: Approver | None,
    audit_file: Path | None,
) -> Gate:
    """The one road to `sandbox`, with its record."""
    from kakoi.audit import AuditLog
    from kakoi.cli.audit import default_audit_file

    path = audit_file or default_audit_file(os.environ)
    audit = AuditLog(path, clock=lambda: datetime.now(UTC))
    labels = Labels(user=_user())
    return Gate(policy, sandbox, cwd=cwd, approver=approver, audit=audit, labels=labels)


def engine_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What the program of a container engine gets to see of our environment."""
    return {name: environ[name] for name in _OF_THE_ENGINE if name in environ}


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"


# --- Which sandboxes will do -----------------------------------------------------------------


async def _choose(
    place: Place, makers: Mapping[str, Callable[[], SandboxAdapter]]
) -> SandboxAdapter:
    if place.sandbox in makers and place.fallback is None:
        # Not tried first: there is no other, and the command finds out as well.
        return makers[place.sandbox]()
    if place.sandbox == AUTO and AUTO_ORDER[0] in makers:
        # Opened, and not first tried and then opened: a short command takes no longer than that.
        first = makers[AUTO_ORDER[0]]()
        with contextlib.suppress(SandboxError):
            await first.channel()
            return first
        await first.cleanup()
    return await SandboxFactory(makers).create(place.sandbox, place.fallback)


def _candidates(place: Place) -> list[str]:
    """The sandboxes that can be what was asked for; one that was named and can't is an error."""
    unfit = {name: why for name in NETWORKS if (why := _objection(name, place))}
    for named in (place.sandbox, place.fallback):
        if named in unfit:
            fitting = [name for name in (*AUTO_ORDER, *NETWORKS) if name not in unfit]
            raise ConfigurationError(
                f"the sandbox `{named}` {unfit[named]}",
                hint=f"leave that option out, or use --sandbox {fitting[0]}",
            )
    return [name for name in NETWORKS if name not in unfit]


def _objection(name: str, place: Place) -> str:
    if place.network is not None and place.network not in NETWORKS[name]:
        return f"has no network `{place.network}`, only {', '.join(NETWORKS[name])}"
    if place.image_is_asked_for and name not in _WITH_IMAGES:
        return "has no images"
    return ""


def _maker(name: str, place: Place) -> Callable[[], SandboxAdapter]:
    if name == "host":
        return lambda: _make_host(place)
    if name == "bubblewrap":
        return lambda: _make_bubblewrap(place)
    return lambda: _make_containers(name, place)


def _make_host(place: Place) -> SandboxAdapter:
    from kakoi.process.options import base_environment
    from kakoi.sandbox.host import HostAdapter

    return HostAdapter(place.directory, env=base_environment(os.environ))


def _make_bubblewrap(place: Place) -> SandboxAdapter:
    from kakoi.sandbox.bubblewrap import BubblewrapAdapter

    return BubblewrapAdapter(place.directory, network="host" if place.network == "host" else "none")


def _make_containers(name: str, place: Place) -> SandboxAdapter:
    from kakoi.sandbox.docker import DockerAdapter
    from kakoi.sandbox.docker_cli import DockerSettings

    settings = DockerSettings(
        network=place.network or "none", workspace=place.directory, inside=place.directory
    )
    return DockerAdapter(
        replace(settings, image=place.image) if place.image else settings,
        program="podman" if name == "podman" else "docker",
        lifetime="sandbox",
        clock=time.time,
        engine_env=engine_environment(os.environ),
    )
