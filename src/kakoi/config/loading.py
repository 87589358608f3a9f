"""Sources → Settings: call > environment > project > user > default, each value with its origin.

The file of a project is written by strangers. It may choose an image, lower limits and tighten the
policy; anything else in it is an error, not a silence.
"""

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from kakoi.config.files import read_items
from kakoi.config.narrowing import narrowed, without_dormant_lines
from kakoi.config.settings import Settings, build, defaults, table, value_at
from kakoi.documents import Item, yaml_items
from kakoi.errors import ConfigurationError
from kakoi.homes import config_folder
from kakoi.sections import nearest, snake_case

PROJECT_FILES: Final = ("kakoi.yaml", ".kakoi.yaml")
# Where commands may go, and where tasks may.
_LISTS: Final = ("sandbox.allowed_domains", "tasks.network.allowed_domains")
# Files of others in which only these sections are ours.
_FOREIGN: Final = ("command_executor", "executor", "security", "logging", "shell")
# What such sections hold that is not a setting of kakoi's: the faces of the specs read it.
_NOT_OURS: Final = re.compile(
    r"executor\.(root_dir|shell|pure_commands|sandbox\..*)|logging\..*"
    r"|security\.(enable_whitelist|whitelist_file)"
    r"|shell\.(enabled|require_confirmation|allowed_directories|sandbox\..*)"
)


@dataclass(frozen=True, slots=True)
class Loaded:
    """The settings that hold, and where each value that is no default comes from, by path."""

    settings: Settings
    origins: Mapping[str, str] = field(default_factory=dict)

    def origin(self, path: str) -> str:
        """Where the value of a path comes from."""
        return self.origins.get(path, "default")


def user_file(environ: Mapping[str, str]) -> Path:
    """The user's own settings: KAKOI_CONFIG, else kakoi/config.yaml among the user's settings."""
    named = environ.get("KAKOI_CONFIG")
    return Path(named) if named else config_folder(environ) / "config.yaml"


def project_file(workspace: str | Path) -> Path | None:
    """The settings of the project in `workspace`, if it has any; two of them are an error."""
    paths = [Path(workspace, name) for name in PROJECT_FILES]
    found = [path for path in paths if path.is_symlink() or path.is_file()]
    if len(found) > 1:
        raise ConfigurationError(
            f"there are both {found[0]} and {found[1].name}", hint="keep one of them"
        )
    return found[0] if found else None


def load_settings(
    workspace: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    call: Mapping[str, Any] | None = None,
    config_file: Path | None = None,
) -> Loaded:
    """Everything that holds for `workspace`. `call`: values by path, which win over all.

    `config_file`: instead of the user's file; then it has to be there.
    """
    given = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    path = config_file or user_file(given)
    items = read_items(path)
    if items is None and (config_file is not None or given.get("KAKOI_CONFIG")):
        raise ConfigurationError(f"there is no file {path}", hint="`kakoi config init` makes one")
    for name, value, origin in _file_values(path, items or []):
        values[name], origins[name] = value, origin
    stronger = {name: (value, origin) for name, value, origin in _environment_values(given)}
    for name, value in (call or {}).items():
        if name not in table():
            raise _unknown(name, "call", "")
        stronger[name] = (value, "call")
    for name, (value, origin) in stronger.items():
        values[name], origins[name] = value, origin
    project = None if workspace is None else project_file(workspace)
    if project is not None:
        items = read_items(project, follow_links=False) or []
        _apply_project(project, items, values, origins, stronger=stronger)
    return Loaded(build(values), origins)


# --- Files -----------------------------------------------------------------------------------


@cache
def _paths() -> Mapping[str, str]:
    """Every way to write a setting → its path."""
    also = {other: path for path, setting in table().items() for other in setting.also}
    return {**{path: path for path in table()}, **also}


@cache
def _sections() -> frozenset[str]:
    """Every path that holds settings."""
    keys = [path.split(".") for path in _paths()]
    return frozenset(".".join(each[:size]) for each in keys for size in range(1, len(each)))


