"""A sandbox opens: whoever waits is cancelled, or two want it at once. Nothing is lost."""

import asyncio
import contextlib
import dataclasses
import json
import os
import select
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.bubblewrap.arguments import BubblewrapSettings, build_launch, inspect_system
from kakoi.backends.host.adapter import HostAdapter
from kakoi.backends.limits import make_group
from kakoi.backends.workspace import identify_workspace
from kakoi.overlay import Overlay
from kakoi.process.stream import ProcessStream
from tests.backends.boxes import require_bubblewrap, skip_without_groups
from tests.backends.test_limits import LIMITS

pytestmark = pytest.mark.anyio

PATIENCE_S = 30.0


class Threads(ThreadPoolExecutor):
    """Those of `asyncio.to_thread`. The call of one function has been made, but does not return."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name
        self.has_made = threading.Event()
        self.may_return = threading.Event()

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> "Future[Any]":
        def held() -> object:
            made = call(*args, **options)
            if call.args[0].__name__ == self._name:  # type: ignore[attr-defined]  # A partial.
                self.has_made.set()
                self.may_return.wait(PATIENCE_S)
            return made

        return super().submit(held)


async def cancelled_after(name: str, adapter: BubblewrapAdapter | HostAdapter) -> None:
    """Open it, be cancelled just when that function has done its work, and clean up."""
    loop = asyncio.get_running_loop()
    threads = Threads(name)
    loop.set_default_executor(threads)
    opening = asyncio.create_task(adapter.channel())
    with ThreadPoolExecutor() as others:
        assert await loop.run_in_executor(others, threads.has_made.wait, PATIENCE_S)
    opening.cancel()
    await asyncio.sleep(0)
    threads.may_return.set()
    with pytest.raises(asyncio.CancelledError):
        await opening
    await adapter.cleanup()


def groups_of_ours() -> list[Path]:
    group = make_group(LIMITS)
    if group is None:
        skip_without_groups("memory")
    group.remove()
    own = f"kakoi-{os.getpid()}-*"
    return [found for folder in group.folders for found in folder.parent.glob(own)]


@pytest.mark.parametrize("kind", ["bubblewrap", "confined host"])
async def test_a_control_group_is_removed(kind: str, tmp_path: Path) -> None:
    before = groups_of_ours()
    if kind == "bubblewrap":
        await asyncio.to_thread(require_bubblewrap)
        await cancelled_after("make_group", BubblewrapAdapter(tmp_path, limits=LIMITS))
    else:
        await cancelled_after("make_group", HostAdapter(tmp_path, confine=True, limits=LIMITS))
    assert groups_of_ours() == before


async def test_an_overlay_is_given_back(tmp_path: Path) -> None:
    await asyncio.to_thread(require_bubblewrap)
    project = tmp_path / "project"
    project.mkdir()
    overlay = Overlay(project, tmp_path / "overlays")
    await cancelled_after("open", BubblewrapAdapter(project, overlay=overlay))
    overlay.checkpoint("alone")
    assert overlay.checkpoints() == ["alone"]


async def test_the_private_directory_is_removed(tmp_path: Path, own_temporary: Path) -> None:
    before = os.listdir(own_temporary)
    await cancelled_after("ScratchFolder", HostAdapter(tmp_path, confine=True))
    assert os.listdir(own_temporary) == before


async def test_a_probe_and_an_opening_share_the_overlay(tmp_path: Path) -> None:
    await asyncio.to_thread(require_bubblewrap)
    project = tmp_path / "project"
    project.mkdir()
    adapter = BubblewrapAdapter(project, overlay=Overlay(project, tmp_path / "overlays"))
    try:
        available, _ = await asyncio.gather(adapter.availability(), adapter.channel())
        assert available, available.reason
    finally:
        await adapter.cleanup()


async def test_nothing_stays_of_a_bubblewrap_that_dies_before_its_child_has_begun(
    tmp_path: Path,
) -> None:
    """The child waits for a word of the one that makes its namespaces, and for ever if that is dead
    by then. Here it does not come to say it: it waits for input."""
    await asyncio.to_thread(require_bubblewrap)
    system = inspect_system()
    assert system is not None
    launch = build_launch(
        BubblewrapSettings(workspace=identify_workspace(tmp_path)), system, ["true"]
    )
    words = "--unshare-user --unshare-pid --die-with-parent --ro-bind / / --info-fd 1"
    argv = [system.bwrap, *words.split(), *("--userns-block-fd", "0", "--", "true")]
    stream = ProcessStream(dataclasses.replace(launch, argv=argv))
    try:
        async with asyncio.timeout(PATIENCE_S):
            told = b""
            while not told.endswith(b"}\n"):
                told += await asyncio.get_running_loop().sock_recv(stream.socket, 4096)
        child = os.pidfd_open(json.loads(told)["child-pid"])
        os.kill(stream.pid, signal.SIGKILL)
    finally:
        await stream.end()
    try:
        poll = select.poll()
        poll.register(child, select.POLLIN)
        assert await asyncio.to_thread(poll.poll, PATIENCE_S * 1000), "it is still there"
    finally:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(child, signal.SIGKILL)
        os.close(child)
