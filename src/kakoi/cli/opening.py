"""The options that are settings, too, and what they mean together with the files."""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.core import ParameterSource

from kakoi.config.loading import Loaded, load_settings
from kakoi.config.policies import policy_from
from kakoi.config.settings import Settings, defaults, table
from kakoi.errors import ConfigurationError
from kakoi.policy.rules import Policy
from kakoi.sandbox.settings import (
    AUTO,
    CONFINED_HOST,
    NAMES,
    NETWORKS,
    WITH_COPY_ON_WRITE,
    SandboxConfig,
)

_Decorated = TypeVar("_Decorated", bound=Callable[..., object])
_WITH_IMAGES: Final = ("docker", "podman")
_KEEPS_NO_LIST: Final = ("host", "container-use", "kubernetes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where to run. `image_is_asked_for`: a sandbox without images won't do.

    `allowed_domains`: what may be reached besides what the settings list.
    """

    loaded: Loaded
    workspace: str = "."
    image_is_asked_for: bool = False
    allowed_domains: tuple[str, ...] = ()

    @property
    def settings(self) -> Settings:
        """The settings that hold there."""
        return self.loaded.settings

    @property
    def directory(self) -> str:
        """The workspace, without links. Every sandbox shows it at this, its own path."""
        return os.path.realpath(self.workspace)

    def within(self, cwd: str) -> str:
        """The directory `cwd`, seen from the workspace."""
        return os.path.normpath(os.path.join(self.directory, cwd))

    @property
    def audit_file(self) -> Path | None:
        """Where it is recorded, if somebody says so."""
        return Path(self.settings.audit.file) if self.settings.audit.file else None

    @property
    def config(self) -> SandboxConfig:
        """The sandbox; one that was named and can't be what was asked for is an error."""
        # Here and not above: judging a command does not need it, and somebody waits for it.
        from kakoi.sandbox.select import AUTO_ORDER

        config = self._config
        for named in (config.type, config.fallback):
            if named is not None and named != AUTO and (why := self._objection(named)):
                fitting = [each for each in (*AUTO_ORDER, *NAMES) if not self._objection(each)]
                raise ConfigurationError(
                    f"the sandbox `{named}` {why}",
                    hint=f"leave that option out, or use --sandbox {fitting[0]}",
                )
        return config

    @property
    def _config(self) -> SandboxConfig:
        from kakoi.config.opening import sandbox_from

        config = sandbox_from(self.settings)
        if not self.allowed_domains:
            return config
        return replace(config, allowed_domains=(*config.allowed_domains, *self.allowed_domains))

    @property
    def unfit(self) -> list[str]:
        """What `auto` must not take."""
        return [name for name in (*NAMES, CONFINED_HOST) if self._objection(name)]

    def policy(self, *, allow: Sequence[str] = (), rooted: bool = True) -> Policy:
        """What may run; `allow` are more programs. Not `rooted`: it may write where it runs."""
        settings = self.settings.policy
        if allow:
            settings = replace(settings, additional=(*settings.additional, *allow))
        roots = [self.directory] if rooted else []
        return policy_from(settings, roots=roots, origin="settings")

    def _objection(self, name: str) -> str:
        network = self._config.network
        if name == "host" and self.settings.sandbox.host.confine:
            name = CONFINED_HOST
        if self.settings.sandbox.kernel_allowlist and name in _KEEPS_NO_LIST:
            unless = " unless it is confined (--confine)" if name == "host" else ""
            return f"cannot keep the list of programs (kernel_allowlist){unless}"
        if network and network not in NETWORKS[name]:
            return f"has no network `{network}`, only {', '.join(NETWORKS[name])}"
        if self.image_is_asked_for and name not in _WITH_IMAGES:
            own = "takes its image from sandbox.kubernetes.image, not from --image"
            return own if name == "kubernetes" else "has no images"
        if self.settings.sandbox.copy_on_write and name not in WITH_COPY_ON_WRITE:
            return "has no copy-on-write workspace"
        return ""


class SettingOption(click.Option):
    """An option for one setting. What it is not given is read from the environment and files."""

    def __init__(self, *words: Any, path: str, **more: Any) -> None:
        setting = table()[path]
        default = defaults()[path]
        more.setdefault("help", setting.doc)
        if default not in ("", ()):
            shown = f"{default:g}" if isinstance(default, float) else default
            more["help"] += f" [default: {shown}]"
        super().__init__(*words, envvar=list(setting.env) or None, **more)
        self.show_envvar = bool(setting.env)
        self.path = path


def setting_option(path: str, *names: str, **more: Any) -> Callable[[_Decorated], _Decorated]:
    """The option `names` for the setting at `path`."""
    return click.option(*names, cls=SettingOption, path=path, **more)


config_option: Final = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    envvar="KAKOI_CONFIG",
    show_envvar=True,
    help="Settings to read instead of your own (see `kakoi config`).",
)
_WORKSPACE: Final = click.option(
    "--workspace",
    metavar="DIR",
    default=".",
    help="The directory that commands may change (default: this one).",
)
_CWD: Final = click.option(
    "--cwd", metavar="DIR", help="Where in the workspace to start (default: at its top)."
)
_PLACE: Final = (
    setting_option("sandbox.type", "--sandbox", metavar="NAME"),
    setting_option("sandbox.fallback", "--fallback", metavar="NAME"),
    setting_option("sandbox.docker.image", "--image", metavar="IMAGE"),
    setting_option(
        "sandbox.network",
        "--network",
        metavar="NETWORK",
        help="What may be reached: none, open, allowlist, bridge or host. A sandbox that cannot "
        "give it is refused.",
    ),
    click.option(
        "--allow-domain",
        multiple=True,
        metavar="DOMAIN",
        help="Let this be reached, too (`example.org`, `*.example.org:8443`); without --network "
        "nothing else. May be given again.",
    ),
    setting_option("sandbox.host.confine", "--confine", flag_value="true"),
    setting_option("sandbox.kernel_allowlist", "--kernel-allowlist", flag_value="true"),
    setting_option(
        "sandbox.copy_on_write",
        "--cow",
        is_flag=True,
        flag_value="true",
        type=str,
        help="Change a copy of the workspace only: `kakoi changes` lists what, `kakoi apply` takes "
        "it over, `kakoi discard` does not.",
    ),
    _WORKSPACE,
    _CWD,
    click.option(
        "--env",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="A variable for the command; without a value, ours. May be given again.",
    ),
    setting_option(
        "audit.file",
        "--audit-file",
        metavar="FILE",
        help="Where it is recorded (see `kakoi audit`).",
    ),
    config_option,
)
_POLICY: Final = (
    setting_option("policy.profile", "--profile", metavar="NAME"),
    _WORKSPACE,
    config_option,
)


