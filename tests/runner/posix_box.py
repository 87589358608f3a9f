"""A container without Python as a sandbox, as plain as can be: for tests of the POSIX-sh path.

pytest --pyargs kakoi.conformance --sandbox tests.runner.posix_box:BUSYBOX
"""

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from kakoi.conformance.subjects import Subject, Traits
from kakoi.conformance.watching import containers_of
from kakoi.process.stream import Launch
from kakoi.results import ExecutionResult
from kakoi.runner.commands import Channel, Command
from kakoi.runner.connection import Connection
from kakoi.runner.posix import PosixChannel, open_posix_channel
from kakoi.sandbox.adapter import (
    Availability,
    ExecuteOptions,
    Holding,
    as_command,
    exit_code_or_raise,
)

LABEL = "kakoi.owner=test"


def docker(*words: str) -> str:
    """What the engine's program prints."""
    return subprocess.run(
        ["docker", *words], capture_output=True, text=True, check=True, timeout=60
    ).stdout.strip()


def start_container(image: str, *flags: str) -> str:
    """Start a container that stays; returns its id."""
    given = ("--rm", "--label", LABEL, "--network", "none", "--user", "1000:1000")
    return docker("run", "-d", *given, *flags, image, "sleep", "3600")


def remove_container(container: str) -> None:
    """Take it away; it may be gone."""
    argv = ["docker", "rm", "-f", container]
    subprocess.run(argv, capture_output=True, check=False, timeout=60)


class Inside:
    """How to start programs in a container."""

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
    """A SandboxAdapter with one container that stays."""

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
        return exit_code_or_raise(await self.run(wanted), wanted)

    async def channel(self) -> Channel:
        return await self._connection.channel()

    async def shell(self) -> str:
        return (await self.channel()).shell

    @property
    def holding(self) -> Holding:
        return Holding()

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
    """What `kakoi.conformance` tests."""

    async def resume(workspace: Path) -> PosixBox:
        (container,) = containers_of("docker", workspace)
        return PosixBox(workspace, image, container)

    # Peak memory cannot be had from a shell.
    traits = Traits(survives_client=True, usage=False)
    name = f"tests.runner.posix_box:{'BUSYBOX' if 'busybox' in image else 'PYTHON'}"
    return Subject(name, lambda path: PosixBox(path, image), traits, resume, engine="docker")


BUSYBOX = subject("kakoi-test:busybox")
# Dash for us, bash for commands.
PYTHON = subject("kakoi-test:python")
