"""The options that say where to run, and what they mean."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import click
from click.core import ParameterSource

from kakoi.errors import ConfigurationError
from kakoi.sandbox.adapter import Network
from kakoi.sandbox.docker_cli import DockerSettings
from kakoi.sandbox.select import AUTO_ORDER
from kakoi.sandbox.settings import AUTO, NAMES, NETWORKS, SandboxConfig

_Decorated = TypeVar("_Decorated", bound=Callable[..., object])
_WITH_IMAGES: Final = ("docker", "podman")


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

    @property
    def config(self) -> SandboxConfig:
        """As settings; a sandbox that was named and can't be what was asked for is an error."""
        config = SandboxConfig(
            type=self.sandbox,
            fallback=self.fallback,
            network=self.network,
            docker=DockerSettings(image=self.image) if self.image else DockerSettings(),
        )
        for named in (self.sandbox, self.fallback):
            if named is not None and named != AUTO and (why := self._objection(named)):
                fitting = [each for each in (*AUTO_ORDER, *NAMES) if not self._objection(each)]
                raise ConfigurationError(
                    f"the sandbox `{named}` {why}",
                    hint=f"leave that option out, or use --sandbox {fitting[0]}",
                )
        return config

    @property
    def unfit(self) -> list[str]:
        """What `auto` must not take."""
        return [name for name in NAMES if self._objection(name)]

    def _objection(self, name: str) -> str:
        if self.network is not None and self.network not in NETWORKS[name]:
            return f"has no network `{self.network}`, only {', '.join(NETWORKS[name])}"
        if self.image_is_asked_for and name not in _WITH_IMAGES:
            return "has no images"
        return ""


_OPTIONS: Final = (
    click.option(
        "--sandbox",
        default=AUTO,
        metavar="NAME",
        envvar="KAKOI_SANDBOX",
        show_default=True,
        show_envvar=True,
        help=f"Where to run: {AUTO}, {', '.join(NAMES)}.",
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
