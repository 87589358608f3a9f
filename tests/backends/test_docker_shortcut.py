"""The short way to a runner: taken where there is one, and not led astray on it."""

import array
import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kakoi.backends.docker import direct_channel as docker_shortcut
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.docker.direct_channel import _meet, prefer_direct_channel
from kakoi.channel.api import Command
from kakoi.channel.runner_channel import RunnerChannel
from kakoi.runner.runner_socket import proof
from tests.cli.conftest import has_image, need

IMAGE = "kakoi-test:python"
PATIENCE_S = 60
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root sees below /proc")


def children() -> list[str]:
    found = Path("/proc/self/task").glob("*/children")
    return [pid for each in found for pid in each.read_text().split()]


def arguments(pid: str) -> list[bytes]:
    return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")


@contextmanager
def listening(path: Path, serve: Callable[[socket.socket], object]) -> Iterator[None]:
    """Somebody who takes one visitor at `path`."""
    listener = socket.socket(socket.AF_UNIX)
    here = os.open(path.parent, os.O_PATH)
    listener.bind(f"/proc/self/fd/{here}/{path.name}")
    listener.listen(1)
    listener.settimeout(10)

    def visit() -> None:
        try:
            line, _ = listener.accept()
        except OSError:
            return
        with line:
            serve(line)

    thread = threading.Thread(target=visit)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        os.close(here)
        thread.join()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / f".kakoi-{os.getuid()}"
    made.mkdir()
    return made


def be_known(line: socket.socket) -> None:
    """As a runner is."""
    nonce = bytes(16)
    line.send(b"k" + nonce)
    theirs = line.recv(48)[:16]
    line.send(proof("", b"runner", os.getpid(), nonce + theirs))


def welcome(line: socket.socket) -> None:
    """As a runner does: known, a stream, and something said over it."""
    be_known(line)
    _, rights, _, _ = line.recvmsg(1, socket.CMSG_LEN(8))
    streams = array.array("i", rights[0][2])
    os.write(streams[1], b"hello")
    for fd in streams:
        os.close(fd)


def meet(tmp_path: Path, uid: int | None = None) -> tuple[socket.socket, socket.socket]:
    return _meet(os.getpid(), os.getuid() if uid is None else uid, str(tmp_path), "")


@needs_root
def test_a_runner_gets_a_stream(tmp_path: Path, folder: Path) -> None:
    with listening(folder / "runner", welcome):
        ours, line = meet(tmp_path)
        ours.setblocking(True)
        assert ours.recv(5) == b"hello"
        ours.close()
        line.close()


