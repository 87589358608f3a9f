"""ConfigLoader: the YAML file and the whitelist that it names, each read once and strictly."""

import contextlib
import logging
import os
import posixpath
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kakoi._support.parsing import Item, nearest, read_items, read_text, wrong
from kakoi._support.text import short_repr
from kakoi._support.user_folders import config_folder, environment
from kakoi.backends.settings import SandboxConfig
from kakoi.bash_executor.checks import boolean, path, patterns, seconds, text, texts
from kakoi.errors import ConfigurationError

SHIPPED: Final = Path(__file__).with_name("config.yaml")
_IN_PROJECT: Final = "config/bash_executor/config.yaml"
_LARGEST_LIST: Final = 1024 * 1024


class ConfigLoader:
    """The settings in one file; without a path, in the file that kakoi ships.

    Raises ConfigurationError if the file cannot be read, is not YAML, or contains an unknown key or
    a wrong value. The message says where, and what is expected.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = SHIPPED if path is None else _absolute(path)
        self._settings = _parse(self._path)
        self._whitelist: list[str] | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value at `key` (`executor.timeout`), or `default` if the file has none."""
        found: object = self._settings
        for name in text("the key", key).split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            return default
        return _copied(found)

    def load_whitelist(self) -> list[str]:
        """Return the commands in `security.whitelist_file`; without one, in the shipped list."""
        if self._whitelist is None:
            named = self.get("security.whitelist_file")
            file = SHIPPED.with_name("commands_whitelist.txt")
            if named is not None:
                file = self._listed(named)
            commands = (" ".join(line.partition("#")[0].split()) for line in _lines(file))
            self._whitelist = [command for command in commands if command]
        return list(self._whitelist)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def resolve(self, named: str) -> Path:
        """Resolve a path in the file: relative to the file, not to the current directory."""
        return self._path.parent / named

    def _listed(self, named: str) -> Path:
        """Return the list's file: beside the configuration, or else in the current directory."""
        beside, here = self.resolve(named), Path(os.path.abspath(named))
        return here if os.path.lexists(here) and not os.path.lexists(beside) else beside


def find_config() -> Path:
    """Return the first configuration that exists: of the current directory, the user, or kakoi."""
    places = []
    with contextlib.suppress(FileNotFoundError):  # The current directory may have been removed.
        places.append(Path(os.path.abspath(_IN_PROJECT)))
    with contextlib.suppress(ConfigurationError):  # A user without a home has no file of their own.
        places.append(config_folder(environment(None)) / "bash_executor" / "config.yaml")
    return next((place for place in places if os.path.lexists(place)), SHIPPED)


def _absolute(name: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(path("the path of the configuration", name)))


def _copied(value: object) -> object:
    """Copy a value, so that the caller cannot change ours."""
    if isinstance(value, Mapping):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


# --- Reading ---------------------------------------------------------------------------------


def _parse(file: Path) -> Mapping[str, Mapping[str, object]]:
    items = read_items(file)
    if items is None:
        raise ConfigurationError(
            f"configuration file {str(file)!r} not found", hint=f"for an example, see {SHIPPED}"
        )
    sections: dict[str, dict[str, Any]] = {}
    for item in items:
        try:
            _store(item, sections)
        except ConfigurationError as error:
            where = f"{file}:{item.line}" if item.line else str(file)
            raise ConfigurationError(f"{where}: {error}", hint=error.hint) from None
    try:
        return _checked(sections)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}", hint=error.hint) from None


def _store(item: Item, sections: dict[str, dict[str, Any]]) -> None:
    """Store a value in its section, under its key, and below that as nested as it is written."""
    known = _KEYS[_known(item.keys[0], "the configuration", _KEYS)]
    section = sections.setdefault(item.keys[0], {})
    if len(item.keys) == 1:
        if item.value is not None:
            raise wrong(item.keys[0], item.value, f"a section with {', '.join(known)}")
        return
    _known(item.keys[1], item.keys[0], known)
    for key in item.keys[1:-1]:
        section = section.setdefault(key, {})
    section[item.keys[-1]] = item.value


def _checked(sections: Mapping[str, Mapping[str, object]]) -> Mapping[str, Mapping[str, object]]:
    for name, section in sections.items():
        for key, value in section.items():
            if value is not None:
                _KEYS[name][key](f"{name}.{key}", value)
    return sections


def _known(key: str, where: str, known: Mapping[str, object]) -> str:
    if key in known:
        return key
    raise ConfigurationError(
        f"{where}: unknown key {short_repr(key)}{nearest(key, known)}",
        hint=f"known keys: {', '.join(known)}",
    )


def _lines(file: Path) -> list[str]:
    try:
        text = read_text(file, most_bytes=_LARGEST_LIST)
    except ConfigurationError as error:
        raise ConfigurationError(f"security.whitelist_file: {error}", hint=error.hint) from None
    if text is None:
        raise ConfigurationError(
            f"security.whitelist_file: {str(file)!r} not found",
            hint="a relative path is looked up beside the configuration file, then in the current "
            "directory",
        )
    return text.removeprefix("\ufeff").splitlines()


# --- Keys and their values -------------------------------------------------------------------


def check_shell(what: str, value: object) -> None:
    """Check that the shell is bash: commands are judged as bash text."""
    if posixpath.basename(path(what, value)) != "bash":
        raise wrong(
            what,
            value,
            "bash: commands are judged as bash text, and another shell would read them differently",
            hint="use /bin/bash, or leave it out",
        )


def parse_sandbox(what: str, value: object) -> SandboxConfig:
    """Parse a section, or just the name of a sandbox."""
    return SandboxConfig.parse({"type": value} if isinstance(value, str) else value, origin=what)


def parse_level(what: str, value: object) -> int:
    """Return the number of a `logging` level, which is written by name or number."""
    levels = logging.getLevelNamesMapping()
    if isinstance(value, str) and value.upper() in levels:
        return levels[value.upper()]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100:
        return value
    raise wrong(what, value, f"one of {', '.join(levels)}")


def parse_format(what: str, value: object) -> logging.Formatter:
    """Parse a `logging` format, and try it: a line that cannot be formatted would be lost."""
    format_text = text(what, value)
    record = logging.LogRecord("kakoi", logging.INFO, "", 0, "a line", None, None)
    try:
        formatter = logging.Formatter(format_text)
        formatter.format(record)
    except (ValueError, KeyError, TypeError) as error:
        hint = "such as: %(asctime)s - %(name)s - %(levelname)s - %(message)s"
        raise ConfigurationError(
            f"{what} is {short_repr(format_text)}, which is not a logging format ({error})",
            hint=hint,
        ) from None
    return formatter


_KEYS: Final[Mapping[str, Mapping[str, Callable[[str, object], object]]]] = {
    "executor": {
        "root_dir": path,
        "shell": check_shell,
        "timeout": seconds,
        "sandbox": parse_sandbox,
        "pure_commands": texts,
    },
    "security": {"enable_whitelist": boolean, "whitelist_file": path, "block_patterns": patterns},
    "logging": {"level": parse_level, "format": parse_format},
}
