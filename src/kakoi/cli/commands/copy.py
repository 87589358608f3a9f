"""`kakoi copy`: review, apply or discard what commands changed in a copy of the project."""

import json
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import click

from kakoi._support.text import shown
from kakoi.cli.group import CommandGroup, help_end
from kakoi.cli.options import config_option, json_option
from kakoi.cli.target import existing_directory
from kakoi.overlay import Change, ChangeKind, Overlay
from kakoi.overlay.diffs import Difference
from kakoi.overlay.store import overlays_folder
from kakoi.settings.loader import load_settings

_LETTERS: Final = {ChangeKind.ADDED: "A", ChangeKind.MODIFIED: "M", ChangeKind.DELETED: "D"}
_WORKSPACE: Final = click.option(
    "--workspace", metavar="DIR", default=".", help="The project (default: this directory)."
)


def _overlay_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that select the project."""
    return _WORKSPACE(config_option(command))


@click.group(
    cls=CommandGroup,
    epilog=help_end("kakoi run --cow 'echo hi >greeting.txt'", "kakoi copy diff"),
)
def command() -> None:
    """Review, apply or discard what `kakoi run --cow` changed.

    Such commands write to a copy of the project. The project itself changes only when you apply
    the changes.
    """


@command.command(
    epilog=help_end(
        "kakoi copy changes",
        "kakoi copy changes --json",
        exit_codes="0 success, also without changes; 2 usage error, or the copy cannot be read.",
    )
)
@json_option
@_overlay_options
def changes(*, as_json: bool, workspace: str, config_file: Path | None) -> None:
    """List the changed files: A added, M modified, D deleted.

    A new file with the content of a deleted one is listed as renamed.
    """
    found = _open_existing(workspace, config_file).changes()
    if as_json:
        click.echo(json.dumps([_change_as_dict(each) for each in found], indent=2))
        return
    for each in found:
        click.echo(_format_change(each))


@command.command(
    epilog=help_end(
        "kakoi copy diff --stat",
        "kakoi copy diff --raw src | git apply --check",
        exit_codes="0 success; 2 usage error, or the copy cannot be read.",
    )
)
@click.argument("paths", nargs=-1)
@click.option("--stat", "only_counts", is_flag=True, help="Only count the lines of each file.")
@click.option(
    "--raw",
    is_flag=True,
    help="Print bytes unchanged, for `git apply`. Without it, control characters are escaped "
    "(\\x1b).",
)
@_overlay_options
def diff(
    *,
    paths: tuple[str, ...],
    only_counts: bool,
    raw: bool,
    workspace: str,
    config_file: Path | None,
) -> None:
    """Show the changes as a unified diff, limited to PATHS if given.

    Binary files and files above 4 MiB are only named.
    """
    found = _open_existing(workspace, config_file).diff(paths)
    if only_counts:
        _print_counts(found)
        return
    for each in found:
        for line in each.lines:
            sys.stdout.buffer.write(line if raw else _escape(line))
    sys.stdout.flush()


@command.command(
    short_help="Apply the changes to the project.",
    epilog=help_end(
        "kakoi copy apply",
        "kakoi copy apply src/main.py --force",
        exit_codes="0 everything was applied; 1 some changes were refused; 2 usage error, or the "
        "copy is in use.",
    ),
)
@click.argument("paths", nargs=-1)
@click.option("--force", is_flag=True, help="Overwrite what changed in the project since.")
@json_option
@_overlay_options
def apply(
    *,
    paths: tuple[str, ...],
    force: bool,
    as_json: bool,
    workspace: str,
    config_file: Path | None,
) -> None:
    """Apply the changes to the project, limited to PATHS and what is below them if given.

    A file that changed in the project meanwhile is refused; the others are applied. Sockets,
    devices and setuid bits are never applied. If it is interrupted, run it again.
    """
    applied = _open_existing(workspace, config_file).apply(paths, force=force)
    if as_json:
        refused = [{"path": path, "reason": why} for path, why in applied.refused]
        click.echo(json.dumps({"applied": applied.done, "refused": refused}, indent=2))
    else:
        for path, why in applied.refused:
            click.echo(f"kakoi: not applied: {shown(path)}: {why}", err=True)
        click.echo(f"{_format_count(len(applied.done))} applied")
    sys.exit(1 if applied.refused else 0)


@command.command(
    epilog=help_end(
        "kakoi copy discard",
        "kakoi copy discard --workspace /path/of/a/deleted/project",
        exit_codes="0 success; 2 usage error, or the copy is in use.",
    )
)
@json_option
@_overlay_options
def discard(*, as_json: bool, workspace: str, config_file: Path | None) -> None:
    """Delete all changes, and all checkpoints."""
    # The copy of a project that was deleted can still be discarded.
    project = workspace if os.path.isabs(workspace) else existing_directory(workspace)
    gone = _open(project, config_file).discard()
    text = f"{_format_count(len(gone))} discarded"
    click.echo(json.dumps({"discarded": len(gone)}) if as_json else text)


@command.command(
    epilog=help_end(
        "kakoi copy checkpoint before-refactoring",
        "kakoi copy checkpoint --json",
        exit_codes="0 success; 2 usage error, or the copy is in use.",
    )
)
@click.argument("name", required=False)
@json_option
@_overlay_options
def checkpoint(
    *, name: str | None, as_json: bool, workspace: str, config_file: Path | None
) -> None:
    """Save the current changes as NAME. Without NAME, list the checkpoints.

    Nothing is copied, however big the project is. No sandbox may be running on it.
    """
    overlay = _open_existing(workspace, config_file)
    if name is not None:
        overlay.checkpoint(name)
        if as_json:
            click.echo(json.dumps({"checkpoint": name}))
        return
    names = list(overlay.checkpoints())
    for each in [json.dumps(names)] if as_json else names:
        click.echo(each)


@command.command(
    short_help="Return to a checkpoint.",
    epilog=help_end(
        "kakoi copy checkpoint",
        "kakoi copy rollback before-refactoring",
        exit_codes="0 success; 2 usage error, no such checkpoint, or the copy is in use.",
    ),
)
@click.argument("name")
@_overlay_options
def rollback(*, name: str, workspace: str, config_file: Path | None) -> None:
    """Delete the changes made since checkpoint NAME, and every later checkpoint."""
    _open_existing(workspace, config_file).rollback(name)


# --- Common ----------------------------------------------------------------------------------


def _open_existing(workspace: str, config_file: Path | None) -> Overlay:
    """The overlay of a project that exists."""
    return _open(existing_directory(workspace), config_file)


def _open(workspace: str, config_file: Path | None) -> Overlay:
    """The overlay of a project, even if the project itself is gone."""
    settings = load_settings(workspace, config_file=config_file).settings
    folder = settings.sandbox.overlays
    return Overlay(workspace, folder or overlays_folder(os.environ))


def _change_as_dict(change: Change) -> dict[str, Any]:
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


def _format_change(change: Change) -> str:
    """A change in one line."""
    is_folder = "directory" in (
        change.type,
        change.was if change.kind is ChangeKind.DELETED else "",
    )
    name = shown(change.path) + ("/" if is_folder and change.path != "." else "")
    notes = [
        f"was {shown(change.renamed_from)}" if change.renamed_from else "",
        change.type if change.type not in ("file", "directory") else "",
        f"was a {change.was}" if change.was not in ("", change.type) else "",
        _format_mode(change),
        change.conflict,
        change.never_applied,
    ]
    text = "; ".join(filter(None, notes))
    return f"{_LETTERS[change.kind]} {name}" + (f"  ({text})" if text else "")


def _format_mode(change: Change) -> str:
    if change.mode is None or change.was_mode is None or change.mode == change.was_mode:
        return ""
    return f"mode {change.was_mode:04o} → {change.mode:04o}"


def _format_count(number: int) -> str:
    return f"{number} change" + ("" if number == 1 else "s")


def _escape(line: bytes) -> bytes:
    """A line without anything that a terminal would obey; a tab stays a tab."""
    text = line.decode("utf-8", "surrogateescape")
    parts = re.split(r"([\t\n])", text)
    return "".join(each if each in "\t\n" else shown(each) for each in parts).encode("utf-8")


def _print_counts(found: Iterable[Difference]) -> None:
    files = added = removed = 0
    for each in found:
        lines = "binary" if each.is_binary else f"+{each.added} -{each.removed}"
        click.echo(f"{lines:>12}  {shown(each.change.path)}")
        files, added, removed = files + 1, added + each.added, removed + each.removed
    click.echo(f"{_format_count(files)}, +{added} -{removed}")
