"""`kakoi config`: the settings that hold, where each comes from, and files to begin with."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import click

from kakoi.cli.opening import existing_directory, place_from, policy_options
from kakoi.config.loading import PROJECT_FILES, Loaded, user_file
from kakoi.config.security import security_file
from kakoi.config.settings import defaults, section_docs, table, value_at
from kakoi.errors import ConfigurationError
from kakoi.printable import shown
from kakoi.redact import redact

_WORKSPACE: Final = click.option(
    "--workspace", metavar="DIR", default=".", help="The project's directory (default: this one)."
)
_STATUS: Final = "Exit status: 0, or 2 for settings or a file that cannot be used."
_UNITS: Final = (("t", 1024**4), ("g", 1024**3), ("m", 1024**2), ("k", 1024))
_FOR_USER: Final = """\
# Settings of kakoi. A line such as `#timeout_seconds: 1800` shows a default; take the `#` away to
# change it. `kakoi config show --origin` says what holds, and why.
# Options win over the environment, that over the file of a project, that over this file.
"""
_FOR_PROJECT: Final = """\
# Settings of kakoi for this project. Whoever works on it did not write them, so they can choose an
# image, lower limits and tighten the policy, and nothing else.
# A line such as `#timeout_seconds: 1800` shows a default; take the `#` away to change it.
"""


@click.group(epilog=_STATUS)
def command() -> None:
    """Show the settings that hold, and where each comes from."""


@command.command(epilog=_STATUS)
@policy_options
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, always with origins.")
@click.pass_context
def show(context: click.Context, /, *, origin: bool, as_json: bool, **_settings: object) -> None:
    """Print every setting with the value that holds in the workspace."""
    loaded = place_from(context).loaded
    if as_json:
        click.echo(json.dumps(_as_dict(loaded), indent=2))
        return
    values = {path: _written(path, _told(loaded, path)) for path in table()}
    lines = [(f"{path}: {shown(value)}", loaded.origin(path)) for path, value in values.items()]
    width = min(max(len(line) for line, _ in lines), 60)
    for line, where in lines:
        click.echo(f"{line:<{width}}  # {shown(where)}" if origin else line)


@command.command(epilog=_STATUS)
@_WORKSPACE
@click.option("--project", is_flag=True, help="For the project: .kakoi.yaml in the workspace.")
@click.option("--json", "as_json", is_flag=True, help="Print the file's name as a JSON object.")
def init(*, workspace: str, project: bool, as_json: bool) -> None:
    """Write a file with every setting in it, commented. An existing one is never touched."""
    if project:
        existing_directory(workspace)
        path = Path(workspace, PROJECT_FILES[1])
        existing = [each for name in PROJECT_FILES if (each := Path(workspace, name)).exists()]
    else:
        path = user_file(os.environ)
        existing = [path] if path.exists() else []
    if existing:
        raise ConfigurationError(
            f"{existing[0]} is there already", hint="kakoi config show --origin"
        )
    text = _FOR_PROJECT if project else _FOR_USER
    _write_new(path, text + "\n" + "\n".join(_commented(project=project)) + "\n")
    if as_json:
        click.echo(json.dumps({"file": str(path)}))
    else:
        click.echo(f"wrote {shown(str(path))}")


@command.command("path", epilog=_STATUS)
@_WORKSPACE
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def show_paths(*, workspace: str, as_json: bool) -> None:
    """Print the files that are read, the one that wins last."""
    files = [
        {"file": str(path), "what": what, "exists": path.is_file()}
        for what, path in _files(existing_directory(workspace))
    ]
    if as_json:
        click.echo(json.dumps(files, indent=2))
        return
    for each in files:
        there = "is there" if each["exists"] else "not there"
        click.echo(f"{there:<9}  {shown(str(each['file']))}  ({each['what']})")


@command.command(epilog=_STATUS)
@click.option("--project", is_flag=True, help="Of what the file of a project may set.")
def schema(*, project: bool) -> None:
    """Print a JSON Schema of the settings, for editors."""
    from kakoi.config.schema import json_schema

    click.echo(json.dumps(json_schema(project=project), indent=2))


def _files(workspace: str) -> Iterator[tuple[str, Path]]:
    yield "your own settings", user_file(os.environ)
    yield "your own rules for `kakoi.shell`", security_file(os.environ)
    for name in PROJECT_FILES:
        yield "the project's settings, which can only tighten", Path(workspace, name)


def _as_dict(loaded: Loaded) -> Mapping[str, Any]:
    return {
        path: {
            "value": _told(loaded, path),
            "origin": loaded.origin(path),
            "description": setting.doc,
            "variables": list(setting.env),
            "project": setting.project,
        }
        for path, setting in table().items()
    }


def _told(loaded: Loaded, path: str) -> Any:
    """A value for everybody to see: an address may hold a password."""
    value = value_at(loaded.settings, path)
    return redact(value) if isinstance(value, str) else value


def _written(path: str, value: Any) -> str:
    """A value as one could write it into a file: JSON is YAML, too."""
    if value is None:
        return "none"
    if isinstance(value, int) and '"string"' in json.dumps(table()[path].kind.schema):
        unit, size = next(((u, s) for u, s in _UNITS if value % s == 0), ("", 1))
        return f"{value // size}{unit}"
    if isinstance(value, float):
        return f"{value:g}" if value == float(f"{value:g}") else repr(value)
    if isinstance(value, str) and value.replace("-", "").isalpha():
        return value
    return json.dumps(value, ensure_ascii=False)


# --- A file to begin with --------------------------------------------------------------------


def _commented(*, project: bool) -> Iterator[str]:
    told: set[str] = set()
    for path, setting in table().items():
        if project and setting.project == "nothing":
            continue
        *sections, name = path.split(".")
        for depth in range(1, len(sections) + 1):
            section = ".".join(sections[:depth])
            if section not in told:
                told.add(section)
                yield from _heading(section, depth)
        indent = "  " * len(sections)
        yield f"{indent}# {setting.doc}{_remark(setting, project=project)}"
        yield f"{indent}#{name}: {_written(path, defaults()[path])}"


def _heading(section: str, depth: int) -> Iterator[str]:
    indent = "  " * (depth - 1)
    if depth == 1:
        yield ""
    yield f"{indent}# {section_docs()[section]}"
    yield f"{indent}{section.rpartition('.')[2]}:"


def _remark(setting: Any, *, project: bool) -> str:
    if project:
        ways = {"lower": "can only be lowered", "add": "is added to the user's own"}
        return f" ({ways[setting.project]})" if setting.project in ways else ""
    return f" ({', '.join(setting.env)})" if setting.env else ""


def _write_new(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise ConfigurationError(
            f"cannot write {path}: {error.strerror}",
            hint="KAKOI_CONFIG=FILE kakoi config init writes elsewhere",
        ) from None
