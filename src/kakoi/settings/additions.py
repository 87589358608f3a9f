"""Adds a program to the user's settings file, whose comments and order stay as they are."""

import os
import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kakoi.errors import ConfigurationError
from kakoi.settings.files import user_file
from kakoi.settings.loader import load_settings

if TYPE_CHECKING:
    import yaml

_LONGEST: Final = 1024 * 1024


def add_program(name: str, workspace: str, environ: Mapping[str, str]) -> Path:
    """Add `name` to `policy.additional` in the user's settings file; returns the file.

    Raises ConfigurationError, and changes nothing, if the file is in the workspace, where commands
    can write, or if the settings would not be as before with `name` added.
    """
    path = Path(os.path.realpath(user_file(environ)))
    if f"{path}/".startswith(os.path.realpath(workspace).rstrip("/") + "/"):
        raise _by_hand(path, name, "is in the workspace, where commands can write")
    before = ""
    mode = 0o600
    if path.exists():
        mode = path.stat().st_mode & 0o777
        before = path.read_text(encoding="utf-8")
    if len(before) > _LONGEST:
        raise _by_hand(path, name, "is too long")
    settings = load_settings(workspace, environ=environ).settings
    wanted = replace(
        settings,
        policy=replace(settings.policy, additional=(*settings.policy.additional, name)),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.stem}.{secrets.token_hex(8)}{path.suffix}")
    try:
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with open(fd, "w", encoding="utf-8", newline="") as file:
            file.write(with_item(before, ("policy", "additional"), name))
            file.flush()
            os.fsync(file.fileno())
        trial = {**environ, "KAKOI_CONFIG": str(temporary)}
        if load_settings(workspace, environ=trial).settings != wanted:
            raise _by_hand(path, name, "could not be changed without changing something else")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def with_item(text: str, keys: tuple[str, str], item: str) -> str:
    """Return the YAML `text` with `item` at the end of the list below `keys`."""
    import yaml

    section, name = keys
    written = yaml.safe_dump(item, default_flow_style=True, width=1000).splitlines()[0]
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    lead = "" if not text or text.endswith("\n") else "\n"
    if root is None:
        return f"{text}{lead}{section}:\n  {name}:\n    - {written}\n"
    inner = _value(root, section)
    if inner is None:
        return f"{text}{lead}{section}:\n  {name}:\n    - {written}\n"
    listed = _value(inner, name)
    if listed is None or not isinstance(listed, yaml.SequenceNode):
        if listed is not None or not isinstance(inner, yaml.MappingNode) or inner.flow_style:
            raise ConfigurationError(f"`{section}` of the settings file has a form of its own")
        at, margin = inner.start_mark.index, " " * inner.start_mark.column
        return f"{text[:at]}{name}:\n{margin}  - {written}\n{margin}{text[at:]}"
    if listed.flow_style:
        at = listed.end_mark.index - 1
        comma = ", " if listed.value else ""
        return f"{text[:at]}{comma}{written}{text[at:]}"
    end = text.find("\n", listed.value[-1].end_mark.index)
    margin = " " * listed.start_mark.column
    if end < 0:
        return f"{text}\n{margin}- {written}\n"
    return f"{text[:end]}\n{margin}- {written}{text[end:]}"


def _value(node: "yaml.Node", key: str) -> "yaml.Node | None":
    import yaml

    if not isinstance(node, yaml.MappingNode):
        raise ConfigurationError("the settings file has a form of its own")
    return next((value for name, value in node.value if name.value == key), None)


def _by_hand(path: Path, name: str, why: str) -> ConfigurationError:
    return ConfigurationError(
        f"{path} {why}", hint=f"add it by hand: `policy: {{additional: [{name}]}}`"
    )
