"""Attacks on the limits of a sandbox, in a separate process: as root, and as a normal user.

The process uses a sandbox as a program would, and reports the result of each command.
"""

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tests.backends.boxes import AS_USER, GROUP, IS_ROOT, USER
from tests.library import readable_library

WAIT_S = 120
Kind = Literal["bubblewrap", "confined", "python", "busybox", "own disk"]

DRIVER = """
import asyncio, dataclasses, json, sys
from kakoi.errors import KakoiError
from kakoi.channel.api import Command
from kakoi.backends.adapter import Limits
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.host.adapter import HostAdapter

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
    report = {"results": []}
    try:
        for text, timeout_s in commands:
            result = await sandbox.run(Command(command=text, timeout_s=timeout_s))
            report["results"].append(dataclasses.asdict(result))
        report |= sandbox.limit_report.as_dict()
    except KakoiError as error:
        report |= {"code": error.code, "error": str(error), "hint": error.hint}
    finally:
        await sandbox.cleanup()
    print(json.dumps(report))

asyncio.run(main())
"""


@dataclass(frozen=True)
class Result:
    """The result of one command."""

    exit_code: int
    stdout: str
    stderr: str
    reason: str
    disk_full: str
    cpu_ms: int
    error: str


@dataclass(frozen=True)
class AttackReport:
    """The report of the process."""

    results: list[Result]
    enforced: dict[str, str]
    unenforced: dict[str, str]
    code: str = ""
    error: str = ""
    hint: str = ""


@dataclass(frozen=True)
class AttackTarget:
    """A sandbox and its user. `before`: the argv prefix that starts the process as that user."""

    kind: Kind
    workspace: Path
    before: Sequence[str] = ()

    def attack(self, *commands: str | tuple[str, float], limits: dict[str, Any]) -> AttackReport:
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
        data = json.loads(done.stdout)
        names = {field.name for field in dataclasses.fields(Result)}
        results = [
            Result(**{name: value for name, value in each.items() if name in names})
            for each in data.pop("results")
        ]
        return AttackReport(results, data.pop("enforced", {}), data.pop("unenforced", {}), **data)


def python_for_everyone() -> str:
    """Return a Python that a normal user can also start. The tests' own may be private."""
    found = shutil.which("python3", path="/usr/bin") or sys.executable
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    usable = subprocess.run([found, "-c", check]).returncode == 0
    return found if usable else sys.executable


@contextlib.contextmanager
def groups_of_a_user() -> Iterator[list[str]]:
    """Delegate control groups to a normal user. Yields the prefix to run in them as that user."""
    own = dict(
        line.split(":", 2)[1:] for line in Path("/proc/self/cgroup").read_text().splitlines()
    )
    made = []
    name_of_ours = f"test-{uuid.uuid4()}"
    try:
        for names, path in own.items():
            for name in {"memory", "pids", "cpu"} & set(names.split(",")):
                folder = Path("/sys/fs/cgroup", name, path.lstrip("/"), name_of_ours)
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
    """Return whether control groups can be delegated here. Only version 1 is tried."""
    return IS_ROOT and Path("/sys/fs/cgroup/memory/cgroup.procs").exists()
