"""A manager of environments on a real engine, and servers of git beside it."""

import fcntl
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kakoi.audit import AuditLog
from kakoi.config.credentials import credential_for
from kakoi.egress.proxy import Proxy
from kakoi.process.executor import ProcessExecutor
from kakoi.runner.channel import RunnerChannel, open_channel
from kakoi.runner.delivery import RunnerSettings
from kakoi.sandbox.adapter import Limits
from kakoi.tasks.environments import EnvironmentOptions, ExecutionEnvironmentManager
from kakoi.tasks.reaching import MakeProxy
from tests.engine import containers
from tests.images.built import CACHE
from tests.images.conftest import full_image as full_image  # One with go and Java, too.
from tests.images.conftest import image as image  # One with pip and npm; built if need be.
from tests.images.conftest import tools_image as tools_image  # One with cargo and maven.
from tests.runner.conftest import host_launch
from tests.tasks.hosting import PYTHON, GitServer, docker, now, start_server


@pytest.fixture(scope="session")
def engine() -> None:
    """Skip where there is none, or fail where it is required."""
    try:
        docker("image", "inspect", PYTHON)
    except (OSError, AssertionError) as error:
        if "docker" in os.environ.get("KAKOI_REQUIRE", ""):
            raise
        pytest.skip(f"no docker engine with test images; scripts/engine start: {error}")


@pytest.fixture(scope="session")
def git(engine: None) -> Iterator[GitServer]:
    owner = f"test-git-{uuid.uuid4()}"
    try:
        yield start_server(owner)
    finally:
        for each in containers(owner):
            docker("rm", "-f", "-v", each)


@pytest.fixture
def images(engine: None) -> Iterator[None]:
    """No image of a project stays. Whose an image is cannot be seen, so one test at a time."""

    def found() -> set[str]:
        form = ["--filter", "reference=kakoi-project", "--format", "{{.Repository}}:{{.Tag}}"]
        return set(docker("image", "ls", *form).split())

    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "projects.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = found()
        yield
        for each in found() - before:
            docker("image", "rm", each)


@pytest.fixture
def owner(engine: None) -> Iterator[str]:
    """A name for all containers of one test; none of them is left at its end."""
    name = f"test-{uuid.uuid4()}"
    yield name
    left = containers(name)
    for each in left:
        docker("rm", "-f", "-v", each)
    assert left == []


Make = Callable[..., ExecutionEnvironmentManager]


@pytest.fixture
async def make(owner: str, tmp_path: Path) -> AsyncIterator[Make]:
    """Managers with these options, and with `tokens` for variables; closed at the end."""
    made: list[ExecutionEnvironmentManager] = []

    def make(
        *,
        tokens: dict[str, str] | None = None,
        clock: Callable[[], datetime] = now,
        executor: ProcessExecutor | None = None,
        ssh_env: dict[str, str] | None = None,
        kind: type[ExecutionEnvironmentManager] = ExecutionEnvironmentManager,
        make_proxy: MakeProxy = Proxy,
        **options: Any,
    ) -> ExecutionEnvironmentManager:
        # The server of git is a neighbour, which only the network of the engine leads to.
        base = {"image": PYTHON, "limits": Limits(cpus=1.0), "network": "bridge"}
        wanted = {**base, **options}
        made.append(
            kind(
                EnvironmentOptions(**wanted),
                clock=clock,
                owner=owner,
                executor=executor,
                ssh_env=ssh_env,
                audit=AuditLog(tmp_path / "audit.jsonl", clock=now),
                make_proxy=make_proxy,
                credential_for=lambda address: credential_for(address, tokens or {}),
            )
        )
        return made[-1]

    yield make
    for each in made:
        for info in each.active():
            await each.cleanup(info.task_uuid)
        await each.close()


@pytest.fixture
async def channel(tmp_path: Path) -> AsyncIterator[RunnerChannel]:
    """A way to a runner on this machine, in a directory of the test's own."""
    opened = await open_channel(host_launch(tmp_path), RunnerSettings())
    yield opened
    await opened.close()
