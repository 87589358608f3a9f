"""ConfigLoader: the YAML file and the whitelist it names, each read once, and strictly."""

import logging
import os
import posixpath
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from kakoi.bash_executor.checks import boolean, path, patterns, seconds, text, texts
from kakoi.config.files import read_items
from kakoi.documents import Item, read_text
from kakoi.errors import ConfigurationError
from kakoi.sandbox.settings import SandboxConfig
from kakoi.sections import nearest, shown, wrong

SHIPPED: Final = Path(__file__).with_name("config.yaml")
_LARGEST_LIST: Final = 1024 * 1024


class ConfigLoader:
    """The settings of one file; without a path, those that kakoi comes with.

    ConfigurationError: it cannot be read, is no YAML, holds an unknown key or a wrong value. The
    message says where, and what would be right.
    """

    def __init__(self, path: str | os.PathLike[str] | None = None) -> None:
        self._path = SHIPPED if path is None else _absolute(path)
        self._settings = _parse(self._path)
        self._whitelist: list[str] | None = None

    def get(self, key: str, default: Any = None) -> Any:
        """The value at `key` (`executor.timeout`), or `default` where the file has none."""
        found: object = self._settings
        for name in text("the key", key).split("."):
            found = found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            return default
        return _copied(found)

    def load_whitelist(self) -> list[str]:
        """The commands of `security.whitelist_file`; without one, of the list that we ship."""
        if self._whitelist is None:
            named = self.get("security.whitelist_file")
            file = SHIPPED.with_name("commands_whitelist.txt")
            if named is not None:
                file = self.resolve(named)
            commands = (" ".join(line.partition("#")[0].split()) for line in _lines(file))
            self._whitelist = [command for command in commands if command]
        return list(self._whitelist)

    def resolve(self, named: str) -> Path:
        """A path of the file: relative to where the file is, and not to where we are."""
        return self._path.parent / named


def _absolute(given: str | os.PathLike[str]) -> Path:
    return Path(os.path.abspath(path("the path of the configuration", given)))


def _copied(value: object) -> object:
    """Ours stays as it was read, whatever the caller does with his."""
    if isinstance(value, Mapping):
        return {name: _copied(each) for name, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value


# --- Reading ---------------------------------------------------------------------------------


def _parse(file: Path) -> Mapping[str, Mapping[str, object]]:
    items = read_items(file)
    if items is None:
        raise ConfigurationError(
            f"there is no configuration at {str(file)!r}", hint=f"an example is {SHIPPED}"
        )
    sections: dict[str, dict[str, Any]] = {}
    for item in items:
        try:
            _place(item, sections)
        except ConfigurationError as error:
            where = f"{file}:{item.line}" if item.line else str(file)
            raise ConfigurationError(f"{where}: {error}", hint=error.hint) from None
    try:
        return _checked(sections)
    except ConfigurationError as error:
        raise ConfigurationError(f"{file}: {error}", hint=error.hint) from None


def _place(item: Item, sections: dict[str, dict[str, Any]]) -> None:
    """Put a value where it belongs: the section, the key, and below that what a key may hold."""
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
        f"{where}: unknown key {shown(key)}{nearest(key, known)}",
        hint=f"known are: {', '.join(known)}",
    )


def _lines(file: Path) -> list[str]:
    try:
        text = read_text(file, most_bytes=_LARGEST_LIST)
    except ConfigurationError as error:
        raise ConfigurationError(f"security.whitelist_file: {error}", hint=error.hint) from None
    if text is None:
        raise ConfigurationError(
            f"security.whitelist_file: there is no file {str(file)!r}",
            hint="it is looked for where the configuration is",
        )
    return text.removeprefix("\ufeff").splitlines()


# --- What may be in it -----------------------------------------------------------------------


def check_shell(what: str, value: object) -> None:
    """A bash: what is judged is read as bash, and only a bash runs what was read."""
    if posixpath.basename(path(what, value)) != "bash":
        raise wrong(
            what,
            value,
            "a bash: commands are judged as bash text, and another shell would run another text",
            hint="use /bin/bash, or leave it out",
        )


def parse_sandbox(what: str, value: object) -> SandboxConfig:
    """A section, or the name of a sandbox alone."""
    return SandboxConfig.parse({"type": value} if isinstance(value, str) else value, origin=what)


def parse_level(what: str, value: object) -> int:
    """The number of a level of `logging`, by name or number."""
    levels = logging.getLevelNamesMapping()
    if isinstance(value, str) and value.upper() in levels:
        return levels[value.upper()]
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 100:
        return value
    raise wrong(what, value, f"one of {', '.join(levels)}")


def parse_format(what: str, value: object) -> logging.Formatter:
    """A format of `logging`, tried out: a line that cannot be formatted would be lost."""
    given = text(what, value)
    record = logging.LogRecord("kakoi", logging.INFO, "", 0, "a line", None, None)
    try:
        formatter = logging.Formatter(given)
        formatter.format(record)
    except (ValueError, KeyError, TypeError) as error:
        hint = "such as: %(asctime)s - %(name)s - %(levelname)s - %(message)s"
        raise ConfigurationError(
            f"{what} is {shown(given)}, which is no format of logging ({error})", hint=hint
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