@needs_root
@pytest.mark.parametrize("what", ["folder", "runner"])
def test_no_link_is_followed(tmp_path: Path, folder: Path, what: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    with listening(elsewhere / "runner", welcome):
        if what == "folder":
            folder.rmdir()
            folder.symlink_to(elsewhere)
        else:
            (folder / "runner").symlink_to(elsewhere / "runner")
        with pytest.raises(OSError, match=r"Not a directory|not a runner"):
            meet(tmp_path)


@needs_root
def test_what_is_not_a_runner_is_left_alone(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(docker_shortcut, "_PATIENCE_S", 0.2)
    with pytest.raises(FileNotFoundError):
        meet(tmp_path)
    (folder / "runner").write_text("a file")
    with pytest.raises(OSError, match="not a runner"):
        meet(tmp_path)
    (folder / "runner").unlink()
    with listening(folder / "runner", welcome):
        os.chown(folder / "runner", 4711, 4711)
        with pytest.raises(OSError, match="not a runner"):
            meet(tmp_path)
    (folder / "runner").unlink()
    wrong_word = listening(folder / "runner", lambda line: line.send(b"x"))
    with wrong_word, pytest.raises(OSError, match="no runner answers"):
        meet(tmp_path)
    (folder / "runner").unlink()
    silent = threading.Event()
    with listening(folder / "runner", lambda line: silent.wait(5)):
        with pytest.raises(TimeoutError):
            meet(tmp_path)
        silent.set()


@needs_root
@pytest.mark.anyio
async def test_in_a_container_the_short_way_is_taken_and_nothing_stays() -> None:
    need("docker", is_there=has_image(IMAGE))
    sandbox = DockerAdapter(DockerSettings(image=IMAGE), lifetime="sandbox")
    before = len(os.listdir("/proc/self/fd"))
    try:
        channel = await sandbox.channel()
        assert type(getattr(channel, "carrier", None)).__name__ == "_Runner"
        # Its engine's client was only needed to start it.
        assert not [pid for pid in children() if b"exec" in arguments(pid)]
        result = await channel.run(Command(command="echo short; id -u"))
        assert result.stdout.splitlines() == ["short", "65533"]
        # A command that takes the socket away harms nobody who is there already.
        await channel.run(Command(command="rm -rf /tmp/.kakoi-*"))
        assert (await channel.run(Command(command="echo still"))).stdout == "still\n"
    finally:
        await sandbox.cleanup()
    assert len(os.listdir("/proc/self/fd")) == before


@needs_root
@pytest.mark.anyio
async def test_closing_does_not_wait_for_a_runner_that_others_need() -> None:
    need("docker", is_there=has_image(IMAGE))
    first = DockerAdapter(DockerSettings(image=IMAGE), lifetime="sandbox")
    try:
        channel = await first.channel()
        second = await DockerAdapter.attach(first.container_id)
        other = await second.channel()
        assert isinstance(channel, RunnerChannel)
        assert isinstance(other, RunnerChannel)
        assert (await other.run(Command(command="echo hi"))).stdout == "hi\n"
        async with asyncio.timeout(PATIENCE_S):
            await other.close(grace_s=2 * PATIENCE_S)
        job = await channel.start(Command(command="sleep 1000"))
        async with asyncio.timeout(PATIENCE_S):
            await channel.close(grace_s=2 * PATIENCE_S)
        third = await DockerAdapter.attach(first.container_id)
        assert [each.id for each in await (await third.channel()).list_jobs()] == [job]
        await third.close()
        await second.close()
    finally:
        await first.cleanup()


@needs_root
@pytest.mark.anyio
@pytest.mark.parametrize("trap", ["ln -s /", "mkdir", "touch"])
async def test_a_trap_on_the_way_leaves_the_long_way(trap: str) -> None:
    need("docker", is_there=has_image(IMAGE))
    # The runner does not find its folder, and we neither.
    settings = DockerSettings(image=IMAGE, env={"TMPDIR": "/no/such/place"})
    sandbox = DockerAdapter(settings, lifetime="sandbox")
    try:
        channel = await sandbox.channel()
        assert type(getattr(channel, "carrier", None)).__name__ == "ProcessStream"
        result = await channel.run(Command(command=f"{trap} /tmp/.kakoi-65533; echo long"))
        assert result.stdout == "long\n"
    finally:
        await sandbox.cleanup()


class Long:
    """The long way, as far as it matters here."""

    grace_s = 1.0
    hello = SimpleNamespace(uid=os.getuid())

    def __init__(self) -> None:
        self.is_closed = False

    async def close(self, grace_s: float = 2.0) -> None:
        self.is_closed = True


@needs_root
@pytest.mark.anyio
async def test_given_up_on_the_way_it_leaves_neither_way_open(tmp_path: Path, folder: Path) -> None:
    arrived, go_on, is_over = threading.Event(), threading.Event(), threading.Event()
    told: list[bytes] = []

    def hesitate(line: socket.socket) -> None:
        arrived.set()
        go_on.wait(10)
        be_known(line)
        told.append(line.recv(1))
        told.append(line.recv(1))  # Ends when they have closed theirs.
        is_over.set()

    long: Any = Long()
    with listening(folder / "runner", hesitate):
        task = asyncio.ensure_future(
            prefer_direct_channel(long, pid=os.getpid(), folder=str(tmp_path), key="")
        )
        await asyncio.to_thread(arrived.wait, 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert long.is_closed
        go_on.set()
        await asyncio.to_thread(is_over.wait, 10)
    assert told == [b"k", b""]