def _file_values(path: Path, items: Sequence[Item]) -> Iterator[tuple[str, Any, str]]:
    """The settings in a file. In a file of another program, its own sections are left alone."""
    is_foreign = path.stem == "orch" or any(item.keys[0] in _FOREIGN for item in items)
    ours = {name.partition(".")[0] for name in _paths()}
    said: dict[str, str] = {}
    for item in items:
        written = ".".join(map(snake_case, item.keys))
        where = f"{path}:{item.line}" if item.line else str(path)
        if is_foreign and (item.keys[0] not in ours or _NOT_OURS.fullmatch(written)):
            continue
        name = _paths().get(written)
        if item.value is None and (name is not None or written in _sections()):
            continue
        if name is None:
            raise _unknown(written, where, str(path))
        if name in said:
            raise ConfigurationError(
                f"{where}: `{written}` says again what `{said[name]}` has said", hint="keep one"
            )
        said[name] = written
        yield name, table()[name].kind.read(item.value, f"{where}: {written}"), where
        if written == "shell.allowed_commands":  # Of spec D: there, the list is all there is.
            yield "policy.use_default", False, where


def _unknown(written: str, where: str, file: str) -> ConfigurationError:
    if written in _sections():
        return ConfigurationError(f"{where}: `{written}` is a section; it holds keys and values")
    return ConfigurationError(
        f"{where}: unknown key `{written[:80]}`{nearest(written, _paths())}",
        details={"file": file, "key": written[:200]},
        hint="`kakoi config show` lists every key",
    )


# --- A project -------------------------------------------------------------------------------


def with_project(
    settings: Settings, files: Mapping[str, bytes], *, environ: Mapping[str, str] | None = None
) -> Settings:
    """`settings`, and what a project's own file of these adds to them; the environment wins."""
    if len(files) > 1:
        raise ConfigurationError(f"the project has {' and '.join(files)}", hint="keep one of them")
    given = os.environ if environ is None else environ
    own = {path: value for path, value, _ in _environment_values(given)}
    values = {**{path: value_at(settings, path) for path in table()}, **own}
    stronger = set(own)
    for name, data in files.items():
        path = Path(name)
        try:
            items = list(yaml_items(data.decode(), path))
        except UnicodeDecodeError:
            raise ConfigurationError(f"the project's {name} is no UTF-8 text") from None
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
    """Hold a project's file against all that the user says, and take over what it tightens.

    `stronger`: what the user says in a way that no project changes.
    """
    ours = {**defaults(), **values}
    for name in _LISTS:
        values[name] = without_dormant_lines(name, ours.__getitem__)
    for name, value, origin in _file_values(path, items):
        setting = table()[name]
        before = ours[name]
        if setting.project == "nothing":
            raise _not_for_projects(name, origin)
        if name in stronger:
            continue
        if setting.project == "add":
            value = (*before, *value)
            origin = f"{origins[name]} and {origin}" if name in origins else origin
        elif setting.project == "lower" and _is_higher(value, before):
            raise ConfigurationError(
                f"{origin}: a project can only lower `{name}`, which is {before}",
                hint="raise it in your own settings: `kakoi config path` says where",
            )
        elif setting.project == "narrow":
            value = narrowed(name, value, ours.__getitem__, origin=origin)
        values[name], origins[name] = value, origin


def _is_higher(value: float | None, before: float | None) -> bool:
    """None is no limit at all."""
    return before is not None and (value is None or value > before)


def _not_for_projects(name: str, origin: str) -> ConfigurationError:
    may = [path for path, setting in table().items() if setting.project != "nothing"]
    return ConfigurationError(
        f"{origin}: a project cannot set `{name}`: whoever wrote the project wrote this file, too",
        hint=f"set it in your own settings; a project can set {', '.join(may)}",
    )


# --- The environment -------------------------------------------------------------------------


def _environment_values(environ: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for path, setting in table().items():
        name = next((each for each in setting.env if environ.get(each)), None)
        if name is not None:
            value = setting.kind.read_text(environ[name], name)
            yield path, value, f"environment variable {name}"
