"""Tools over a gate, without MCP."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from kakoi.tools.toolset import Toolset
from tests.cli.conftest import has_bubblewrap, has_image, mark, need
from tests.tools.places import ToolPlace

__all__ = ["mark"]


@pytest.fixture
def place(tmp_path: Path) -> ToolPlace:
    """Run on the host: it is fast, and behaves the same except for confinement."""
    folder = tmp_path.resolve()
    (folder / "workspace").mkdir()
    (folder / "config.yaml").write_text("execution:\n  concurrency: 16\n")
    return ToolPlace(folder)


@pytest.fixture
def confined_place(place: ToolPlace) -> ToolPlace:
    need("bubblewrap", is_there=has_bubblewrap())
    return replace(place, sandbox="bubblewrap")


@pytest.fixture
def docker_place(place: ToolPlace) -> ToolPlace:
    image = "kakoi-test:python"
    need("docker", is_there=has_image(image))
    return replace(place, sandbox="docker", settings={"sandbox.docker.image": image})


@pytest.fixture
async def tools(place: ToolPlace) -> AsyncIterator[Toolset]:
    async with place.open() as tools:
        yield tools
