"""A file of settings → its values with the lines they are on. Strangers write such files."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kakoi.documents import Item, parse_toml, read_text, yaml_items
from kakoi.errors import ConfigurationError

_MAX_DEPTH = 16


def read_items(path: Path) -> list[Item] | None:
    """Everything that a file sets; None if there is no such file."""
    text = read_text(path)
    if text is None:
        return None
    is_toml = path.suffix == ".toml"
    return list(_flatten(parse_toml(text, path), (), path) if is_toml else yaml_items(text, path))


def user_folder(environ: Mapping[str, str]) -> Path:
    """Where this user's settings are."""
    folder = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # So the XDG specification wants it.
        folder = os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".config")
    return Path(folder, "kakoi")


def _flatten(table: dict[str, Any], keys: tuple[str, ...], path: Path) -> Iterator[Item]:
    if len(keys) > _MAX_DEPTH:
        raise ConfigurationError(f"{path} is nested too deeply")
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, (*keys, key), path)
        else:
            yield Item((*keys, key), value, 0)
