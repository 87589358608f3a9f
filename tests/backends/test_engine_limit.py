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
    "everything": (".*", ["env", "ls"], 2, "did not finish listing containers after 60 s"),
    "everything of a sandbox": (".*", RUN, 125, "did not finish looking for the image after 60 s"),
    "a creation": ("POST /containers/create", RUN, 125, "did not start a container within 60 s"),
    "a start": ("POST /containers/.*/start", RUN, 125, "did not start a container within 60 s"),
}


@pytest.mark.requirement("A-096", "A-097")
@pytest.mark.extended("the default tier asks which limit the calls have, and does not wait for it")
@pytest.mark.slow("waits for the limit of a minute")
def test_a_call_that_is_not_answered_ends_after_a_minute_and_says_so(
    tmp_path: Path, own_temporary: Path
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
            assert f"docker {what}" in said, (name, said)
    assert containers(owner) == []
