"""What the commands about copy-on-write workspaces have in common."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import click

from kakoi.cli.opening import config_option, existing_directory
from kakoi.config.loading import load_settings
from kakoi.overlay import Change, Kind, Overlay
from kakoi.overlay.store import overlays_folder
from kakoi.printable import shown

_LETTERS: Final = {Kind.ADDED: "A", Kind.MODIFIED: "M", Kind.DELETED: "D"}

_WORKSPACE: Final = click.option(
    "--workspace", metavar="DIR", default=".", help="The project (default: this directory)."
)


def overlay_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say which project is meant."""
    return _WORKSPACE(config_option(command))


def overlay_of(workspace: str, config_file: Path | None) -> Overlay:
    """The overlay of the project, which has to be there."""
    return overlay_of_any(existing_directory(workspace), config_file)


def overlay_of_any(workspace: str, config_file: Path | None) -> Overlay:
    """The overlay of a project, even if the project itself is gone."""
    settings = load_settings(workspace, config_file=config_file).settings
    folder = settings.sandbox.overlays
    return Overlay(workspace, folder or overlays_folder(os.environ))


def as_dict(change: Change) -> dict[str, Any]:
    """A change for programs."""
    return {
        "path": change.path,
        "change": change.kind.value,
        "type": change.type,
        "was": change.was or None,
        "mode": None if change.mode is None else f"{change.mode:04o}",
        "was_mode": None if change.was_mode is None else f"{change.was_mode:04o}",
        "size": change.size,
        "renamed_from": change.renamed_from or None,
        "conflict": change.conflict or None,
        "never_applied": change.never_applied or None,
    }


def in_words(change: Change) -> str:
    """A change for people, in one line."""
    is_folder = "directory" in (change.type, change.was if change.kind is Kind.DELETED else "")
    name = shown(change.path) + ("/" if is_folder and change.path != "." else "")
    notes = [
        f"was {shown(change.renamed_from)}" if change.renamed_from else "",
        change.type if change.type not in ("file", "directory") else "",
        f"was a {change.was}" if change.was not in ("", change.type) else "",
        _mode_in_words(change),
        change.conflict,
        change.never_applied,
    ]
    told = "; ".join(filter(None, notes))
    return f"{_LETTERS[change.kind]} {name}" + (f"  ({told})" if told else "")


def _mode_in_words(change: Change) -> str:
    if change.mode is None or change.was_mode is None or change.mode == change.was_mode:
        return ""
    return f"mode {change.was_mode:04o} → {change.mode:04o}"


def counted(number: int) -> str:
    """`1 change`, `2 changes`."""
    return f"{number} change" + ("" if number == 1 else "s")
