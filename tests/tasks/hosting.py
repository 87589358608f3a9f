"""Engines, git servers and managers for the tests of environments."""

import subprocess
import time
import urllib.request
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from ipaddress import ip_network
from pathlib import Path

from kakoi.tasks.task import Task

PYTHON = "kakoi-test:python"
WAIT_S = 60.0
TOKEN = "sentinel-5up3r53cr3t"


def docker(*args: str, stdin: str | None = None) -> str:
    done = subprocess.run(
        ["docker", *args], capture_output=True, text=True, timeout=WAIT_S, input=stdin
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def bridge() -> str:
    """Return the address at which containers and this machine reach the same server.

    An engine that runs for the first time reports the subnet of its bridge, but the gateway only
    after its next start. The gateway is the first address in both cases.
    """
    form = "{{(index .IPAM.Config 0).Subnet}}"
    network = ip_network(docker("network", "inspect", "bridge", "--format", form))
    return str(next(network.hosts()))


def program_of(command: str, args: Sequence[str]) -> str:
    """Return a program and its first argument. For git started by `sh` with limits, git's."""
    if command == "sh" and args[2:3] == ["git"]:  # sh -c SCRIPT git BLOCKS KIB …
        return f"git {args[5]}"
    return f"{command} {args[0]}"


def wait_until(true: Callable[[], object]) -> None:
    limit = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.05)


def now() -> datetime:
    return datetime.now(UTC)


def a_task(
    repository: str = "http://127.0.0.1:1/x.git",
    *,
    source: str | None = None,
    target: str | None = None,
) -> Task:
    return Task(
        uuid=f"t-{uuid.uuid4()}",
        repository=repository,
        kind="issue" if source is None else "pull_request",
        source_branch=source,
        target_branch=target,
    )


def a_repository(folder: Path, files: dict[str, str]) -> str:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    script = "git init -q -b main; git add -A; git -c user.name=a -c user.email=a@b commit -qm x"
    subprocess.run(["sh", "-ec", script], cwd=folder, check=True, timeout=60)
    return f"file://{folder}"


def head_of(project: Path) -> str:
    argv = ["git", "-C", str(project), "rev-parse", "HEAD"]
    return subprocess.run(
        argv, capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


@dataclass(frozen=True)
class GitServer:
    """A container that serves git (see git_server.py)."""

    name: str
    host: str

    def url(self, path: str) -> str:
        return f"http://{self.host}/{path}.git"

    def seen(self) -> str:
        with urllib.request.urlopen(f"http://{self.host}/seen", timeout=WAIT_S) as answer:
            return str(answer.read().decode())


def start_server(owner: str) -> GitServer:
    name = f"kakoi-git-{uuid.uuid4()}"
    script = Path(__file__).with_name("git_server.py").read_text("utf-8")
    args = ["run", "-d", "--name", name, "--label", f"kakoi.owner={owner}"]
    docker(*args, PYTHON, "python3", "-c", script, TOKEN)
    form = "{{.NetworkSettings.IPAddress}}"
    host = docker("container", "inspect", "--format", form, name)
    state = ["container", "inspect", "--format", "{{.State.Running}}", name]
    wait_until(lambda: "up" in docker("logs", name) or docker(*state) == "false")
    assert docker(*state) == "true", docker("logs", name)
    return GitServer(name, f"{host}:8080")
