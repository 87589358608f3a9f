"""The queue: each task once at a time, whoever dies; the same promises on SQLite and on Redis."""

import asyncio
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from kakoi.errors import ConfigurationError, QueueError
from kakoi.tasks.queue.api import Lease, QueueSize, TaskQueue, run_with_lease
from kakoi.tasks.queue.redis import RedisQueue
from kakoi.tasks.queue.sqlite import SqliteQueue
from tests.tasks.consumer import open_queue

pytestmark = pytest.mark.anyio
CONSUMER = Path(__file__).with_name("consumer.py")
WAIT_S = 60.0
LEASE_S = 5.0


def wait_until(true: Callable[[], object]) -> None:
    limit = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.02)


def answers(path: str) -> bool:
    with closing(socket.socket(socket.AF_UNIX)) as probe:
        return probe.connect_ex(path) == 0


@pytest.fixture(scope="module")
def redis_url() -> Iterator[str]:
    """A Redis of our own, without a port. In a folder with a short name: it has to fit a socket."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/redis"
        options = ["--port", "0", "--unixsocket", path, "--save", "", "--dir", folder]
        server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        try:
            wait_until(lambda: server.poll() is not None or answers(path))
            yield f"unix://{path}"
        finally:
            server.terminate()
            server.wait(WAIT_S)


@pytest.fixture(params=["sqlite", "redis"])
async def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "queue.db")
    url: str = request.getfixturevalue("redis_url")
    queue = RedisQueue(url)
    await queue._redis.flushall()
    await queue.aclose()
    return url


@pytest.fixture
async def queue(address: str) -> AsyncIterator[TaskQueue]:
    opened = open_queue(address, LEASE_S)
    yield opened
    await opened.aclose()


async def taken(queue: TaskQueue) -> Lease:
    lease = await queue.take()
    assert lease is not None
    return lease


# --- One process -----------------------------------------------------------------------------


async def test_tasks_are_taken_in_their_order_and_each_by_one(queue: TaskQueue) -> None:
    for key in ("b", "a", "c"):
        assert await queue.put(key)
    first, second = await taken(queue), await taken(queue)
    assert (first.key, second.key, first.attempt) == ("b", "a", 1)
    assert await queue.size() == QueueSize(1, 2)
    assert (await taken(queue)).key == "c"
    assert await queue.take() is None


async def test_a_task_that_waits_or_is_being_done_is_not_queued_again(queue: TaskQueue) -> None:
    assert await queue.put("a")
    assert not await queue.put("a")
    lease = await taken(queue)
    assert not await queue.put("a")
    await queue.done(lease)
    assert await queue.size() == QueueSize(0, 0)
    assert await queue.put("a")
    assert (await taken(queue)).attempt == 1


async def test_what_is_given_back_waits_behind_the_others(queue: TaskQueue) -> None:
    await queue.put("a")
    await queue.put("b")
    await queue.give_back(await taken(queue))
    assert (await taken(queue)).key == "b"
    again = await taken(queue)
    assert (again.key, again.attempt) == ("a", 2)


async def test_one_may_be_taken_out_of_its_turn_and_by_one_only(queue: TaskQueue) -> None:
    for key in ("a", "b", "c"):
        await queue.put(key)
    lease = await queue.take("b")
    assert lease is not None
    assert (lease.key, lease.attempt) == ("b", 1)
    assert await queue.take("b") is None
    assert await queue.size() == QueueSize(2, 1)
    assert (await taken(queue)).key == "a"
    await queue.give_back(lease)
    again = await queue.take("b")
    assert again is not None
    assert again.attempt == 2
    await queue.done(again)
    assert await queue.take("b") is None
    assert (await taken(queue)).key == "c"


async def test_what_is_not_queued_cannot_be_taken_and_leaves_no_trace(queue: TaskQueue) -> None:
    assert await queue.take("nobody-knows-it") is None
    assert await queue.size() == QueueSize(0, 0)
    assert await queue.put("nobody-knows-it")
    lease = await queue.take("nobody-knows-it")
    assert lease is not None
    assert lease.attempt == 1


async def test_many_who_want_the_same_task_are_told_no_but_one(queue: TaskQueue) -> None:
    await queue.put("a")
    found = await asyncio.gather(*(queue.take("a") for _ in range(50)))
    assert len([lease for lease in found if lease]) == 1


async def test_a_lease_that_is_over_does_nothing(queue: TaskQueue) -> None:
    await queue.put("a")
    old = await taken(queue)
    await queue.give_back(old)
    new = await taken(queue)
    for late in (queue.renew, queue.done, queue.give_back):
        with pytest.raises(QueueError, match="another consumer may have") as caught:
            await late(old)
        assert caught.value.details == {"lost": True}
    await queue.renew(new)
    await queue.done(new)
    with pytest.raises(QueueError, match="another consumer may have"):
        await queue.done(new)


async def test_a_hundred_takers_at_once_get_a_task_each(queue: TaskQueue) -> None:
    for number in range(20):
        await queue.put(f"task/{number}")
    found = await asyncio.gather(*(queue.take() for _ in range(100)))
    keys = [lease.key for lease in found if lease]
    assert sorted(keys) == sorted(f"task/{number}" for number in range(20))


@pytest.mark.parametrize("key", ["", "a b", "a\n", "x" * 2001, "a\0b"])
async def test_what_cannot_be_a_key_is_refused(queue: TaskQueue, key: str) -> None:
    with pytest.raises(ConfigurationError, match="invalid task key"):
        await queue.put(key)


async def test_keys_of_strangers_are_data(queue: TaskQueue) -> None:
    odd = ["'); DROP TABLE tasks; --".replace(" ", "_"), "*", "{x}", "\u202e", "日本"]
    for key in odd:
        await queue.put(key)
    assert [(await taken(queue)).key for _ in odd] == odd


async def test_no_text_shows_the_token_of_a_lease(queue: TaskQueue) -> None:
    await queue.put("a")
    lease = await taken(queue)
    assert lease.token not in repr(lease)


# --- Leases run out --------------------------------------------------------------------------


async def test_a_lease_runs_out_and_the_next_one_takes_the_task(tmp_path: Path) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    queue = SqliteQueue(tmp_path / "q", clock=lambda: now, lease_s=10)
    await queue.put("a")
    old = await taken(queue)
    now += timedelta(seconds=9)
    await queue.renew(old)
    now += timedelta(seconds=9)
    assert await queue.take() is None
    now += timedelta(seconds=1)
    assert await queue.size() == QueueSize(1, 0)
    new = await taken(queue)
    assert new.attempt == 2
    with pytest.raises(QueueError, match="another consumer may have"):
        await queue.done(old)
    await queue.done(new)


async def test_a_lease_that_nobody_took_over_can_be_renewed_late(tmp_path: Path) -> None:
    now = datetime(2026, 1, 2, tzinfo=UTC)
    queue = SqliteQueue(tmp_path / "q", clock=lambda: now, lease_s=10)
    await queue.put("a")
    lease = await taken(queue)
    now += timedelta(seconds=60)
    await queue.renew(lease)
    assert await queue.take() is None


@dataclass
class Fragile:
    """A queue whose renewals fail in turn as they are told to: True is lost, False a bad moment."""

    lease_s: float
    failures: list[bool]
    renewed: int = 0
    renewed_twice: asyncio.Event = field(default_factory=asyncio.Event)

    async def renew(self, lease: Lease) -> None:
        if self.failures:
            raise QueueError("no", details={"lost": True} if self.failures.pop(0) else {})
        self.renewed += 1
        if self.renewed == 2:
            self.renewed_twice.set()

    async def put(self, key: str) -> bool:
        return bool(key)

    async def take(self, key: str | None = None) -> Lease | None:
        return None

    async def done(self, lease: Lease) -> None: ...

    async def give_back(self, lease: Lease) -> None: ...

    async def size(self) -> QueueSize:
        return QueueSize(0, 0)

    async def aclose(self) -> None: ...


LEASE = Lease(key="a", attempt=1, token="x")


async def test_work_is_done_while_its_lease_is_renewed() -> None:
    queue = Fragile(0.3, [False])

    async def until_renewed() -> str:
        await queue.renewed_twice.wait()
        return "done"

    async with asyncio.timeout(WAIT_S):
        assert await run_with_lease(queue, LEASE, until_renewed()) == "done"
    assert queue.failures == []


@pytest.mark.parametrize("failures", [[True], [False] * 10_000])
async def test_work_whose_lease_is_lost_is_cancelled_first(failures: list[bool]) -> None:
    ended = False

    async def for_ever() -> None:
        nonlocal ended
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            ended = True

    async with asyncio.timeout(WAIT_S):
        with pytest.raises(QueueError):
            await run_with_lease(Fragile(0.3, failures), LEASE, for_ever())
    assert ended


async def test_an_error_of_the_work_is_the_error() -> None:
    async def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        await run_with_lease(Fragile(60, []), LEASE, fail())


@pytest.mark.parametrize("lease_s", [0, -1, 0.5, 1e9, float("nan")])
def test_a_lease_without_a_sensible_time_is_refused(lease_s: float, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the lease is"):
        SqliteQueue(tmp_path / "q", clock=lambda: datetime.now(UTC), lease_s=lease_s)


# --- Queues that cannot be used --------------------------------------------------------------


async def test_a_file_that_is_no_queue_is_told(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("hello " * 100)
    with closing(sqlite3.connect(tmp_path / "newer")) as made:
        made.execute("PRAGMA user_version = 99")
    for name in ("text", "newer", "gone/q"):
        with pytest.raises(QueueError, match=name):
            await open_queue(str(tmp_path / name), LEASE_S).put("a")


async def test_a_broker_that_is_not_there_is_told_without_its_password() -> None:
    queue = RedisQueue("redis://me:5up3r%2F53cr3t@127.0.0.1:1/0")
    with pytest.raises(QueueError, match="cannot use the queue") as caught:
        await queue.put("a")
    await queue.aclose()
    assert "53cr3t" not in str(caught.value) + caught.value.hint


@pytest.mark.parametrize("url", ["amqp://x:5up3r53cr3t@y", "x", "redis://h:port/0"])
def test_an_address_of_another_broker_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="invalid address") as caught:
        RedisQueue(url)
    assert "53cr3t" not in str(caught.value)


# --- Processes -------------------------------------------------------------------------------


@dataclass
class Consumers:
    address: str
    folder: Path

    def start(self) -> "subprocess.Popen[bytes]":
        log, locks = self.folder / "log", self.folder / "locks"
        locks.mkdir(exist_ok=True)
        command = [sys.executable, str(CONSUMER), self.address, str(LEASE_S), str(log), str(locks)]
        return subprocess.Popen(command, stdin=subprocess.PIPE)

    def log(self) -> list[list[str]]:
        path = self.folder / "log"
        return [line.split() for line in path.read_text().splitlines()] if path.exists() else []

    def saw(self, event: str, pid: int, key: str) -> bool:
        return [event, str(pid), key] in self.log()


@pytest.mark.slow("waits until a lease has run out")
async def test_two_consumers_and_one_is_killed(
    address: str, queue: TaskQueue, tmp_path: Path
) -> None:
    """Every task is worked on by one at a time; that of the killed one is given back and done."""
    await queue.put("task/slow")
    consumers = Consumers(address, tmp_path)
    victim = consumers.start()
    survivor: subprocess.Popen[bytes] | None = None
    try:
        wait_until(lambda: consumers.saw("begin", victim.pid, "task/slow"))
        keys = [f"task/{number}" for number in range(20)]
        for key in keys:
            await queue.put(key)
        survivor = consumers.start()
        wait_until(lambda: Counter(e for e, _, _ in consumers.log())["end"] == len(keys))
        # Longer than a lease without renewals would last: it is kept.
        await asyncio.sleep(LEASE_S * 1.5)
        assert await queue.size() == QueueSize(0, 1)
        assert not consumers.saw("begin", survivor.pid, "task/slow")
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait(WAIT_S)
        wait_until(lambda: consumers.saw("begin", survivor.pid, "task/slow"))
        assert survivor.stdin
        survivor.stdin.close()
        assert survivor.wait(WAIT_S) == 0
    finally:
        for process in (victim, survivor):
            if process is not None:
                process.kill()
                process.wait(WAIT_S)
                if process.stdin:
                    process.stdin.close()
    events = Counter((event, key) for event, _, key in consumers.log())
    assert {key for event, key in events if event == "overlap"} == set()
    assert all(events["begin", key] == events["end", key] == 1 for key in keys)
    assert (events["begin", "task/slow"], events["end", "task/slow"]) == (2, 1)
    assert await queue.size() == QueueSize(0, 0)
