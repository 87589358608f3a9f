"""`kakoi config`: the effective settings, where each comes from, and files to start with."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from kakoi._support.redact import redact
from kakoi._support.text import shown
from kakoi.cli.group import CommandGroup, help_end
from kakoi.cli.io.messages import print_message
from kakoi.cli.options import policy_options, target_from
from kakoi.cli.target import existing_directory
from kakoi.errors import ConfigurationError
from kakoi.settings.files import (
    MISNAMED,
    ORCHESTRATOR_FILE,
    PROJECT_FILES,
    misnamed_user_file,
    unread_files,
    user_file,
)
from kakoi.settings.loader import LoadedSettings
from kakoi.settings.model import defaults, section_docs, settings_table, value_at
from kakoi.settings.shell_security import find_feature_off, find_security
from kakoi.settings.tasks import DESIGNED_SERVER_IS_OURS

_WORKSPACE: Final = click.option(
    "--workspace", metavar="DIR", default=".", help="The project's directory (default: this one)."
)
_EXIT_CODES: Final = "0 success; 2 usage error, or invalid settings or files."
# A setting, and the value of another one with which it has no effect.
_IDLE: Final = (
    ("policy.custom_list", "policy.use_default", True),
    ("tasks.network.whitelist_mode", "tasks.network.external_access", False),
    ("tasks.network.allowed_domains", "tasks.network.whitelist_mode", False),
    ("tasks.clone.depth", "tasks.clone.shallow", False),
)
_FOR_USER: Final = """\
# Settings of kakoi. A line such as `#timeout_seconds: 1800` shows a default; remove the `#` to
# change it. `kakoi config show --origin` shows the effective values, and where they come from.
# Options override the environment, which overrides a project's file, which overrides this file.
"""
_FOR_PROJECT: Final = """\
# Settings of kakoi for this project. Its users did not write them, so they can only choose an
# image, lower limits and tighten the policy.
# A line such as `#timeout_seconds: 1800` shows a default; remove the `#` to change it.
"""


@click.group(
    cls=CommandGroup, epilog=help_end("kakoi config show --origin", "kakoi config init --project")
)
def command() -> None:
    """Show the effective settings, and where each comes from."""


@command.command(
    epilog=help_end(
        "kakoi config show --origin", "kakoi config show --json", exit_codes=_EXIT_CODES
    )
)
@policy_options
@click.option("--origin", is_flag=True, help="Show where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, always with origins.")
@click.pass_context
def show(context: click.Context, /, *, origin: bool, as_json: bool, **_settings: object) -> None:
    """Print every setting with its effective value in the workspace."""
    loaded = target_from(context).loaded
    if as_json:
        click.echo(json.dumps(_as_dict(loaded), indent=2))
        return
    values = {path: _format(path, _redacted(loaded, path)) for path in settings_table()}
    lines = [(f"{path}: {shown(value)}", loaded.origin(path)) for path, value in values.items()]
    width = min(max(len(line) for line, _ in lines), 60)
    for line, where in lines:
        click.echo(f"{line:<{width}}  # {shown(where)}" if origin else line)
    for path, other, value in _IDLE:
        is_set = loaded.origin(path) != "default" and value_at(loaded.settings, path)
        if is_set and value_at(loaded.settings, other) is value:
            word = "true" if value else "false"
            print_message(f"warning: `{path}` has no effect, because `{other}` is {word}")
    server = loaded.settings.tasks.mcp_server
    if server.command and not server.is_foreign:
        print_message(DESIGNED_SERVER_IS_OURS)
    security = find_security(os.environ, context.params["workspace"])
    if security.used is not None:
        print_message(f"{security.used} holds for the profile `shell`")
    for warning in security.warnings:
        print_message(f"warning: {warning}")
    for each, fix in unread_files(context.params["workspace"], os.environ).items():
        print_message(f"warning: {each} is not read: {fix}")


@command.command(
    epilog=help_end("kakoi config init", "kakoi config init --project", exit_codes=_EXIT_CODES)
)
@_WORKSPACE
@click.option("--project", is_flag=True, help="Write .kakoi.yaml in the workspace.")
@click.option("--json", "as_json", is_flag=True, help="Print the file's name as a JSON object.")
def init(*, workspace: str, project: bool, as_json: bool) -> None:
    """Write a file with every setting, commented out. An existing file is never changed."""
    if project:
        existing_directory(workspace)
        path = Path(workspace, PROJECT_FILES[1])
        existing = [each for name in PROJECT_FILES if (each := Path(workspace, name)).exists()]
    else:
        path = Path(user_file(os.environ))
        existing = [path] if path.exists() else []
    if existing:
        raise ConfigurationError(f"{existing[0]} already exists", hint="kakoi config show --origin")
    text = _FOR_PROJECT if project else _FOR_USER
    _write_new(path, text + "\n" + "\n".join(_commented(project=project)) + "\n")
    if as_json:
        click.echo(json.dumps({"file": str(path)}))
    else:
        click.echo(f"wrote {shown(str(path))}")


@command.command(
    "path",
    epilog=help_end("kakoi config path", "kakoi config path --json", exit_codes=_EXIT_CODES),
)
@_WORKSPACE
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def show_paths(*, workspace: str, as_json: bool) -> None:
    """Print the settings files; a later one overrides an earlier one."""
    files = [
        {"file": str(path), "what": what, "exists": path.is_file()}
        for what, path in _files(existing_directory(workspace))
    ]
    if as_json:
        click.echo(json.dumps(files, indent=2))
        return
    for each in files:
        state = "exists" if each["exists"] else "missing"
        click.echo(f"{state:<7}  {shown(str(each['file']))}  ({each['what']})")


@command.command(
    epilog=help_end("kakoi config schema", "kakoi config schema --project", exit_codes=_EXIT_CODES)
)
@click.option("--project", is_flag=True, help="Only what a project's file can set.")
def schema(*, project: bool) -> None:
    """Print a JSON Schema of the settings, for editors."""
    from kakoi.settings.schema import json_schema

    click.echo(json.dumps(json_schema(project=project), indent=2))


def _files(workspace: str) -> Iterator[tuple[str, Path]]:
    yield "your own settings", Path(user_file(os.environ))
    if (path := Path(misnamed_user_file(os.environ))).exists():
        yield "NOT READ: rename it to config.yaml", path
    security = find_security(os.environ, workspace)
    yield "your own rules for the profile `shell`", security.used or security.place
    if (off_by := find_feature_off(os.environ)) is not None:
        yield "its `[features] shell = false` turns the profile `shell` off", off_by
    for path in security.unread:
        yield "NOT READ: move its content to the file above, or remove it", path
    for name in PROJECT_FILES:
        yield "the project's settings, which can only tighten", Path(workspace, name)
    for name, right in MISNAMED.items():
        if (path := Path(workspace, name)).exists():
            yield f"NOT READ: rename it to {right}", path
    for each, fix in unread_files(workspace, os.environ).items():
        yield f"NOT READ: {fix}", Path(each)
    if (path := Path(workspace, ORCHESTRATOR_FILE)).is_file():
        yield "its `sandbox` section, if there is no file above; can only tighten", path


def _as_dict(loaded: LoadedSettings) -> Mapping[str, Any]:
    return {
        path: {
            "value": _redacted(loaded, path),
            "origin": loaded.origin(path),
            "description": setting.doc,
            "variables": list(setting.env),
            "project": setting.project,
        }
        for path, setting in settings_table().items()
    }


def _redacted(loaded: LoadedSettings, path: str) -> Any:
    """A value that is safe to print: an address may contain a password."""
    value = value_at(loaded.settings, path)
    if value is None and settings_table()[path].kind.none == "":
        return ""
    return redact(value) if isinstance(value, str) else value


def _format(path: str, value: Any) -> str:
    """A value as it would be written in a file: JSON is valid YAML."""
    written = settings_table()[path].kind.written(value)
    if isinstance(value, int) and isinstance(written, str):  # A size.
        return written
    value = written
    if isinstance(value, float):
        return f"{value:g}" if value == float(f"{value:g}") else repr(value)
    if isinstance(value, str) and value.replace("-", "").isalpha():
        return value
    return json.dumps(value, ensure_ascii=False)


# --- A file to start with --------------------------------------------------------------------


def _commented(*, project: bool) -> Iterator[str]:
    seen: set[str] = set()
    for path, setting in settings_table().items():
        if project and setting.project == "nothing":
            continue
        *sections, name = path.split(".")
        for depth in range(1, len(sections) + 1):
            section = ".".join(sections[:depth])
            if section not in seen:
                seen.add(section)
                yield from _heading(section, depth)
        indent = "  " * len(sections)
        yield f"{indent}# {setting.doc}{_remark(setting, project=project)}"
        yield f"{indent}#{name}: {_format(path, defaults()[path])}"


def _heading(section: str, depth: int) -> Iterator[str]:
    indent = "  " * (depth - 1)
    if depth == 1:
        yield ""
    yield f"{indent}# {section_docs()[section]}"
    yield f"{indent}{section.rpartition('.')[2]}:"


def _remark(setting: Any, *, project: bool) -> str:
    if project:
        notes = {"lower": "can only be lowered", "add": "is added to the user's own"}
        return f" ({notes[setting.project]})" if setting.project in notes else ""
    return f" ({', '.join(setting.env)})" if setting.env else ""


def _write_new(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {path}: {error.strerror}",
            hint="KAKOI_CONFIG=FILE kakoi config init writes another file",
        ) from None
