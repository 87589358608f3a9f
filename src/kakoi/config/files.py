"""A file of settings → its values with the lines they are on. Strangers write such files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kakoi.documents import Item, parse_toml, read_text, yaml_items
from kakoi.errors import ConfigurationError

_MAX_DEPTH = 16


def read_items(path: Path, *, follow_links: bool = True) -> list[Item] | None:
    """Everything that a file sets; None if there is no such file."""
    text = read_text(path, follow_links=follow_links)
    if text is None:
        return None
    is_toml = path.suffix == ".toml"
    return list(_flatten(parse_toml(text, path), (), path) if is_toml else yaml_items(text, path))


def _flatten(table: dict[str, Any], keys: tuple[str, ...], path: Path) -> Iterator[Item]:
    if len(keys) > _MAX_DEPTH:
        raise ConfigurationError(f"{path} is nested too deeply")
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(value, (*keys, key), path)
        else:
            yield Item((*keys, key), value, 0)
