"""Load settings: call > environment > project > user > default, each value with its origin.

A project's file is not trusted. It can choose an image, lower limits and tighten the policy;
anything else in it is an error and not silently ignored.
"""

import logging
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from kakoi._support.late import dataclass, pattern
from kakoi._support.parsing import Item, nearest, read_items, snake_case, yaml_items
from kakoi._support.text import shown
from kakoi.backends.settings import AUTO
from kakoi.errors import ConfigurationError
from kakoi.settings.files import (
    MISNAMED,
    ORCHESTRATOR_FILE,
    PROJECT_FILES,
    check_names,
    misnamed_error,
    user_file,
)
from kakoi.settings.model import Settings, build, defaults, settings_table, value_at
from kakoi.settings.project_network import narrowed, without_dormant_lines
from kakoi.settings.shell_security import ShellSecurity, load_security

_log = logging.getLogger(__name__)
_TIMEOUT: Final = "execution.timeout_seconds"
# Sandboxes whose timeout is in the section of another one.
_TIMEOUT_SECTIONS: Final = {"podman": "docker", "confined-host": "host"}
# A project can choose one of these instead of `auto`: they confine as much.
_AS_STRONG_AS_AUTO: Final = ("bubblewrap", "docker", "podman")
# The profile for which the user's security.toml holds.
SHELL_PROFILE: Final = "shell"
# What commands can reach, and what tasks can.
_DOMAIN_LISTS: Final = ("sandbox.allowed_domains", "tasks.network.allowed_domains")
# Sections that mark another program's configuration file.
_FOREIGN_SECTIONS: Final = ("command_executor", "executor", "security", "logging", "shell")
# Keys in these sections that are not settings: `kakoi.bash_executor` and `kakoi.shell` read them.
_FOREIGN_KEYS: Final = pattern(
    r"executor\.(root_dir|shell|pure_commands|sandbox\..*)|logging\..*"
    r"|security\.(enable_whitelist|whitelist_file)|shell\.sandbox\..*"
)


@dataclass(frozen=True, slots=True)
class LoadedSettings:
    """The effective settings, and the origin of each value that is not a default, by path."""

    settings: Settings
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, path: str) -> str:
        """Return where the value of a path comes from."""
        return self.origins.get(path, "default")


def project_file(workspace: str | Path) -> Path | None:
    """Return the settings file of the project in `workspace`, or None; two files are an error."""
    paths = [Path(workspace, name) for name in PROJECT_FILES]
    found = [path for path in paths if path.is_symlink() or path.is_file()]
    if len(found) > 1:
        raise ConfigurationError(
            f"both {found[0]} and {found[1].name} exist", hint="keep only one of them"
        )
    return found[0] if found else None


def load_settings(
    workspace: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    call: Mapping[str, Any] | None = None,
    config_file: Path | None = None,
) -> LoadedSettings:
    """Load the settings for `workspace`.

    `call`: values by path, which take precedence over everything else.
    `config_file`: read this file instead of the user's; it must exist.
    """
    variables = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    own = {"KAKOI_CONFIG": "given", **variables} if config_file else variables
    check_names(None if workspace is None else str(workspace), own)
    path = config_file or Path(user_file(variables))
    items = read_items(path)
    if items is None and (config_file is not None or variables.get("KAKOI_CONFIG")):
        raise ConfigurationError(f"{path} not found", hint="`kakoi config init` creates it")
    for name, value, origin in _file_values(path, items or []):
        values[name], origins[name] = value, origin
    stronger = {name: (value, origin) for name, value, origin in _environment_values(variables)}
    for name, value in (call or {}).items():
        if name not in settings_table():
            raise _unknown(name, "call", "")
        stronger[name] = (value, "call")
    profile = stronger.get("policy.profile", (values.get("policy.profile"), ""))[0]
    if profile == SHELL_PROFILE:
        _apply_security(load_security(variables), values, origins)
    for name, (value, origin) in stronger.items():
        values[name], origins[name] = value, origin
    project = None if workspace is None else project_file(workspace)
    if project is not None:
        items = read_items(project, follow_links=False) or []
        _apply_project(project, items, values, origins, stronger=stronger)
    elif workspace is not None:
        _apply_orchestrator(Path(workspace, ORCHESTRATOR_FILE), values, origins, stronger=stronger)
    if _TIMEOUT not in stronger:
        _apply_sandbox_timeout(values, origins)
    return LoadedSettings(build(values), origins)


