"""Options that several commands share, and what they mean together with the settings files."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.core import ParameterSource

from kakoi.cli.target import RunTarget, existing_directory
from kakoi.errors import ConfigurationError
from kakoi.settings.loader import load_settings
from kakoi.settings.model import Settings, defaults, settings_table

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

_Decorated = TypeVar("_Decorated", bound=Callable[..., object])


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
