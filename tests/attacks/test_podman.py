"""The attacks on Podman, where it is: it is not among what the tests need, and rarely installed."""

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
        pytest.skip(f"there is no podman here with the image {IMAGE}")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TELLING]
    done = subprocess.run(
        [*argv, "--sandbox", f"podman:{IMAGE}"],
        capture_output=True,
        text=True,
        timeout=240,
        cwd=Path(__file__).parents[2],
    )
    assert done.returncode == 0, done.stdout[-3000:]
