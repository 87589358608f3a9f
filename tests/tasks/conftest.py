"""An environment manager on a real engine, and git servers."""

import fcntl
import os
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from kakoi.audit import AuditLog
from kakoi.backends.adapter import Limits
from kakoi.channel.delivery import RunnerSettings
from kakoi.channel.runner_channel import RunnerChannel, open_channel
from kakoi.network.git_credentials import credential_for
from kakoi.network.proxy import Proxy
from kakoi.process.executor import ProcessExecutor
from kakoi.tasks.environments import EnvironmentOptions, ExecutionEnvironmentManager
from kakoi.tasks.network import ProxyFactory
from tests.backends.boxes import require_bubblewrap
from tests.engine import containers
from tests.images.built import CACHE
from tests.images.conftest import full_image as full_image  # Also has Go and Java.
from tests.images.conftest import image as image  # Has pip and npm, built on demand.
from tests.images.conftest import tools_image as tools_image  # Has cargo and maven.
from tests.runner.conftest import host_launch
from tests.tasks.hosting import PYTHON, GitServer, docker, now, start_server


@pytest.fixture(scope="session")
def engine() -> None:
    """Skip if there is no engine, or fail if it is required."""
    try:
        docker("image", "inspect", PYTHON)
    except (OSError, AssertionError) as error:
        if "docker" in os.environ.get("KAKOI_REQUIRE", ""):
            raise
        pytest.skip(f"no docker engine with test images; scripts/engine start: {error}")


@pytest.fixture(scope="session")
def bubblewrap() -> None:
    require_bubblewrap()


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
    """Remove the project images that a test makes. An image does not show its test, so only one
    test runs at a time."""

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
    """A name for all containers of one test. Fails if any of them is left at the end."""
    name = f"test-{uuid.uuid4()}"
    yield name
    left = containers(name)
    for each in left:
        docker("rm", "-f", "-v", each)
    assert left == []


Make = Callable[..., ExecutionEnvironmentManager]


@pytest.fixture
async def make(owner: str, tmp_path: Path) -> AsyncIterator[Make]:
    """A function that creates managers, with `tokens` as variables. The fixture closes them."""
    made: list[ExecutionEnvironmentManager] = []

    def make(
        *,
        tokens: dict[str, str] | None = None,
        clock: Callable[[], datetime] = now,
        executor: ProcessExecutor | None = None,
        ssh_env: dict[str, str] | None = None,
        kind: type[ExecutionEnvironmentManager] = ExecutionEnvironmentManager,
        make_proxy: ProxyFactory = Proxy,
        **options: Any,
    ) -> ExecutionEnvironmentManager:
        # The git server is another container, reachable only through the engine's network.
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
    """A channel to a runner on this machine, in the test's own directory."""
    opened = await open_channel(host_launch(tmp_path), RunnerSettings())
    yield opened
    await opened.close()