def _apply_sandbox_timeout(values: dict[str, Any], origins: dict[str, str]) -> None:
    """Apply the timeout that a file states for the sandbox it names, if it is the lower one."""
    name = values.get("sandbox.type", defaults()["sandbox.type"])
    section = _TIMEOUT_SECTIONS.get(name, name.replace("-", "_"))
    path = f"sandbox.{section}.timeout"
    if path in values and values[path] < values.get(_TIMEOUT, values[path] + 1):
        values[_TIMEOUT], origins[_TIMEOUT] = values[path], origins.get(path, "")


# --- Files -----------------------------------------------------------------------------------


@cache
def _paths() -> Mapping[str, str]:
    """Map every name of a setting to its path."""
    also = {other: path for path, setting in settings_table().items() for other in setting.also}
    return {**{path: path for path in settings_table()}, **also}


@cache
def _sections() -> frozenset[str]:
    """Return the paths of all sections."""
    keys = [path.split(".") for path in _paths()]
    return frozenset(".".join(each[:size]) for each in keys for size in range(1, len(each)))


def _file_values(path: Path, items: Sequence[Item]) -> Iterator[tuple[str, Any, str]]:
    """Yield path, value and origin of each setting; skip other programs' own sections."""
    is_foreign = path.stem == "orch" or any(item.keys[0] in _FOREIGN_SECTIONS for item in items)
    sections = {name.partition(".")[0] for name in _paths()}
    seen: dict[str, str] = {}
    for item in items:
        written = ".".join(map(snake_case, item.keys))
        where = f"{path}:{item.line}" if item.line else str(path)
        if is_foreign and (item.keys[0] not in sections or _FOREIGN_KEYS.fullmatch(written)):
            continue
        name = _paths().get(written)
        if item.value is None and (name is not None or written in _sections()):
            continue
        if name is None:
            raise _unknown(written, where, str(path))
        if name in seen:
            raise ConfigurationError(
                f"{where}: `{written}` sets the same value as `{seen[name]}` above",
                hint="keep only one of them",
            )
        seen[name] = written
        yield name, settings_table()[name].kind.read(item.value, f"{where}: {written}"), where
        if written == "shell.allowed_commands":  # In a [shell] section the list is the whole list.
            yield "policy.use_default", False, where


def _unknown(written: str, where: str, file: str) -> ConfigurationError:
    if written in _sections():
        return ConfigurationError(f"{where}: `{written}` is a section and must contain keys")
    return ConfigurationError(
        f"{where}: unknown key `{written[:80]}`{nearest(written, _paths())}",
        details={"file": file, "key": written[:200]},
        hint="`kakoi config show` lists every key",
    )


# --- security.toml ---------------------------------------------------------------------------


def _apply_security(
    security: ShellSecurity, values: dict[str, Any], origins: dict[str, str]
) -> None:
    """Apply the user's security.toml, if there is one, to the values of their settings file."""
    path = Path(security.origin)
    items = (read_items(path) or []) if security.origin else []
    sandbox = ("shell", "sandbox")
    shell = [
        # A section `[shell.sandbox]` has the keys of `sandbox`.
        replace(item, keys=item.keys[1:]) if item.keys[:2] == sandbox and item.keys[2:] else item
        for item in items
        if item.keys[0] == "shell"
    ]
    for name, value, origin in _file_values(path, shell):
        if name == "policy.custom_list":
            values.pop("policy.additional", None)  # The list in this file is the whole list.
        if name == "policy.blocked":
            value = (*values.get(name, ()), *value)
        values[name], origins[name] = value, origin
    if not security.enabled:  # `[features]` can turn it off too.
        values["policy.enabled"], origins["policy.enabled"] = False, security.off_by


# --- Project files ---------------------------------------------------------------------------


