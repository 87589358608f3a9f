"""The images, really built, without a registry. Their files are kept as scripts/engine keeps those of
the other test images: a change of the description makes them anew, and nothing else."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.images.boxes import LABEL, Box, docker, kakoi

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kakoi-tests")
IMAGE = "kakoi-test:base"


def need(what: str, *, is_there: bool) -> None:
    if not is_there:
        required = "docker" in os.environ.get("KAKOI_REQUIRE", "").split(",")
        (pytest.fail if required else pytest.skip)(what)


@pytest.fixture(scope="session")
def engine() -> None:
    found = shutil.which("docker")
    argv = [found or "", "version"]
    answers = found is not None and subprocess.run(argv, capture_output=True).returncode == 0
    need("there is no Docker engine", is_there=answers)


def built(variant: str, *apt: str, name: str = "") -> str:
    """`name`: of one with more packages, which are not in the way of who needs none of them."""
    need("there is no mmdebstrap", is_there=shutil.which("mmdebstrap") is not None)
    cache = CACHE / name
    cache.mkdir(parents=True, exist_ok=True)
    name = name or variant
    tag = f"kakoi-test:{name}"
    # Tests run in several processes; who needs the small one does not wait for the big one.
    with (CACHE / f"image-{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = kakoi(
            *("image", "build", variant, "--without-registry", "--tag", tag),
            *("--cache", str(cache), "--label", LABEL),
            *(word for each in apt for word in ("--apt", each)),
            timeout_s=1800,
        )
    assert said.returncode == 0, said.stderr
    return tag


@pytest.fixture(scope="session")
def image(engine: None) -> str:
    return built("base")


@pytest.fixture(scope="session")
def full_image(engine: None) -> str:
    """With Go, Java and more. On a new machine it takes minutes, most of them of the network."""
    return built("full")


@pytest.fixture(scope="session")
def tools_image(engine: None) -> str:
    """With cargo, and with maven and a repository of the plugins that it needs to download anything."""
    plugins = ("antrun", "assembly", "clean", "dependency", "deploy", "install", "site")
    names = [f"libmaven-{each}-plugin-java" for each in plugins]
    return built("base", "cargo", "junit4", "maven", *names, name="tools")


@pytest.fixture
def box(image: str) -> Iterator[Box]:
    """A container of it that waits, as its own user."""
    argv = ["run", "-d", "--label", LABEL, "--network", "none", "--init", image, "sleep", "600"]
    name = docker(*argv).stdout.strip()
    try:
        yield Box(name)
    finally:
        docker("rm", "-f", "-v", name)
