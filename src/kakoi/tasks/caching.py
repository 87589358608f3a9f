"""Downloads of packages that tasks share, without sharing anything that a task can write.

They are kept on this side, one archive for each package manager, and each task is given a copy of
its own before it installs. What a task does to its copy ends with its container. An archive is made
by `Cache.fill` alone: in a fresh environment, for a project that the user names, with commands that
download and run no script of a package.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kakoi.errors import SandboxError
from kakoi.packages.wheels import PIP_PROGRAM
from kakoi.runner.commands import Channel, Command
from kakoi.tasks.checkout import PROJECT
from kakoi.tasks.dependencies import Step
from kakoi.tasks.sending import send_file

MAX_BYTES: Final = 1024 * 1024 * 1024
_COPY_S: Final = 600.0
_FILL_S: Final = 1800.0
# Where each package manager keeps what it has downloaded, from the user's home.
FOLDERS: Final[Mapping[str, str]] = {
    "pip": ".cache/pip",
    "npm": ".npm/_cacache",
    "go": "go/pkg/mod/cache/download",
    "cargo": ".cargo/registry",
    "mvn": ".m2/repository",
}
# What downloads for a file, and runs nothing of what it has downloaded. Maven's plugins do run.
_DOWNLOADS: Final[Mapping[str, str]] = {
    "requirements.txt": "pip download --only-binary :all: --dest /workspace/tmp/downloads "
    "-r requirements.txt",
    "npm-shrinkwrap.json": "npm ci --ignore-scripts",
    "package-lock.json": "npm ci --ignore-scripts",
    "package.json": "npm install --ignore-scripts --no-package-lock",
    "go.mod": "go mod download",
    "Cargo.lock": "cargo fetch --locked",
    "Cargo.toml": "cargo fetch",
    "pom.xml": "mvn --batch-mode dependency:go-offline",
}


class Cache:
    """The archives in one folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sizes(self) -> dict[str, int]:
        """How big the archive of each package manager is, of those that there are."""
        found = {}
        for name in FOLDERS:
            with contextlib.suppress(OSError):
                found[name] = self._path(name).stat().st_size
        return found

    def clear(self) -> None:
        """Forget everything."""
        for name in FOLDERS:
            self._path(name).unlink(missing_ok=True)

    async def give(self, channel: Channel, step: Step) -> None:
        """Put a copy for this step into an environment. Without it a step takes longer, no more."""
        name = manager_of(step)
        path = self._path(name)
        if name not in FOLDERS or not path.is_file():
            return
        command = Command(command='tar -x -f - -C "$HOME"', timeout_s=_COPY_S)
        with contextlib.suppress(OSError, SandboxError):
            await send_file(channel, command, path)

    async def fill(self, channel: Channel, step: Step) -> int:
        """Download for this step in an environment that is used for nothing else; the bytes kept.

        SandboxError: there is nothing to download with, or it failed, and why.
        """
        download, name = _DOWNLOADS.get(step.file), manager_of(step)
        if download is None:
            raise SandboxError(f"nobody here knows how to download for {step.file} and run nothing")
        # What is kept already stays: a cache grows.
        await self.give(channel, step)
        command = _without_building(download) if name == "pip" else download
        done = await channel.run(Command(command=command, cwd=PROJECT, timeout_s=_FILL_S))
        if not done.ok:
            said = (done.stderr or done.stdout or done.error).strip()[-500:]
            raise SandboxError(f"`{download}` failed: {said}")
        return await self._keep(channel, name)

    async def _keep(self, channel: Channel, name: str) -> int:
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True, mode=0o700)
        command = Command(command=f'cd "$HOME" && tar -c -f - {FOLDERS[name]}', timeout_s=_COPY_S)
        number, part = tempfile.mkstemp(prefix=f".{name}-", dir=self._folder)
        size = 0
        try:
            file = await asyncio.to_thread(os.fdopen, number, "wb")
            with contextlib.closing(file):
                async with channel.open(command) as running:
                    async for stream, data in running.output():
                        size += len(data)
                        if size > MAX_BYTES:
                            raise SandboxError(f"{name} has downloaded more than {MAX_BYTES} bytes")
                        if stream == "stdout":
                            await asyncio.to_thread(file.write, data)
                    result = await running.result()
            if not result.ok:
                raise SandboxError(f"what {name} downloaded cannot be had: {result.stderr[-300:]}")
            os.replace(part, self._path(name))
        finally:
            with contextlib.suppress(FileNotFoundError):
                await asyncio.to_thread(os.unlink, part)
        return size

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.tar"


def _without_building(download: str) -> list[str]:
    """The same by a pip that starts no program: a requirements file can ask for sources."""
    return ["python3", "-I", "-c", PIP_PROGRAM, "", "", *download.split()[1:]]


def manager_of(step: Step) -> str:
    """The package manager of a step: the first word of its command."""
    return step.command.split()[0]
