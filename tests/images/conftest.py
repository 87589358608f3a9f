"""The images that tests build, and a container from the smallest one."""

import os
import shutil
from collections.abc import Iterator

import pytest

from tests.cli.conftest import has_engine
from tests.images import built
from tests.images.boxes import LABEL, Box, docker

IMAGE = "kakoi-test:base"


def need(what: str, *, is_there: bool) -> None:
    if not is_there:
        required = "docker" in os.environ.get("KAKOI_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)(what)


@pytest.fixture(scope="session")
def engine() -> None:
    need("there is no Docker engine", is_there=has_engine())


@pytest.fixture(scope="session")
def image(engine: None) -> str:
    need("there is no mmdebstrap", is_there=shutil.which("mmdebstrap") is not None)
    return built.base()


@pytest.fixture(scope="session")
def full_image(image: str) -> str:
    return built.full()


@pytest.fixture(scope="session")
def tools_image(image: str) -> str:
    return built.tools()


@pytest.fixture
def box(image: str) -> Iterator[Box]:
    """A waiting container from the image, running as the image's user."""
    argv = ["run", "-d", "--label", LABEL, "--network", "none", "--init", image, "sleep", "600"]
    name = docker(*argv).stdout.strip()
    try:
        yield Box(name)
    finally:
        docker("rm", "-f", "-v", name)
