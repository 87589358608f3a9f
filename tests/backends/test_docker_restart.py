"""A container that is restarted is what it was before."""

import asyncio
import os
from pathlib import Path

import pytest

from kakoi.backends.adapter import Limits
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.docker.container import Container
from kakoi.backends.docker.engine import Engine
from tests.backends.boxes import needs_root
from tests.cli.conftest import has_image, need

pytestmark = [pytest.mark.anyio, needs_root]
IMAGE = "kakoi-test:python"


async def options_of_workspace(engine: Engine, name: str) -> list[str]:
    mounts = await engine.must(["exec", name, "cat", "/proc/1/mountinfo"], doing="looking")
    fields = (line.split(" ") for line in mounts.splitlines())
    return next(each[5].split(",") for each in fields if each[4] == "/workspace")


@pytest.mark.parametrize("programs", [None, ("sh", "sleep", "cat")], ids=["any", "listed"])
async def test_the_workspace_is_lent_again_as_it_was(
    tmp_path: Path, programs: tuple[str, ...] | None
) -> None:
    """Without `noexec`, the loader would run what a list of programs does not name."""
    need("docker", is_there=await asyncio.to_thread(has_image, IMAGE))
    assert os.stat(tmp_path).st_uid == 0
    limits = Limits(disk_bytes=None)
    settings = DockerSettings(
        image=IMAGE, workspace=str(tmp_path), programs=programs, limits=limits
    )
    adapter = DockerAdapter(settings, lifetime="sandbox")
    engine = adapter._engine
    container = await Container.make(engine, await adapter._plan(adapter._tag))
    try:
        before = await options_of_workspace(engine, container.name)
        await container.restart()
        after = await options_of_workspace(engine, container.name)
    finally:
        await container.remove()
    assert after == before
    assert ("noexec" in after) == (programs is not None)
