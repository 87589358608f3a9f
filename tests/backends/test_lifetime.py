"""A sandbox with a lifetime ends by itself, whatever became of the process that opened it."""

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings, Lifetime, Tag
from kakoi.backends.host.adapter import HostAdapter
from kakoi.backends.kubernetes.pod import KubernetesSettings, PodPlan, manifest
from kakoi.backends.probes import processes_outside
from kakoi.backends.select import SandboxFactory
from kakoi.backends.settings import SandboxConfig
from kakoi.channel.api import Command, new_id
from kakoi.channel.connection import Deadline
from kakoi.conformance.sandbox_commands import wait_until as wait_for
from kakoi.errors import ConfigurationError, SandboxError, UnsupportedError
from kakoi.results import Reason
from tests.cli.conftest import has_image, need
from tests.engine import containers

pytestmark = pytest.mark.anyio
IMAGE = "kakoi-test:python"
LIFETIME_S = 2.5
WAIT_S = 60.0

Make = Callable[[Path, str, float | None], SandboxAdapter]


def container(lifetime: Lifetime) -> Make:
    def make(workspace: Path, owner: str, lifetime_s: float | None) -> SandboxAdapter:
        config = DockerSettings(image=IMAGE, workspace=str(workspace))
        tag = Tag(owner=owner)
        return DockerAdapter(config, lifetime=lifetime, tag=tag, lifetime_s=lifetime_s)

    return make


MAKERS: dict[str, Make] = {
    "bubblewrap": lambda workspace, _, life_s: BubblewrapAdapter(workspace, lifetime_s=life_s),
    "host": lambda workspace, _, life_s: HostAdapter(
        workspace, warn_on_start=False, lifetime_s=life_s
    ),
    "confined-host": lambda workspace, _, life_s: HostAdapter(
        workspace, confine=True, lifetime_s=life_s
    ),
    "docker client": container("client"),
    "docker sandbox": container("sandbox"),
    "docker command": container("command"),
}


@pytest.fixture(params=MAKERS)
async def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if name.startswith("docker"):
        need("docker", is_there=await asyncio.to_thread(has_image, IMAGE))
    return name


@pytest.fixture
def owner() -> str:
    return f"test-{new_id()}"


@pytest.fixture
async def sandbox(kind: str, tmp_path: Path, owner: str) -> AsyncIterator[SandboxAdapter]:
    made = MAKERS[kind](tmp_path, owner, LIFETIME_S)
    yield made
    await made.cleanup()


async def wait_until(true: Callable[[], object]) -> None:
    async def is_true() -> bool:
        return bool(await asyncio.to_thread(true))

    await wait_for(is_true, "it happens")


async def test_it_ends_by_itself_and_the_next_call_says_why(
    sandbox: SandboxAdapter, kind: str, owner: str
) -> None:
    mark = f"6{time.monotonic_ns() % 10**8}"
    result = await asyncio.wait_for(sandbox.run(Command(command=f"sleep {mark}")), WAIT_S)
    assert result.reason is Reason.SANDBOX_LOST
    assert result.error == "the lifetime of the sandbox (2.5 s) has ended"
    for call in (lambda: sandbox.run(Command(command="true")), sandbox.channel):
        with pytest.raises(SandboxError, match="lifetime of the sandbox") as caught:
            await call()
        assert "new sandbox" in caught.value.hint
    await wait_until(lambda: not processes_outside(mark))
    if kind.startswith("docker"):
        await wait_until(lambda: containers(owner) == [])


async def test_one_without_a_lifetime_has_no_end(tmp_path: Path) -> None:
    deadline = Deadline()
    deadline.begin()
    assert deadline.left_s is None
    assert not deadline.is_over


@pytest.mark.parametrize("wrong", [0, -1, float("nan"), float("inf"), "1", True])
def test_a_lifetime_is_a_number_of_seconds_above_zero(tmp_path: Path, wrong: float) -> None:
    with pytest.raises(ConfigurationError, match="lifetime_s"):
        HostAdapter(tmp_path, lifetime_s=wrong)
    with pytest.raises(ConfigurationError, match="lifetime_s"):
        SandboxConfig(lifetime_s=wrong)


CHILD = """
import asyncio, sys
from pathlib import Path
from kakoi.channel.api import Command
from tests.backends.test_lifetime import LIFETIME_S, MAKERS

async def main(kind, workspace, owner):
    mark = sys.stdin.readline().strip()
    sandbox = MAKERS[kind](Path(workspace), owner, LIFETIME_S)
    channel = await sandbox.channel()
    await channel.start(Command(command=f"touch started; trap '' TERM; sleep {mark}"))
    await asyncio.sleep(300)

asyncio.run(main(*sys.argv[1:]))
"""


@contextmanager
def client(kind: str, workspace: Path, owner: str, mark: str) -> "Iterator[subprocess.Popen[str]]":
    argv = [sys.executable, "-c", CHILD, kind, str(workspace), owner]
    root = Path(__file__).parents[2]
    with subprocess.Popen(argv, cwd=root, stdin=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        child.stdin.write(mark)
        child.stdin.close()
        try:
            yield child
        finally:
            child.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
@pytest.mark.parametrize("kind", ["docker sandbox", "docker client", "bubblewrap"], indirect=True)
async def test_it_ends_even_if_its_client_was_killed_or_hangs(
    kind: str, tmp_path: Path, owner: str, how: signal.Signals
) -> None:
    mark = f"7{time.monotonic_ns() % 10**8}"
    with client(kind, tmp_path, owner, mark) as child:
        await wait_until((tmp_path / "started").exists)
        child.send_signal(how)
        await wait_until(lambda: not processes_outside(mark))
        await wait_until(lambda: not kind.startswith("docker") or containers(owner) == [])


def test_a_pod_is_ended_by_its_cluster() -> None:
    plan = PodPlan(settings=KubernetesSettings(), name="p", owner="o", uid=7, lifetime_s=90.5)
    assert manifest(plan)["spec"]["activeDeadlineSeconds"] == 91
    plan = PodPlan(settings=KubernetesSettings(max_age_s=60), name="p", owner="o", uid=7)
    assert manifest(plan)["spec"]["activeDeadlineSeconds"] == 60


def test_container_use_cannot_end_by_itself_and_says_so(tmp_path: Path) -> None:
    factory = SandboxFactory(tmp_path)
    with pytest.raises(UnsupportedError, match="does not support a lifetime") as caught:
        factory.make("container-use", SandboxConfig(lifetime_s=5))
    assert "docker" in caught.value.hint
