"""A call of an engine that never answers ends after a minute, whichever command makes it."""

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import has_image, need
from tests.cli.terminals import KAKOI
from tests.engine import containers
from tests.engine_proxy import EngineProxy

IMAGE = "kakoi-test:busybox"
WAIT_S = 240.0
RUN = ["run", "--sandbox", "docker", "echo hi"]
# What is never answered, a command, its exit code, and what it says.
CALLS = {
    "everything": (".*", ["env", "ls"], 2, "did not finish listing containers after"),
    "everything of a sandbox": (".*", RUN, 125, "did not finish looking for the image after"),
    "a creation": ("POST /containers/create", RUN, 125, "did not start a container within"),
    "a start": ("POST /containers/.*/start", RUN, 125, "did not start a container within"),
}


@pytest.mark.requirement("A-096", "A-097")
@pytest.mark.extended("the default tier waits for a shorter limit")
@pytest.mark.slow("waits for the limit of a minute")
def test_a_call_that_is_not_answered_ends_after_a_minute_and_says_so(
    tmp_path: Path, own_temporary: Path
) -> None:
    _call_a_silent_engine(tmp_path, own_temporary, "60 s")


@pytest.mark.requirement("A-096", "A-097")
@pytest.mark.slow("an engine that is tried again three times, by four commands")
def test_the_minute_is_as_long_as_a_variable_says(tmp_path: Path, own_temporary: Path) -> None:
    _call_a_silent_engine(tmp_path, own_temporary, "1.5 s", DOCKER_CLIENT_TIMEOUT="1.5")


@pytest.mark.parametrize("said", ["soon", "0", "-1"])
def test_a_limit_that_is_no_time_is_an_error(tmp_path: Path, said: str) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "DOCKER_CLIENT_TIMEOUT": said}
    done = subprocess.run(
        [*KAKOI, "env", "ls"],
        env={**environ, "COMMAND_EXECUTOR_ENABLED": "true"},
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert done.returncode == 2
    assert "DOCKER_CLIENT_TIMEOUT is" in done.stderr
    assert "it must be a number of seconds above zero" in done.stderr


def _call_a_silent_engine(
    tmp_path: Path, own_temporary: Path, limit: str, **variables: str
) -> None:
    need("docker", is_there=has_image(IMAGE))
    owner = f"test-{tmp_path.name}-{os.getpid()}"
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LANG": "C.UTF-8",
        "COMMAND_EXECUTOR_ENABLED": "true",
        "KAKOI_OWNER": owner,
        "KAKOI_IMAGE": IMAGE,
        **variables,
    }
    running = {}
    with contextlib.ExitStack() as engines:
        for number, (name, (held, words, _, _)) in enumerate(CALLS.items()):
            proxy = EngineProxy(own_temporary / f"e{number}", held=held)
            address = engines.enter_context(proxy.listening()).address
            running[name] = subprocess.Popen(
                [*KAKOI, *words],
                cwd=tmp_path,
                env={**environ, "DOCKER_HOST": address},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        for name, (_, _, status, what) in CALLS.items():
            _out, said = running[name].communicate(timeout=WAIT_S)
            assert running[name].returncode == status, (name, said)
            assert f"docker {what} {limit}" in said, (name, said)
            assert "DOCKER_CLIENT_TIMEOUT=SECONDS waits longer" in said, (name, said)
    assert containers(owner) == []
