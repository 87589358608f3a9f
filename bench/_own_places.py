"""The host as it is, `docker exec`, and kakoi, measured by others.py.

python bench/_own_places.py host|docker-exec|bubblewrap|docker IMAGE LABEL
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _places import Place, report

import kakoi
from kakoi.config.opening import open_gate
from kakoi.gate import Gate
from kakoi.policy.profiles import load_policy
from kakoi.results import Reason
from kakoi.runner.commands import Command
from kakoi.sandbox.docker_cli import DockerSettings
from kakoi.sandbox.settings import SandboxConfig


class Host:
    """`subprocess.run`, which is what agents begin with."""

    version = ""
    pid = os.getpid()

    async def open(self) -> None:
        """There is nothing to make."""

    async def close(self) -> None:
        """Nor to take away."""

    def argv(self, argv: list[str]) -> list[str]:
        """What is really started."""
        return argv

    def _run(self, argv: list[str]) -> int:
        return len(subprocess.run(self.argv(argv), capture_output=True, check=True).stdout)

    async def run(self, argv: list[str]) -> int:
        """Blocking: a thread would cost a tenth of it."""
        return self._run(argv)

    async def beside(self, argv: list[str]) -> int:
        """Each in a thread."""
        return await asyncio.to_thread(self._run, argv)

    async def limited(self, code: str, limit_s: int) -> None:
        """The limit of `subprocess.run` itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(
                subprocess.run,
                self.argv(["python3", "-c", code]),
                capture_output=True,
                timeout=limit_s,
            )


class DockerExec(Host):
    """One container, and `docker exec` for each command."""

    def __init__(self, image: str, label: str) -> None:
        made = subprocess.check_output(["docker", "version", "--format", "{{.Server.Version}}"])
        self.version = made.decode().strip()
        self._image, self._label = image, label
        self._name = ""

    async def open(self) -> None:
        """With an init, so that what is orphaned is reaped."""
        argv = ["docker", "run", "-d", "--rm", "--init", "--network", "none"]
        argv += ["--label", self._label, self._image, "sleep", "900"]
        started = await asyncio.to_thread(subprocess.check_output, argv, text=True)
        self._name = started.strip()

    async def close(self) -> None:
        """By force: its first process is an init that would be asked nicely for ten seconds."""
        argv = ["docker", "rm", "-f", self._name]
        await asyncio.to_thread(subprocess.run, argv, capture_output=True)

    def argv(self, argv: list[str]) -> list[str]:
        """The command line's words."""
        return ["docker", "exec", self._name, *argv]

    async def limited(self, code: str, limit_s: int) -> None:
        """By `timeout` inside: ended from outside, `docker exec` leaves everything running."""
        limit = ["timeout", "--signal=KILL", str(limit_s), "python3", "-c", code]
        await asyncio.to_thread(subprocess.run, self.argv(limit), capture_output=True)


class Kakoi:
    """A gate: each command is judged before it runs, and recorded after."""

    version = kakoi.__version__
    pid = os.getpid()

    def __init__(self, kind: str, image: str, folder: Path) -> None:
        self._config = SandboxConfig(type=kind, docker=DockerSettings(image=image))
        self._folder = folder
        self._open = contextlib.AsyncExitStack()
        self._gate: Gate | None = None

    async def open(self) -> None:
        """The sandbox itself is made for the first command."""

        async def yes(_decision: object) -> bool:
            return True

        workspace = self._folder / "workspace"
        workspace.mkdir(exist_ok=True)
        self._gate = await self._open.enter_async_context(
            open_gate(
                load_policy("coding-agent"),
                self._config,
                workspace=str(workspace.resolve()),
                approver=yes,
                audit_file=self._folder / "audit.jsonl",
            )
        )

    async def close(self) -> None:
        """The sandbox, too."""
        await self._open.aclose()

    async def run(self, argv: list[str]) -> int:
        """Kept is 1 MiB, unless asked for more; the rest is counted."""
        assert self._gate is not None
        result = await self._gate.run(Command(command=argv))
        assert result.exit_code == 0, result
        return len(result.stdout)

    beside = run

    async def limited(self, code: str, limit_s: int) -> None:
        """The result comes when all is dead."""
        assert self._gate is not None
        asked = Command(command=["python3", "-c", code], timeout_s=limit_s)
        result = await self._gate.run(asked)
        assert result.reason is Reason.TIMED_OUT, result


def main() -> None:
    """One of them."""
    name, image, label = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)

        def make() -> Place:
            if name == "host":
                return Host()
            if name == "docker-exec":
                return DockerExec(image, label)
            return Kakoi(name, image, Path(folder))

        report(make)


if __name__ == "__main__":
    main()
