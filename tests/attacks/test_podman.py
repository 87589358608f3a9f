"""The most telling attacks on Podman, which isolates like Docker."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

IMAGE = "localhost/kakoi-test:python"
TELLING = [f"tests/attacks/test_{name}.py" for name in ("runner", "processes", "privileges")]


def has_podman() -> bool:
    """With the image: `docker save kakoi-test:python | podman load`."""
    if shutil.which("podman") is None:
        return False
    return subprocess.run(["podman", "image", "exists", IMAGE], timeout=60).returncode == 0


@pytest.mark.slow(
    "the most telling attacks of the others, with a container of Podman for each file"
)
def test_podman_holds_what_docker_holds() -> None:
    if not has_podman():
        required = "podman" in os.environ.get("KAKOI_REQUIRE", "").split(",")
        report = pytest.fail if required else pytest.skip
        report(f"there is no podman here with the image {IMAGE}: scripts/engine loads it")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TELLING]
    done = subprocess.run(
        [*argv, "--sandbox", f"podman:{IMAGE}"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout[-3000:]
