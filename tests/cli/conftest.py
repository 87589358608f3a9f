"""kakoi in its own workspace, on each sandbox that this machine has."""

import os
import shutil
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cli.calling import Home
from tests.cli.terminals import Door
from tests.images.built import BUILD

if TYPE_CHECKING:
    from mcp import Client

    from tests.mcp.connections import McpDoor


@cache
def has_bubblewrap() -> bool:
    """Try the simplest sandbox, without kakoi because that is under test.

    Only with what `true` needs: bwrap fails on a whole root in which a container's mount goes.
    """
    bwrap = shutil.which("bwrap")
    argv = [bwrap or "", "--unshare-all"]
    for path in ("/usr", "/bin", "/lib", "/lib64"):
        argv += ["--ro-bind-try", path, path]
    argv += ["true"]
    return bwrap is not None and subprocess.run(argv, capture_output=True).returncode == 0


@cache
def has_engine() -> bool:
    docker = shutil.which("docker")
    argv = [docker or "", "version"]
    return docker is not None and subprocess.run(argv, capture_output=True).returncode == 0


@cache
def has_image(image: str) -> bool:
    """Return whether the image exists. scripts/engine makes the small ones. Tests that need one of
    kakoi's own build it."""
    docker = shutil.which("docker")
    if image in BUILD and has_engine():
        return BUILD[image]() == image
    argv = [docker or "", "image", "inspect", image]
    return docker is not None and subprocess.run(argv, capture_output=True).returncode == 0


def need(sandbox: str, *, is_there: bool) -> None:
    if not is_there:
        required = sandbox in os.environ.get("KAKOI_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)(f"there is no {sandbox} that works")


@pytest.fixture
def door(tmp_path: Path) -> Door:
    """Run on the host: it is fast, and behaves the same except for confinement."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    return Door(workspace, tmp_path / "audit.jsonl", {"KAKOI_SANDBOX": "host"})


@pytest.fixture(params=["host", "bubblewrap"])
def any_door(request: pytest.FixtureRequest, door: Door) -> Door:
    if request.param == "bubblewrap":
        need("bubblewrap", is_there=has_bubblewrap())
    return Door(door.workspace, door.log, {"KAKOI_SANDBOX": request.param})


@pytest.fixture
def confined_door(door: Door) -> Door:
    need("bubblewrap", is_there=has_bubblewrap())
    return Door(door.workspace, door.log, {"KAKOI_SANDBOX": "bubblewrap"})


@pytest.fixture
def docker_door(door: Door) -> Door:
    image = "kakoi-test:python"  # scripts/engine makes it.
    need("docker", is_there=has_image(image))
    return Door(door.workspace, door.log, {"KAKOI_SANDBOX": "docker", "KAKOI_IMAGE": image})


@pytest.fixture
def mark() -> str:
    """A unique and finite number of seconds to sleep."""
    return f"600.{int.from_bytes(os.urandom(6), 'big')}"


@pytest.fixture
def home(tmp_path: Path) -> Home:
    """A user with an empty home, in an empty project."""
    (tmp_path / "project").mkdir()
    return Home(tmp_path)


# --- MCP: its SDK is slow to import, and most tests do not need it -------------------------------


@pytest.fixture
def mcp_door(tmp_path: Path) -> "McpDoor":
    """Run on the host: it is fast, and behaves the same except for confinement."""
    from tests.mcp.connections import McpDoor

    folder = tmp_path.resolve()
    (folder / "workspace").mkdir()
    (folder / "config.yaml").write_text("execution:\n  concurrency: 16\n")
    return McpDoor(folder)


@pytest.fixture
def confined_mcp_door(mcp_door: "McpDoor") -> "McpDoor":
    need("bubblewrap", is_there=has_bubblewrap())
    return replace(mcp_door, sandbox="bubblewrap")


@pytest.fixture
def docker_mcp_door(mcp_door: "McpDoor") -> "McpDoor":
    image = "kakoi-test:python"
    need("docker", is_there=has_image(image))
    return replace(mcp_door, sandbox="docker", settings={"sandbox.docker.image": image})


@pytest.fixture(params=["legacy", "2026-07-28"])
async def client(request: pytest.FixtureRequest, mcp_door: "McpDoor") -> AsyncIterator["Client"]:
    """The official client, connected to a server in this process, with the old and new protocol."""
    from mcp import Client

    from kakoi.mcp.server import make_server

    async with (
        mcp_door.server_state() as state,
        Client(make_server(state), mode=request.param) as client,
    ):
        yield client
