"""A minimal sandbox in a container without Python, for tests of the POSIX-sh path.

pytest --pyargs kakoi.conformance --sandbox tests.channel.posix_box:BUSYBOX
"""

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from kakoi.backends.adapter import (
    Availability,
    ExecuteOptions,
    LimitReport,
    as_command,
    check_ended,
)
from kakoi.channel.api import Channel, Command
from kakoi.channel.connection import Connection
from kakoi.channel.posix.channel import PosixChannel, open_posix_channel
from kakoi.conformance.process_view import containers_of
from kakoi.conformance.subjects import Subject, Traits
from kakoi.process.stream import Launch
from kakoi.results import ExecutionResult

LABEL = "kakoi.owner=test"


def docker(*words: str) -> str:
    """Run the docker client and return its output."""
    return subprocess.run(
        ["docker", *words], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def start_container(image: str, *flags: str) -> str:
    """Start a container that keeps running. Returns its id."""
    given = ("--rm", "--label", LABEL, "--network", "none", "--user", "1000:1000")
    return docker("run", "-d", *given, *flags, image, "sleep", "3600")


def remove_container(container: str) -> None:
    """Remove the container, if it still exists."""
    argv = ["docker", "rm", "-f", container]
    subprocess.run(argv, capture_output=True, check=False, timeout=60)


class Inside:
    """Starts programs in a container."""

    def __init__(self, container: str) -> None:
        self.container = container

    def __call__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        terminal: bool = False,
    ) -> Launch:
        given = env or {}
        words = ["docker", "exec", "-i", *(["-t"] if terminal else [])]
        words += [word for name in given for word in ("-e", name)]
        words += ["-w", cwd] if cwd else []
        ours = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        return Launch(argv=[*words, self.container, *argv], env={**ours, **given})


class PosixBox:
    """A SandboxAdapter with one container that keeps running."""

    name = "posix"

    def __init__(self, workspace: Path, image: str, container: str = "") -> None:
        self._workspace = workspace
        self._image = image
        self._container = container
        self._connection = Connection(self._open)

    async def availability(self) -> Availability:
        try:
            await asyncio.to_thread(docker, "image", "inspect", self._image)
        except (subprocess.CalledProcessError, FileNotFoundError) as error:
            return Availability(False, str(error), "scripts/engine start; scripts/engine images")
        return Availability(True)

    async def is_available(self) -> bool:
        return bool(await self.availability())

    async def run(self, command: Command) -> ExecutionResult:
        return await (await self.channel()).run(command)

    async def execute(
        self, command: str | Sequence[str], options: ExecuteOptions | None = None
    ) -> ExecutionResult:
        wanted = as_command(command, options, timeout_s=None)
        result = await self.run(wanted)
        check_ended(result, wanted)
        return result

    async def channel(self) -> Channel:
        return await self._connection.channel()

    async def shell(self) -> str:
        return (await self.channel()).shell

    @property
    def limit_report(self) -> LimitReport:
        return LimitReport()

    async def cleanup(self) -> None:
        closing = asyncio.ensure_future(self._connection.close())
        closing.add_done_callback(lambda _: self._remove())
        await asyncio.shield(closing)

    def _remove(self) -> None:
        if self._container:
            remove_container(self._container)

    async def _open(self) -> PosixChannel:
        if not self._container or not await asyncio.to_thread(self._is_running):
            self._remove()
            self._workspace.chmod(0o777)
            mount = f"{self._workspace}:/workspace"
            flags = ("--init", "--pids-limit", "512", "-v", mount, "-w", "/workspace")
            self._container = start_container(self._image, *flags, "-e", "HOME=/tmp")
        return await open_posix_channel(Inside(self._container))

    def _is_running(self) -> bool:
        argv = ["docker", "inspect", "-f", "{{.State.Running}}", self._container]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        return done.stdout.strip() == "true"


def subject(image: str) -> Subject:
    """Return the subject for `kakoi.conformance`."""

    async def resume(workspace: Path) -> PosixBox:
        (container,) = containers_of("docker", workspace)
        return PosixBox(workspace, image, container)

    # A shell cannot measure peak memory.
    traits = Traits(survives_client=True, usage=False, watches=False)
    name = f"tests.channel.posix_box:{'BUSYBOX' if 'busybox' in image else 'PYTHON'}"
    return Subject(name, lambda path: PosixBox(path, image), traits, resume, engine="docker")


BUSYBOX = subject("kakoi-test:busybox")
# kakoi's own shell is dash, and commands run in bash.
PYTHON = subject("kakoi-test:python")