def with_project(
    settings: Settings, files: Mapping[str, bytes], *, environ: Mapping[str, str] | None = None
) -> Settings:
    """Return `settings` with a project's own file applied; the environment takes precedence.

    `files`: the project's settings files by name; more than one is an error.
    """
    for name in files:
        if name in MISNAMED:
            raise misnamed_error(f"the project's {name}")
    if len(files) > 1:
        raise ConfigurationError(
            f"the project has {' and '.join(files)}", hint="keep only one of them"
        )
    variables = os.environ if environ is None else environ
    own = {path: value for path, value, _ in _environment_values(variables)}
    values = {**{path: value_at(settings, path) for path in settings_table()}, **own}
    stronger = set(own)
    for name, data in files.items():
        path = Path(name)
        try:
            items = list(yaml_items(data.decode(), path))
        except UnicodeDecodeError:
            raise ConfigurationError(f"the project's {name} is not UTF-8 text") from None
        _apply_project(path, items, values, {}, stronger=stronger)
    return build(values)


def _apply_project(
    path: Path,
    items: Sequence[Item],
    values: dict[str, Any],
    origins: dict[str, str],
    *,
    stronger: Collection[str],
) -> None:
    """Check a project's file against the user's settings, and apply what it tightens.

    `stronger`: paths that the environment or the call has set, which no project changes.
    """
    user_values = {**defaults(), **values}
    for name in _DOMAIN_LISTS:
        values[name] = without_dormant_lines(name, user_values.__getitem__)
    for name, value, origin in _file_values(path, items):
        setting = settings_table()[name]
        before = user_values[name]
        if setting.project == "nothing":
            raise _not_for_projects(name, origin)
        if name in stronger:
            continue
        if setting.project == "add":
            value = (*before, *value)
            origin = f"{origins[name]} and {origin}" if name in origins else origin
        elif setting.project == "lower" and _is_higher(value, before):
            limit = setting.kind.written(before)
            raise ConfigurationError(
                f"{origin}: a project can only lower `{name}`, which is {limit}",
                hint="raise it in your own settings: `kakoi config path` prints the file",
            )
        elif setting.project == "narrow":
            value = narrowed(name, value, user_values.__getitem__, origin=origin)
        values[name], origins[name] = value, origin


def _is_higher(value: float | None, before: float | None) -> bool:
    """Tell if `value` is higher than `before`; None means no limit at all."""
    return before is not None and (value is None or value > before)


def _not_for_projects(name: str, origin: str) -> ConfigurationError:
    allowed = [path for path, setting in settings_table().items() if setting.project != "nothing"]
    return ConfigurationError(
        f"{origin}: a project cannot set `{name}`: its file is not trusted",
        hint=f"set it in your own settings; a project can set {', '.join(allowed)}",
    )


# --- An orchestrator's file ------------------------------------------------------------------


def _apply_orchestrator(
    path: Path, values: dict[str, Any], origins: dict[str, str], *, stronger: Collection[str]
) -> None:
    """Apply the `sandbox` section of a project's orch.yml as far as it tightens; log the rest.

    It is not an error to ask for more, as it is in a file of ours: another program reads it too.
    """
    items = read_items(path, follow_links=False) or []
    ours = [item for item in items if item.keys[0] == "sandbox"]
    before, ignored = {**defaults(), **values}, []
    for name, value, origin in _file_values(path, ours):
        if name in stronger or (value == before[name] and not name.endswith(".timeout")):
            continue
        if _only_tightens(name, value, before[name]):
            values[name], origins[name] = value, origin
        else:
            ignored.append(f"`{name}`")
    if ignored:
        _log.warning(
            "%s: ignored %s: a project's file can only tighten; set it in your own settings",
            shown(str(path)),
            ", ".join(ignored),
        )


def _only_tightens(name: str, value: Any, before: Any) -> bool:
    if name == "sandbox.type":
        return before == AUTO and value in _AS_STRONG_AS_AUTO
    if name.endswith(".network"):
        return bool(value == "none")
    if name.endswith("timeout"):
        return not _is_higher(value, before)
    return settings_table()[name].project == "choose"


# --- The environment -------------------------------------------------------------------------


def _environment_values(environ: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for path, setting in settings_table().items():
        name = next((each for each in setting.env if environ.get(each)), None)
        if name is not None:
            value = setting.kind.read_text(environ[name], name)
            yield path, value, f"environment variable {name}"
