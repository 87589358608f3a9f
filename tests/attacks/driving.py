"""Attacks on the limits of a sandbox, run by a process of their own: as root, and as a normal user.

The process uses a sandbox as a program would, and says what came of each command.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.library import readable_library
from tests.sandbox.boxes import AS_USER, GROUP, IS_ROOT, USER

WAIT_S = 120
Kind = Literal["bubblewrap", "confined", "python", "busybox", "own disk"]

DRIVER = """
import asyncio, dataclasses, json, sys
from kakoi.errors import KakoiError
from kakoi.runner.commands import Command
from kakoi.sandbox.adapter import Limits
from kakoi.sandbox.bubblewrap import BubblewrapAdapter
from kakoi.sandbox.docker import DockerAdapter
from kakoi.sandbox.docker_cli import DockerSettings
from kakoi.sandbox.host import HostAdapter

kind, workspace, limits, commands = json.loads(sys.argv[1])
limits = Limits(**{**limits, "asked": None if limits["asked"] is None else frozenset(limits["asked"])})

def make():
    if kind == "bubblewrap":
        return BubblewrapAdapter(workspace, limits=limits)
    if kind == "confined":
        return HostAdapter(workspace, confine=True, limits=limits)
    if kind == "own disk":
        settings = DockerSettings(image="kakoi-test:base", limits=limits)
    else:
        settings = DockerSettings(
            image=f"kakoi-test:{kind}", limits=limits, workspace=workspace, inside=workspace
        )
    return DockerAdapter(settings, lifetime="sandbox")

async def main():
    sandbox = make()
    told = {"results": []}
    try:
        for text, timeout_s in commands:
            result = await sandbox.run(Command(command=text, timeout_s=timeout_s))
            told["results"].append(dataclasses.asdict(result))
        told |= dataclasses.asdict(sandbox.holding)
    except KakoiError as error:
        told |= {"code": error.code, "error": str(error), "hint": error.hint}
    finally:
        await sandbox.cleanup()
    print(json.dumps(told))

asyncio.run(main())
"""


@dataclass(frozen=True)
class Result:
    """What came of one command."""

    exit_code: int
    stdout: str
    stderr: str
    reason: str
    disk_full: str
    cpu_ms: int
    error: str


@dataclass(frozen=True)
class Told:
    """What the process said."""

    results: list[Result]
    kept: dict[str, str]
    not_kept: dict[str, str]
    code: str = ""
    error: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Place:
    """A sandbox, and who uses it. `before`: what starts the process that does."""

    kind: Kind
    workspace: Path
    before: Sequence[str] = ()

    def attack(self, *commands: str | tuple[str, float], limits: dict[str, Any]) -> Told:
        """Run the commands one after the other in one sandbox."""
        timed = [each if isinstance(each, tuple) else (each, 60.0) for each in commands]
        order = [self.kind, str(self.workspace), {"asked": [], **limits}, timed]
        done = subprocess.run(
            [*self.before, python_for_everyone(), "-c", DRIVER, json.dumps(order)],
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(readable_library())},
            cwd="/",
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        names = {field.name for field in dataclasses.fields(Result)}
        results = [
            Result(**{name: value for name, value in each.items() if name in names})
            for each in said.pop("results")
        ]
        return Told(results, said.pop("kept", {}), said.pop("not_kept", {}), **said)


def python_for_everyone() -> str:
    """One that a normal user can start, too; tests run in an environment of ours."""
    found = shutil.which("python3", path="/usr/bin") or sys.executable
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    usable = subprocess.run([found, "-c", check]).returncode == 0
    return found if usable else sys.executable


@contextlib.contextmanager
def groups_of_a_user() -> Iterator[list[str]]:
    """Control groups that were given to a normal user; what starts a process in them, as that."""
    own = dict(
        line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()
    )
    made = []
    try:
        for names, path in own.items():
            for name in {"memory", "pids", "cpu"} & set(names.split(",")):
                folder = Path("/sys/fs/cgroup", name, path.lstrip("/"), f"test-{os.getpid()}")
                folder.mkdir()
                made.append(folder)
                for each in (folder, folder / "cgroup.procs", folder / "tasks"):
                    os.chown(each, USER, GROUP)
        enter = "; ".join(f"echo 0 > {folder}/cgroup.procs" for folder in made)
        yield ["sh", "-ec", f'{enter}; exec "$@"', "sh", *AS_USER]
    finally:
        for folder in made:
            folder.rmdir()


def has_groups() -> bool:
    """Can a part of the control groups be given away here? Only tried for version 1."""
    return IS_ROOT and Path("/sys/fs/cgroup/memory/cgroup.procs").exists()
