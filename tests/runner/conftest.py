"""Shared by the tests of the runner: runners that lie, clients that lie, and leak checks."""

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import pytest

from kakoi.channel.delivery import GREETING, RunnerSettings, delivery, python_argv
from kakoi.channel.runner_channel import RunnerChannel, open_channel
from kakoi.channel.runner_stream import RunnerTimeouts
from kakoi.process.options import default_environment
from kakoi.process.stream import Launch
from kakoi.runner import frames
from tests.children import children_of_ours
from tests.process.trees import Witness, watching

PATIENCE_S = 60.0
Frame = tuple[int, int, bytes]
T = TypeVar("T")

QUICK = RunnerTimeouts(hello_s=20.0, silence_s=0.5, grace_s=0.5)


# --- Waiting ---------------------------------------------------------------------------------


async def until(holds: Callable[[], object]) -> None:
    """Poll until the condition is true, for a bounded time."""
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up, "it never happened"
        await asyncio.sleep(0.005)


async def soon(waited: Awaitable[T]) -> T:
    """Return the result, or fail after a bounded time."""
    async with asyncio.timeout(PATIENCE_S):
        return await waited


# --- Leaks -----------------------------------------------------------------------------------


def open_descriptors() -> dict[str, str]:
    found = {}
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # The descriptor that lists the folder.
            found[entry.name] = os.readlink(entry)
    return found


@pytest.fixture
async def nothing_leaks(caplog: pytest.LogCaptureFixture) -> AsyncIterator[None]:
    """Check that the test leaves no new tasks, descriptors or children, and no hidden errors."""
    gc.collect()
    before, tasks = open_descriptors(), asyncio.all_tasks()  # Sandboxes are shared by many tests.
    yield
    await asyncio.sleep(0)
    gc.collect()  # asyncio logs an unretrieved exception when its future is collected.
    await asyncio.sleep(0)
    assert children_of_ours() == []
    new = asyncio.all_tasks() - tasks
    assert [task for task in new if "TestRunner" not in repr(task)] == []
    assert open_descriptors() == before
    assert [record for record in caplog.records if record.name == "asyncio"] == []


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    with watching(tmp_path) as witness:
        yield witness


# --- A real runner with the real client ------------------------------------------------------


def host_launch(folder: Path | str = "/", *, env: Mapping[str, str] | None = None) -> Launch:
    given = default_environment() if env is None else env
    return Launch(argv=python_argv(sys.executable), env=given, cwd=str(folder), kept=True)


@pytest.fixture
async def channel(tmp_path: Path) -> AsyncIterator[RunnerChannel]:
    """A runner on this machine that starts its commands in `tmp_path`."""
    opened = await open_channel(host_launch(tmp_path), RunnerSettings())
    try:
        yield opened
    finally:
        await soon(opened.close())


# --- A real runner with a misbehaving client -------------------------------------------------


def run_order(name: str, command: str | list[str], **changes: object) -> dict[str, object]:
    """Return a request to run a command, as the real client writes it."""
    order: dict[str, object] = {
        "op": "run",
        "id": name,
        "command": command,
        "cwd": None,
        "env": {},
        "stdin": False,
        "terminal": None,
        "timeout_s": None,
        "idle_timeout_s": None,
        "send_limit": 1 << 20,
        "spill": 1 << 20,
        "report_shell": False,
    }
    return order | changes


class RawClient:
    """A client of a real runner that works frame by frame.

    `changes`: replacements in the source of the runner, each of the same length.
    """

    def __init__(
        self,
        settings: RunnerSettings | None = None,
        *,
        env: Mapping[str, str] | None = None,
        changes: Mapping[str, str] | None = None,
    ) -> None:
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed on leaving
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(PATIENCE_S)
        self._decoder = frames.Decoder()
        self._frames: list[Frame] = []
        with theirs:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                python_argv(sys.executable),
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._stderr.fileno(),
                env=dict(default_environment() if env is None else env),
                cwd="/",
                start_new_session=True,
            )
        greeting = self._socket.recv(200)
        while not greeting.endswith(b"\n"):
            greeting += self._socket.recv(200)
        found = GREETING.fullmatch(greeting)
        assert found is not None
        magic = bytes.fromhex(found[1].decode())
        if changes is not None:  # Another Python's magic number makes `delivery` send source.
            magic = bytes(4)
        message = delivery(settings or RunnerSettings(), magic)[10:]
        for old, new in (changes or {}).items():
            assert message.count(old.encode()) == 1
            assert len(old) == len(new)
            message = message.replace(old.encode(), new.encode())
        self._socket.sendall(b"%010d" % len(message) + message)

    def __enter__(self) -> "RawClient":
        kind, number, _ = self.expect()
        assert (kind, number) == (frames.HELLO, 0)
        return self

    def __exit__(self, *_error: object) -> None:
        self.leave()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(PATIENCE_S)
        self.process.kill()
        self.process.wait()
        self._stderr.close()

    def leave(self) -> None:
        self._socket.close()

    def complaints(self) -> bytes:
        """Return the runner's stderr, which has a traceback if the runner failed."""
        return os.pread(self._stderr.fileno(), 100_000, 0)

    def send_bytes(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send(self, kind: int, number: int, body: bytes = b"") -> None:
        self.send_bytes(frames.frame(kind, number, body))

    def order(self, number: int, order: object) -> None:
        self.send(frames.REQUEST, number, json.dumps(order).encode())

    def receive(self) -> Frame | None:
        """Return the next frame, or None if the runner has closed the stream."""
        while not self._frames:
            try:
                data = self._socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                return None
            self._frames += self._decoder.feed(data)
        return self._frames.pop(0)

    def expect(self) -> Frame:
        frame = self.receive()
        assert frame is not None, "the runner has closed the stream"
        return frame

    def answer(self, number: int) -> dict[str, Any]:
        """Return the answer to a request. Drops other frames."""
        while True:
            kind, found, body = self.expect()
            if (kind, found) == (frames.ANSWER, number):
                answer = json.loads(body)
                assert isinstance(answer, dict)
                return answer

    def ask(self, number: int, order: object) -> dict[str, Any]:
        self.order(number, order)
        return self.answer(number)

    def answers(self, count: int) -> dict[int, dict[str, Any]]:
        """Return `count` answers to any requests."""
        found: dict[int, dict[str, Any]] = {}
        while len(found) < count:
            kind, number, body = self.expect()
            if kind == frames.ANSWER:
                found[number] = json.loads(body)
        return found

    def until_closed(self) -> None:
        """Read until the runner closes the stream."""
        while self.receive() is not None:
            pass

    def wait_until_gone(self) -> int:
        """Wait until the runner has exited by itself."""
        code: int = self.process.wait(PATIENCE_S)
        return code


def is_alive(pid: int) -> bool:
    """Return whether the process is running. A zombie is not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def wait_until(holds: Callable[[], object]) -> None:
    """Poll until the condition is true, for a bounded time."""
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up, "it never happened"
        time.sleep(0.005)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
