"""A file of settings → its values with the lines they are on. Strangers write such files."""

import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kakoi.documents import Item, read_text, yaml_items
from kakoi.errors import ConfigurationError

_MAX_DEPTH = 16


def read_items(path: Path) -> list[Item] | None:
    """Everything that a file sets; None if there is no such file."""
    text = read_text(path)
    if text is None:
        return None
    return list(_toml(text, path) if path.suffix == ".toml" else yaml_items(text, path))


def user_folder(environ: Mapping[str, str]) -> Path:
    """Where this user's settings are."""
    folder = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # So the XDG specification wants it.
        folder = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(folder, "kakoi")


def _toml(text: str, path: Path) -> Iterator[Item]:
    try:
        parsed = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigurationError(f"{path} is no TOML: {error}") from None
    yield from _flatten(parsed, (), path)


def _flatten(table: dict[str, Any], keys: tuple[str, ...], path: Path) -> Iterator[Item]:
    if len(keys) > _MAX_DEPTH:
        raise ConfigurationError(f"{path} is nested too deeply")
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, (*keys, key), path)
        else:
            yield Item((*keys, key), value, 0)
