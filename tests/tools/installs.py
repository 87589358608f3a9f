"""A workspace in which packages seem to be installed."""

import json
import os
from dataclasses import replace
from typing import TypeVar

import pytest

from tests.tools.places import ToolPlace

_Place = TypeVar("_Place", bound=ToolPlace)
# Takes the place of Python, which would be sent a program that calls pip.
PYTHON = """#!/bin/sh
cd "{workspace}" && cat >/dev/null && printf '%s\\n' "$@" >asked
if [ -e broken ]; then echo "no such thing" >&2; exit 1; fi
while [ -e slow ]; do touch waits; sleep 0.02; done
printf '%s\\n' 'requests 2.32' 'brought-along 1.0'
"""


def with_scripted_python(place: _Place, monkeypatch: pytest.MonkeyPatch) -> _Place:
    """Let Python only record its arguments there, and refuse direct installation."""
    program = place.folder / "bin" / "python3"
    program.parent.mkdir()
    program.write_text(PYTHON.format(workspace=place.workspace))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    settings = {"policy.packages": "allowlist", "packages.log_dir": str(place.folder / "logs")}
    return replace(place, settings=settings)


def logged(place: ToolPlace) -> list[tuple[str, str]]:
    """Return the packages and outcomes in the installation log."""
    lines = [
        json.loads(line)
        for path in sorted((place.folder / "logs").glob("install-*.jsonl"))
        for line in path.read_text().splitlines()
    ]
    return [(line["package"], line["status"]) for line in lines]
