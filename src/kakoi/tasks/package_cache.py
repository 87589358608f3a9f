"""Package downloads that tasks share, without sharing anything that a task can write.

The host keeps one archive for each package manager, and each task gets its own copy before it
installs. Changes to a copy end with its container. Only `PackageCache.fill` creates an archive: in
a fresh environment, for a project that the user names, with commands that download packages but
run none of their scripts.
"""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from kakoi.channel.api import Channel, Command
from kakoi.errors import SandboxError
from kakoi.gate import Call, Gate
from kakoi.packages.wheels import PIP_PROGRAM
from kakoi.results import ExecutionResult
from kakoi.tasks.checkout import PROJECT, TEMPORARY
from kakoi.tasks.transfer import send_file

MAX_BYTES: Final = 1024 * 1024 * 1024
_COPY_S: Final = 600.0
_FILL_S: Final = 1800.0
# Where each package manager keeps its downloads, relative to the user's home.
FOLDERS: Final[Mapping[str, str]] = {
    "pip": ".cache/pip",
    "npm": ".npm/_cacache",
    "go": "go/pkg/mod/cache/download",
    "cargo": ".cargo/registry",
    "mvn": ".m2/repository",
}
# The command that downloads for a file, and runs none of the downloaded code. (Maven plugins do
# run.)
_DOWNLOADS: Final[Mapping[str, str]] = {
    "requirements.txt": f"pip download --only-binary :all: --dest {TEMPORARY}/downloads "
    "-r requirements.txt",
    "npm-shrinkwrap.json": "npm ci --ignore-scripts --git false",
    "package-lock.json": "npm ci --ignore-scripts --git false",
    "package.json": "npm install --ignore-scripts --git false --no-package-lock",
    "go.mod": "go mod download",
    "Cargo.lock": "cargo fetch --locked",
    "Cargo.toml": "cargo fetch",
    "pom.xml": "mvn --batch-mode dependency:go-offline",
}


class PackageCache:
    """The archives in one folder on this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sizes(self) -> dict[str, int]:
        """The size in bytes of each archive that exists, by package manager."""
        found = {}
        for name in FOLDERS:
            with contextlib.suppress(OSError):
                found[name] = self._path(name).stat().st_size
        return found

    def clear(self) -> None:
        """Delete all archives."""
        for name in FOLDERS:
            self._path(name).unlink(missing_ok=True)

    async def give(self, channel: Channel, manager: str) -> None:
        """Copy the archive of a package manager into an environment.

        If that fails, the installation only takes longer.
        """
        path = self._path(manager)
        if manager not in FOLDERS or not path.is_file():
            return
        command = Command(command='tar -x -f - -C "$HOME"', timeout_s=_COPY_S)
        with contextlib.suppress(OSError, SandboxError):
            await send_file(channel, command, path)

    async def fill(self, gate: Gate, file: str, command: str) -> int:
        """Download what `file` asks for, and store it; returns the size of the archive in bytes.

        `command`: what would install it; the download is judged and recorded as that. The
        environment behind `gate` must be used for nothing else. SandboxError: kakoi cannot download
        for such a file without running code, or the download failed, and why. SecurityError: the
        policy denies it.
        """
        download, manager = _DOWNLOADS.get(file), command.split()[0]
        if download is None:
            raise SandboxError(f"cannot download the packages of {file} without running their code")
        words = _without_building(download) if manager == "pip" else download

        async def work(channel: Channel) -> ExecutionResult:
            # Start from the existing archive: a cache only grows.
            await self.give(channel, manager)
            return await channel.run(Command(command=words, cwd=PROJECT, timeout_s=_FILL_S))

        wanted = Command(command=command, cwd=PROJECT)
        done = await gate.perform(wanted, work, Call(approved_by="kakoi cache fill"))
        if not done.ok:
            output = (done.stderr or done.stdout or done.error).strip()[-500:]
            raise SandboxError(f"`{download}` failed: {output}")
        return await self._store(await (await gate.open_sandbox()).channel(), manager)

    async def _store(self, channel: Channel, name: str) -> int:
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
                            raise SandboxError(f"{name} downloaded more than {MAX_BYTES} bytes")
                        if stream == "stdout":
                            await asyncio.to_thread(file.write, data)
                    result = await running.result()
            if not result.ok:
                raise SandboxError(f"cannot read the downloads of {name}: {result.stderr[-300:]}")
            os.replace(part, self._path(name))
        finally:
            with contextlib.suppress(FileNotFoundError):
                await asyncio.to_thread(os.unlink, part)
        return size

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.tar"


def _without_building(download: str) -> list[str]:
    """The same with a pip that starts no program: a requirements file can ask for sources."""
    return ["python3", "-I", "-c", PIP_PROGRAM, "", "", *download.split()[1:]]
