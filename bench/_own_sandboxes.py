"""The bare host, `docker exec`, and kakoi. others.py runs this script.

python bench/_own_sandboxes.py host|docker-exec|bubblewrap|docker IMAGE LABEL
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from _measurements import Tool, report

import kakoi
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.settings import SandboxConfig
from kakoi.channel.api import Command
from kakoi.gate import Gate
from kakoi.policy.profiles import load_policy
from kakoi.results import Reason
from kakoi.sandbox.doors import sandbox_for
from kakoi.sandbox.options import SandboxOptions


class Host:
    """`subprocess.run`, which most agents start with."""

    version = ""
    pid = os.getpid()

    async def open(self) -> None:
        """Do nothing: the host needs no preparation."""

    async def close(self) -> None:
        """Do nothing."""

    def argv(self, argv: list[str]) -> list[str]:
        """Return the argv of the process to start."""
        return argv

    def _run(self, argv: list[str]) -> int:
        return len(subprocess.run(self.argv(argv), capture_output=True, check=True).stdout)

    async def run(self, argv: list[str]) -> int:
        """Block the event loop, because a thread would add a tenth to the time."""
        return self._run(argv)

    async def beside(self, argv: list[str]) -> int:
        """Run the command in a thread."""
        return await asyncio.to_thread(self._run, argv)

    async def limited(self, code: str, limit_s: int) -> None:
        """Use the timeout of `subprocess.run` itself."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            await asyncio.to_thread(
                subprocess.run,
                self.argv(["python3", "-c", code]),
                capture_output=True,
                timeout=limit_s,
            )


class DockerExec(Host):
    """One container, and one `docker exec` per command."""

    def __init__(self, image: str, label: str) -> None:
        made = subprocess.check_output(["docker", "version", "--format", "{{.Server.Version}}"])
        self.version = made.decode().strip()
        self._image, self._label = image, label
        self._name = ""

    async def open(self) -> None:
        """Start the container with an init process, which reaps orphans."""
        argv = ["docker", "run", "-d", "--rm", "--init", "--network", "none"]
        argv += ["--label", self._label, self._image, "sleep", "900"]
        started = await asyncio.to_thread(subprocess.check_output, argv, text=True)
        self._name = started.strip()

    async def close(self) -> None:
        """Kill the container: a normal stop would wait ten seconds for its init process."""
        argv = ["docker", "rm", "-f", self._name]
        await asyncio.to_thread(subprocess.run, argv, capture_output=True)

    def argv(self, argv: list[str]) -> list[str]:
        """Return the command line of `docker exec`."""
        return ["docker", "exec", self._name, *argv]

    async def limited(self, code: str, limit_s: int) -> None:
        """Use `timeout` in the container: killing `docker exec` would leave everything running."""
        limit = ["timeout", "--signal=KILL", str(limit_s), "python3", "-c", code]
        await asyncio.to_thread(subprocess.run, self.argv(limit), capture_output=True)


class Kakoi:
    """A gate, which checks each command before it runs and records it afterwards."""

    version = kakoi.__version__
    pid = os.getpid()

    def __init__(self, kind: str, image: str, folder: Path) -> None:
        self._config = SandboxConfig(type=kind, docker=DockerSettings(image=image))
        self._folder = folder
        self._open = contextlib.AsyncExitStack()
        self._gate: Gate | None = None

    async def open(self) -> None:
        """Open the gate. It creates the sandbox for the first command."""

        async def yes(_decision: object) -> bool:
            return True

        workspace = self._folder / "workspace"
        workspace.mkdir(exist_ok=True)
        options = SandboxOptions(
            config=self._config,
            policy=load_policy("coding-agent"),
            workspace=str(workspace.resolve()),
            approve=yes,
            audit_file=self._folder / "audit.jsonl",
        )
        self._gate = (await self._open.enter_async_context(sandbox_for(options))).gate

    async def close(self) -> None:
        """Close the gate and its sandbox."""
        await self._open.aclose()

    async def run(self, argv: list[str]) -> int:
        """Run with the default limit: keep 1 MiB of the output and count the rest."""
        assert self._gate is not None
        result = await self._gate.run(Command(command=argv))
        assert result.exit_code == 0, result
        return len(result.stdout)

    beside = run

    async def limited(self, code: str, limit_s: int) -> None:
        """Return when every process of the command is dead."""
        assert self._gate is not None
        asked = Command(command=["python3", "-c", code], timeout_s=limit_s)
        result = await self._gate.run(asked)
        assert result.reason is Reason.TIMED_OUT, result


def main() -> None:
    """Measure the one named on the command line."""
    name, image, label = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)

        def make() -> Tool:
            if name == "host":
                return Host()
            if name == "docker-exec":
                return DockerExec(image, label)
            return Kakoi(name, image, Path(folder))

        report(make)


if __name__ == "__main__":
    main()
