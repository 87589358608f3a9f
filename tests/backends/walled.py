"""Sandboxes with Landlock: bubblewrap, the confined host and Docker, as root and as a user."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import pytest

from kakoi.backends.adapter import Limits
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.bubblewrap.arguments import (
    BubblewrapSettings,
    build_launch,
    build_restrictions,
    inspect_system,
)
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.host.adapter import HostAdapter
from kakoi.backends.host.confinement import Confinement, ScratchFolder
from kakoi.backends.workspace import identify_workspace
from kakoi.channel.api import Channel, Command
from kakoi.channel.delivery import RunnerSettings, python_argv
from kakoi.channel.runner_channel import RunnerChannel, open_channel
from tests.backends.boxes import AS_USER, GROUP, IS_ROOT, USER

Place = Literal[
    "bubblewrap", "bubblewrap, a user", "confined host", "confined host, a user", "docker"
]
PLACES: list[Place] = [
    "bubblewrap",
    "bubblewrap, a user",
    "confined host",
    "confined host, a user",
    "docker",
]
CONFINED: list[Place] = ["confined host", "confined host, a user"]
IMAGE = "kakoi-test:python"
WAIT_S = 60.0
ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LANG": "C.UTF-8"}


@dataclass(frozen=True)
class Walled:
    """An open sandbox, and the path of its workspace on the host."""

    place: Place
    channel: Channel
    workspace: Path

    @property
    def landlock(self) -> int:
        assert isinstance(self.channel, RunnerChannel)
        return self.channel.hello.landlock

    async def sh(self, text: str, **env: str) -> str:
        """Run the text with sh and return its output on both streams."""
        result = await self.channel.run(Command(command=text, env=env, timeout_s=WAIT_S))
        return result.stdout + result.stderr

    async def python(self, text: str, **env: str) -> list[str]:
        command = Command(command=["python3", "-I", "-c", text], env=env, timeout_s=WAIT_S)
        result = await self.channel.run(command)
        assert result.exit_code == 0, result
        return result.stdout.splitlines()


@contextlib.contextmanager
def a_workspace(place: Place) -> Iterator[Path]:
    """Create a workspace below /tmp, where every user can reach it. Its user owns it."""
    folder = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    folder.chmod(0o755)
    workspace = folder / "workspace"
    workspace.mkdir()
    try:
        if IS_ROOT and place.endswith("a user"):
            os.chown(workspace, USER, GROUP)
        yield workspace
    finally:
        shutil.rmtree(folder)


@contextlib.asynccontextmanager
async def walled(place: Place, programs: Sequence[str] | None = None) -> AsyncIterator[Walled]:
    """Open the sandbox, with or without a list of programs."""
    listed = None if programs is None else tuple(programs)
    with a_workspace(place) as workspace:
        async with _channel(place, workspace, listed) as channel:
            yield Walled(place, channel, workspace)


@contextlib.asynccontextmanager
async def _channel(
    place: Place, workspace: Path, programs: tuple[str, ...] | None
) -> AsyncIterator[Channel]:
    if place == "bubblewrap, a user":
        channel = await _bubblewrap_as_user(workspace, programs)
    elif place == "confined host, a user":
        async with _host_as_user(workspace, programs) as opened:
            yield opened
        return
    else:
        adapter = _adapter(place, workspace, programs)
        found = await adapter.availability()
        if not found:
            await adapter.cleanup()
            required = place.split()[0] in os.environ.get("KAKOI_REQUIRE", "").split(",")
            (pytest.fail if required else pytest.skip)(f"{found.reason}. {found.fix}")
        try:
            yield await adapter.channel()
        finally:
            await adapter.cleanup()
        return
    try:
        yield channel
    finally:
        await channel.close()


def _adapter(
    place: Place, workspace: Path, programs: tuple[str, ...] | None
) -> BubblewrapAdapter | HostAdapter | DockerAdapter:
    if place == "bubblewrap":
        return BubblewrapAdapter(workspace, programs=programs)
    if place == "confined host":
        return HostAdapter(workspace, confine=True, programs=programs, env=ENV)
    settings = DockerSettings(image=IMAGE, workspace=str(workspace), programs=programs)
    return DockerAdapter(settings, lifetime="sandbox")


async def _bubblewrap_as_user(workspace: Path, programs: tuple[str, ...] | None) -> Channel:
    system = inspect_system()
    if system is None:
        pytest.skip("bubblewrap is not installed")
    system = replace(system, uid=USER, gid=GROUP)
    settings = BubblewrapSettings(workspace=identify_workspace(workspace), programs=programs)
    launch = build_launch(settings, system, python_argv(system.python))
    restrictions = build_restrictions(settings, system).for_runner()
    return await open_channel(
        replace(launch, argv=[*AS_USER, *launch.argv]), RunnerSettings(restrictions=restrictions)
    )


@contextlib.asynccontextmanager
async def _host_as_user(
    workspace: Path, programs: tuple[str, ...] | None
) -> AsyncIterator[Channel]:
    made = ScratchFolder()
    scratch = made.folder
    for folder in (scratch / "tmp", scratch / "home"):
        os.chown(folder, USER, GROUP)
    try:
        place = Confinement(
            workspace=identify_workspace(workspace), scratch=scratch, programs=programs
        )
        launch = place.launch(ENV, as_root=False)
        launch = replace(launch, argv=[*AS_USER, *launch.argv])
        channel = await open_channel(launch, place.settings(Limits(), as_root=False))
        try:
            yield channel
        finally:
            await channel.close()
    finally:
        made.remove()
