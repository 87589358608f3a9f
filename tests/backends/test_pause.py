"""How sandboxes are paused, and where they cannot be; kakoi.conformance tests what a pause does."""

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kakoi.backends.adapter import CanFork, CanPause, Limits
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.control_groups import Freezer
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings, Tag
from kakoi.backends.host.adapter import HostAdapter
from kakoi.backends.kubernetes.adapter import KubernetesAdapter
from kakoi.backends.limits import make_group
from kakoi.backends.pause import group_method
from kakoi.channel.api import new_id
from kakoi.conformance.sandbox_commands import wait_until as wait_for
from kakoi.errors import SandboxError, UnsupportedError
from tests.backends.boxes import needs_root
from tests.backends.test_lifetime import IMAGE
from tests.cli.conftest import has_image, need
from tests.engine import containers

pytestmark = [pytest.mark.anyio, needs_root]


@pytest.fixture
def owner() -> Iterator[str]:
    name = f"test-{new_id()}"
    yield name
    left = containers(name)
    for each in left:
        subprocess.run(["docker", "rm", "-f", "-v", each], check=True, capture_output=True)


@pytest.fixture
def mark() -> str:
    return f"8{time.monotonic_ns() % 10**9}"


async def wait_until(true: Callable[[], object]) -> None:
    async def is_true() -> bool:
        return bool(await asyncio.to_thread(true))

    await wait_for(is_true, "it happens")


async def test_a_group_that_was_left_frozen_is_thawed_by_the_next_kakoi(mark: str) -> None:
    """Both kakoi and its guard were killed."""
    group = await asyncio.to_thread(make_group, Limits())
    assert group is not None
    assert group.freezer is not None
    enter = "for f; do echo 0 >$f; done; echo in; exec sleep $MARK"
    argv = ["sh", "-c", enter, "sh", *group.entries]
    with frozen_process(argv, mark, group.freezer) as process:
        for lock in group.locks:  # As the end of our process would do.
            os.close(lock)
        process.kill()  # In version 1, it does not die while it is frozen.
        other = await asyncio.to_thread(make_group, Limits())
        assert other is not None
        await wait_until(lambda: process.poll() is not None)
        again = await asyncio.to_thread(make_group, Limits())
        assert again is not None
    for each in (other, again):
        await asyncio.to_thread(each.remove)
    assert not any(folder.exists() for folder in group.folders)


@contextmanager
def frozen_process(
    argv: list[str], mark: str, freezer: Freezer
) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(argv, env={"MARK": mark}, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        freezer.freeze()
        try:
            yield process
        finally:
            process.kill()
            freezer.thaw()


# --- Where it is impossible ------------------------------------------------------------------


def test_without_a_freezer_it_says_what_would_help() -> None:
    with pytest.raises(UnsupportedError, match="bubblewrap cannot pause here") as caught:
        group_method(None, sandbox="bubblewrap")
    assert "docker" in caught.value.hint


async def test_a_group_that_cannot_be_frozen_is_an_error_and_stays_thawed(tmp_path: Path) -> None:
    (tmp_path / "cgroup.freeze").write_text("0")
    freezer = Freezer.of(tmp_path)
    assert freezer is not None
    (tmp_path / "cgroup.freeze").unlink()
    (tmp_path / "cgroup.freeze").mkdir()
    with pytest.raises(SandboxError, match="could not be paused"):
        freezer.freeze()


async def test_containers_of_one_command_cannot_be_paused(owner: str) -> None:
    need("docker", is_there=await asyncio.to_thread(has_image, IMAGE))
    sandbox = DockerAdapter(DockerSettings(image=IMAGE), tag=Tag(owner=owner))
    with pytest.raises(UnsupportedError, match="last for one command") as caught:
        await sandbox.pause()
    assert "client" in caught.value.hint
    await sandbox.cleanup()


async def test_a_pod_can_neither_be_paused_nor_forked() -> None:
    sandbox = KubernetesAdapter()
    assert isinstance(sandbox, CanPause)
    assert isinstance(sandbox, CanFork)
    for call in (sandbox.pause(), sandbox.fork(2)):
        with pytest.raises(UnsupportedError, match="kubernetes cannot") as caught:
            await call
        assert "docker" in caught.value.hint
    await sandbox.resume()


def test_our_sandboxes_can_pause(tmp_path: Path) -> None:
    assert isinstance(BubblewrapAdapter(tmp_path), CanPause)
    assert isinstance(HostAdapter(tmp_path), CanPause)
