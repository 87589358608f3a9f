"""Real overlays, as root and as a normal user. A process of that user runs the steps."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.backends.boxes import AS_USER, GROUP, IS_ROOT, USER, WAIT_S, Box, Kind, a_box
from tests.library import readable_library

DRIVER = """
import asyncio, dataclasses, json, sys
from kakoi.errors import KakoiError
from kakoi.overlay import Overlay
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter

workspace, folder = sys.argv[1:3]
overlay = Overlay(workspace, folder)

async def run(command):
    adapter = BubblewrapAdapter(workspace, overlay=overlay)
    try:
        result = await adapter.execute(command)
    finally:
        await adapter.cleanup()
    return [result.exit_code, result.stdout, result.stderr]

def step(name, *words, **options):
    if name == "run":
        return asyncio.run(run(*words))
    came = getattr(overlay, name)(*words, **options)
    if name == "diff":
        return [b"".join(each.lines).decode("latin-1") for each in came]
    if name == "apply":
        return dataclasses.asdict(came)
    return [dataclasses.asdict(e) if name != "checkpoints" else e for e in came or ()]

said = []
for name, words, options in json.load(sys.stdin):
    try:
        said.append(step(name, *words, **options))
    except KakoiError as error:
        said.append({"error": error.message, "hint": error.hint, "code": error.code})
print(json.dumps(said))
"""


@dataclass(frozen=True)
class Project:
    """A workspace with its own overlay, and its user."""

    box: Box

    @property
    def path(self) -> Path:
        return self.box.workspace

    @property
    def overlays(self) -> Path:
        return self.path.parent / "overlays"

    @property
    def layers(self) -> Path:
        return next(self.overlays.iterdir()) / "layers"

    def write(self, name: str, text: str | bytes = "", mode: int = 0o644) -> Path:
        """Write a file of the project, owned by the project's owner."""
        path = self.path / name
        for folder in reversed(path.relative_to(self.path).parents[:-1]):
            (self.path / folder).mkdir(exist_ok=True)
            self._own(self.path / folder)
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        path.chmod(mode)
        self._own(path)
        return path

    def _own(self, path: Path) -> None:
        status = self.path.stat()
        if IS_ROOT:
            os.chown(path, status.st_uid, status.st_gid)

    def do(self, *steps: Sequence[Any], **options: Any) -> list[Any]:
        """Run the steps. Each is a method name with arguments; `options` go to the last one."""
        told = [[name, words, {}] for name, *words in steps]
        told[-1][2] = options
        done = subprocess.run(
            [*self.argv(), str(self.path), str(self.overlays)],
            input=json.dumps(told),
            capture_output=True,
            text=True,
            timeout=WAIT_S * 2,
            env=self.env,
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        said: list[Any] = json.loads(done.stdout)
        return said

    def argv(self, script: str = DRIVER) -> list[str]:
        who = AS_USER if self.box.kind == "a user" else []
        return [*who, "/usr/bin/python3", "-c", script]

    @property
    def env(self) -> dict[str, str]:
        library = str(readable_library())
        return {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": library, "LANG": "C.UTF-8"}

    def run(self, command: str) -> str:
        """Run the command inside and return its output."""
        (came,) = self.do(("run", command))
        assert isinstance(came, list), came
        assert came[0] == 0, came
        return str(came[1])

    def changes(self) -> dict[str, str]:
        """Return the changed paths, each with the first letter of its kind of change."""
        (came,) = self.do(("changes",))
        return {each["path"]: each["kind"][0].upper() for each in came}


@contextlib.contextmanager
def a_project(kind: Kind) -> Iterator[Project]:
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    if subprocess.run(["/usr/bin/python3", "-c", check]).returncode:
        pytest.skip("the system has no python3 >= 3.11 for another user")
    with a_box(kind) as box:
        project = Project(box)
        project.overlays.mkdir()
        if IS_ROOT and kind == "a user":
            os.chown(project.overlays, USER, GROUP)
        yield project