def place_options(command: _Decorated) -> _Decorated:
    """The options that say where to run, and where that is recorded."""
    for option in reversed(_PLACE):
        command = option(command)
    return command


def package_place_options(command: _Decorated) -> _Decorated:
    """The same for packages, which have a place of their own in the workspace."""
    for option in reversed(_PLACE):
        command = command if option is _CWD else option(command)
    return command


def policy_options(command: _Decorated) -> _Decorated:
    """The options that say which policy holds, for commands that run nothing."""
    for option in reversed(_POLICY):
        command = option(command)
    return command


def place_from(context: click.Context) -> Place:
    """What the options say, with the settings that hold for the workspace."""
    given = context.params["workspace"]
    workspace = existing_directory(given)
    call = {
        option.path: table()[option.path].kind.read_text(value, option.opts[-1])
        for option in context.command.params
        if isinstance(option, SettingOption)
        and context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        and (value := context.params[str(option.name)]) is not None
    }
    # By the name that was given: that is how its files are spoken of.
    loaded = load_settings(given, call=call, config_file=context.params["config_file"])
    asked = context.params.get("image") is not None and (
        context.get_parameter_source("image") is ParameterSource.COMMANDLINE
    )
    return Place(
        loaded=loaded,
        workspace=workspace,
        image_is_asked_for=asked,
        allowed_domains=tuple(context.params.get("allow_domain") or ()),
    )


def existing_directory(path: str) -> str:
    """The directory at `path`, without links. ConfigurationError: there is none."""
    try:
        found = os.path.realpath(path, strict=True)
        if not os.path.isdir(found):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"the workspace is {path!r}: {why}",
            hint="go to a directory that is there, or name one: --workspace DIR",
        ) from None
    return found


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
