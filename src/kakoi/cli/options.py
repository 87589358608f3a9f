"""Options that several commands share, and what they mean together with the settings files."""

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from kakoi._support.late import dataclass
from kakoi.backends.settings import (
    AUTO,
    CONFINED_HOST,
    NAMES,
    NETWORKS,
    WITH_COPY_ON_WRITE,
    SandboxConfig,
    confines,
)
from kakoi.errors import ConfigurationError
from kakoi.settings.loader import LoadedSettings, load_settings
from kakoi.settings.model import Settings, defaults, settings_table

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from kakoi.approvals import Approvals
    from kakoi.gate import Approver
    from kakoi.policy.rules import Policy
    from kakoi.sandbox.options import SandboxOptions

_Decorated = TypeVar("_Decorated", bound=Callable[..., object])
_WITH_IMAGES: Final = ("docker", "podman")
_WITHOUT_KERNEL_ALLOWLIST: Final = ("host", "container-use", "kubernetes")


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTarget:
    """Where and how to run: the workspace, its settings, and the options of this call.

    `needs_image`: `--image` was given, so a sandbox without images will not do.
    `allowed_domains`: domains allowed in addition to those of the settings.
    """

    loaded: LoadedSettings
    workspace: str = "."
    needs_image: bool = False
    allowed_domains: tuple[str, ...] = ()

    @property
    def settings(self) -> Settings:
        """The effective settings."""
        return self.loaded.settings

    @property
    def directory(self) -> str:
        """The real path of the workspace; every sandbox mounts it at this path."""
        return os.path.realpath(self.workspace)

    def within(self, cwd: str) -> str:
        """`cwd` resolved against the workspace."""
        return os.path.normpath(os.path.join(self.directory, cwd))

    @property
    def audit_file(self) -> Path | None:
        """The audit log, if one is set."""
        return Path(self.settings.audit.file) if self.settings.audit.file else None

    @property
    def config(self) -> SandboxConfig:
        """The sandbox. ConfigurationError: a named sandbox cannot do what the options ask for."""
        # Not imported at the top: judging a command does not need it, and must start fast.
        from kakoi.backends.select import AUTO_ORDER

        config = self._config
        for name in (config.type, config.fallback):
            if name is not None and name != AUTO and (why := self._objection(name)):
                fitting = [each for each in (*AUTO_ORDER, *NAMES) if not self._objection(each)]
                raise ConfigurationError(
                    f"the sandbox `{name}` {why}",
                    hint=f"omit that option, or use --sandbox {fitting[0]}",
                )
        return config

    @property
    def _config(self) -> SandboxConfig:
        from kakoi.sandbox.from_settings import sandbox_from

        config = sandbox_from(self.settings)
        if not self.allowed_domains:
            return config
        return replace(config, allowed_domains=(*config.allowed_domains, *self.allowed_domains))

    @property
    def unfit(self) -> list[str]:
        """The sandboxes that `auto` must not choose."""
        return [name for name in (*NAMES, CONFINED_HOST) if self._objection(name)]

    def sandbox_options(self, policy: "Policy", *, approve: "Approver | None") -> "SandboxOptions":
        """What the sandbox is opened with."""
        from kakoi.sandbox.options import SandboxOptions

        return SandboxOptions(
            config=self.config,
            policy=policy,
            workspace=self.directory,
            approve=approve,
            audit_file=self.audit_file,
            unfit=self.unfit,
            concurrency=self.settings.execution.concurrency,
            approvals=self.approvals,
        )

    @property
    def approvals(self) -> "Approvals":
        """What the user wants remembered for this workspace."""
        from kakoi.settings.policy import approvals_from

        return approvals_from(self.settings, self.directory)

    def policy(self, *, allow: Sequence[str] = (), rooted: bool = True) -> "Policy":
        """The policy; `allow` adds programs.

        `rooted`: writes are allowed in the workspace only, else wherever the command starts.
        """
        from kakoi.settings.policy import policy_from

        settings = self.settings.policy
        if allow:
            settings = replace(settings, additional=(*settings.additional, *allow))
        roots = [self.directory] if rooted else []
        return policy_from(settings, roots=roots, origin="settings")

    @property
    def confined(self) -> bool:
        """Whether the sandbox of the settings confines commands, on a network of its own."""
        section = self.settings.sandbox
        wanted = section.network or section.docker.network
        if self.allowed_domains:
            wanted = "allowlist"
        return confines(section.type, section.fallback, wanted, confine=section.host.confine)

    def _objection(self, name: str) -> str:
        network = self._config.network
        if name == "host" and self.settings.sandbox.host.confine:
            name = CONFINED_HOST
        if self.settings.sandbox.kernel_allowlist and name in _WITHOUT_KERNEL_ALLOWLIST:
            unless = " unless it is confined (--confine)" if name == "host" else ""
            return f"cannot enforce the list of programs (kernel_allowlist){unless}"
        # A plug-in checks the network itself.
        if network and name in NETWORKS and network not in NETWORKS[name]:
            return f"does not support the network `{network}`, only {', '.join(NETWORKS[name])}"
        if self.needs_image and name not in _WITH_IMAGES:
            own = "takes its image from sandbox.kubernetes.image, not from --image"
            return own if name == "kubernetes" else "does not support images"
        if self.settings.sandbox.copy_on_write and name not in WITH_COPY_ON_WRITE:
            return "does not support a copy-on-write workspace"
        return ""


class SettingOption(click.Option):
    """An option for one setting. Without it, the value comes from the environment and files."""

    def __init__(self, *names: Any, path: str, **more: Any) -> None:
        setting = settings_table()[path]
        default = setting.kind.written(defaults()[path])
        more.setdefault("help", setting.doc)
        if default not in ("", ()):
            shown = f"{default:g}" if isinstance(default, float) else default
            more["help"] += f" [default: {shown}]"
        super().__init__(*names, envvar=list(setting.env) or None, **more)
        self.show_envvar = bool(setting.env)
        self.path = path
        self._choices: list[str] = setting.kind.schema.get("enum", [])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete the values of a setting that has only a few."""
        from click.shell_completion import CompletionItem

        matching = [each for each in self._choices if each and each.startswith(incomplete)]
        return list(map(CompletionItem, matching)) or super().shell_complete(ctx, incomplete)


def setting_option(path: str, *names: str, **more: Any) -> Callable[[_Decorated], _Decorated]:
    """The option `names` for the setting at `path`."""
    return click.option(*names, cls=SettingOption, path=path, **more)


json_option: Final = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
config_option: Final = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    envvar="KAKOI_CONFIG",
    show_envvar=True,
    help="Read this file instead of your own settings (see `kakoi config`).",
)
_WORKSPACE: Final = click.option(
    "--workspace",
    metavar="DIR",
    default=".",
    help="The directory that commands can change (default: this one).",
)
_CWD: Final = click.option(
    "--cwd", metavar="DIR", help="Where in the workspace to start (default: its root)."
)
_SANDBOX: Final = (
    setting_option("sandbox.type", "--sandbox", metavar="NAME"),
    setting_option("sandbox.fallback", "--fallback", metavar="NAME"),
    setting_option("sandbox.docker.image", "--image", metavar="IMAGE"),
    setting_option(
        "sandbox.network",
        "--network",
        metavar="NETWORK",
        help="Network access: none, open, allowlist, bridge or host. A sandbox that does not "
        "support it is refused.",
    ),
    click.option(
        "--allow-domain",
        multiple=True,
        metavar="DOMAIN",
        help="Allow this domain (`example.org`, `*.example.org:8443`; repeatable). Without "
        "--network, nothing else is reachable.",
    ),
    setting_option("sandbox.host.confine", "--confine", flag_value="true"),
    setting_option("sandbox.kernel_allowlist", "--kernel-allowlist", flag_value="true"),
    setting_option(
        "sandbox.copy_on_write",
        "--cow",
        is_flag=True,
        flag_value="true",
        type=str,
        help="Change only a copy of the workspace: `kakoi copy diff` shows the changes, `kakoi "
        "copy apply` applies them, `kakoi copy discard` drops them.",
    ),
    _WORKSPACE,
    _CWD,
    click.option(
        "--env",
        multiple=True,
        metavar="NAME[=VALUE]",
        help="Set a variable for the command (repeatable); without a value, pass on your own.",
    ),
    setting_option(
        "audit.file",
        "--audit-file",
        metavar="FILE",
        help="The audit log (see `kakoi audit`).",
    ),
    config_option,
)
_POLICY: Final = (
    setting_option("policy.profile", "--profile", metavar="NAME"),
    _WORKSPACE,
    config_option,
)


def sandbox_options(command: _Decorated) -> _Decorated:
    """Adds the options that say where to run, and where that is recorded."""
    for option in reversed(_SANDBOX):
        command = option(command)
    return command


def package_options(command: _Decorated) -> _Decorated:
    """Adds the same options except `--cwd`: packages have a fixed directory in the workspace."""
    for option in reversed(_SANDBOX):
        command = command if option is _CWD else option(command)
    return command


def policy_options(command: _Decorated) -> _Decorated:
    """Adds the options that select the policy, for commands that run nothing."""
    for option in reversed(_POLICY):
        command = option(command)
    return command


def target_from(context: click.Context) -> RunTarget:
    """The target that the options and the settings of the workspace describe."""
    typed = context.params["workspace"]
    workspace = existing_directory(typed)
    call = {
        option.path: settings_table()[option.path].kind.read_text(value, option.opts[-1])
        for option in context.command.params
        if isinstance(option, SettingOption)
        and context.get_parameter_source(str(option.name)) is ParameterSource.COMMANDLINE
        and (value := context.params[str(option.name)]) is not None
    }
    # By the name as typed: messages name the files in the same way.
    loaded = load_settings(typed, call=call, config_file=context.params["config_file"])
    needs_image = context.params.get("image") is not None and (
        context.get_parameter_source("image") is ParameterSource.COMMANDLINE
    )
    return RunTarget(
        loaded=loaded,
        workspace=workspace,
        needs_image=needs_image,
        allowed_domains=tuple(context.params.get("allow_domain") or ()),
    )


def settings_from(config_file: Path | None) -> Settings:
    """The effective settings in the current directory."""
    return load_settings(".", config_file=config_file).settings


def existing_directory(path: str) -> str:
    """The real path of a directory. ConfigurationError: it does not exist."""
    try:
        found = os.path.realpath(path, strict=True)
        if not os.path.isdir(found):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigurationError(
            f"the workspace is {path!r}: {why}",
            hint="change to an existing directory, or name one: --workspace DIR",
        ) from None
    return found


def read_variables(pairs: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """`NAME=VALUE` and `NAME` as a mapping. ConfigurationError: NAME alone is not in `environ`."""
    found = {}
    for each in pairs:
        name, has_value, value = each.partition("=")
        if not has_value and name not in environ:
            raise ConfigurationError(
                f"--env {name}: this variable is not set", hint=f"--env {name}=VALUE sets it"
            )
        found[name] = value if has_value else environ[name]
    return found
