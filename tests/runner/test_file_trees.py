"""Trees and watches inside the sandbox: whatever is swapped, deep or large, and nobody waits."""

import asyncio
import contextlib
import errno
import os
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from kakoi.channel.api import MIB, Command
from kakoi.channel.delivery import RunnerSettings
from kakoi.channel.runner_channel import RunnerChannel, open_channel
from kakoi.process.options import default_environment
from kakoi.results import Reason
from kakoi.runner import file_trees, file_watch
from tests.runner.conftest import (
    RawClient,
    host_launch,
    is_alive,
    run_order,
    soon,
    until,
    wait_until,
)

in_a_loop = pytest.mark.usefixtures("nothing_leaks")


def exhaust(work: "file_trees.Work") -> list[list[object]]:
    return [step for step in work if isinstance(step, list)]


def names(path: Path, depth: int = 99, limit: int = 10_000) -> list[object]:
    return [entry[1] for entry in exhaust(file_trees.listing(str(path), depth, limit))]


def deep_tree(root: Path, levels: int) -> None:
    """Make a chain of directories that is longer than any path can be."""
    fd = os.open(root, os.O_PATH)
    for _ in range(levels):
        os.mkdir("dd", dir_fd=fd)
        below = os.open("dd", os.O_PATH, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)


# --- Links that are swapped in ---------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A directory outside of the tree, which must survive."""
    kept = tmp_path / "kept"
    (kept / "sub").mkdir(parents=True)
    (kept / "file").write_text("mine")
    (kept / "sub" / "file").write_text("mine")
    return kept


def test_a_removal_does_not_follow_a_link_that_took_the_place_of_a_directory(
    tmp_path: Path, kept: Path
) -> None:
    """At every step of the removal, each directory is replaced by a link to what must survive."""
    for step in range(12):
        tree = tmp_path / "tree"
        for path in ("a/b/c", "a/d", "e"):
            (tree / path).mkdir(parents=True)
            (tree / path / "file").write_text("x")
        work = file_trees.removal(str(tree), recursive=True)
        for _ in range(step):
            next(work, None)
        for path in ("a/b/c", "a/b", "a/d", "a", "e"):
            if (tree / path).is_dir() and not (tree / path).is_symlink():
                (tree / path).rename(tmp_path / f"away-{step}-{path.replace('/', '-')}")
                (tree / path).symlink_to(kept)
        with contextlib.suppress(OSError):  # It has noticed that something is going on.
            exhaust(work)
        with contextlib.suppress(FileNotFoundError):
            exhaust(file_trees.removal(str(tree), recursive=True))
        assert not os.path.lexists(tree)
        assert sorted(os.listdir(kept)) == ["file", "sub"]
        assert os.listdir(kept / "sub") == ["file"]


def test_a_listing_does_not_follow_a_link_that_took_the_place_of_a_directory(
    tmp_path: Path, kept: Path
) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "inside").write_text("x")
    work = file_trees.listing(str(tree), 9, 99)
    first = next(step for step in work if isinstance(step, list))
    assert first[1:3] == ["a", "directory"]
    (tree / "a").rename(tmp_path / "away")
    (tree / "a").symlink_to(kept)
    assert exhaust(work) == []


def test_a_removal_takes_what_others_add_meanwhile(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a").mkdir(parents=True)
    (tree / "a" / "old").write_text("x")
    work = file_trees.removal(str(tree), recursive=True)
    for number, _ in enumerate(work):
        if number < 5 and (tree / "a").is_dir():
            (tree / "a" / f"new-{number}").write_text("x")
    assert not tree.exists()


# --- Depth and size --------------------------------------------------------------------------


@in_a_loop
@pytest.mark.anyio
async def test_a_tree_deeper_than_a_path_can_be_is_removed(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    (tmp_path / "deep").mkdir()
    deep_tree(tmp_path / "deep", 1500)
    found = await channel.list_files(str(tmp_path / "deep"), depth=100)
    assert len(found) == 100
    assert found[-1].path == str(tmp_path / "deep") + "/dd" * 100
    with pytest.raises(OSError, match="deeper than the longest path") as failure:
        await channel.list_files(str(tmp_path / "deep"), depth=10_000)
    assert failure.value.errno == errno.ENAMETOOLONG
    await soon(channel.remove_file(str(tmp_path / "deep"), recursive=True))
    assert not (tmp_path / "deep").exists()


def test_more_subdirectories_than_one_pass_takes_are_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for number in range(700):
        (tree / str(number) / "x").mkdir(parents=True)
    exhaust(file_trees.removal(str(tree), recursive=True))
    assert not tree.exists()


def test_no_more_directories_are_open_than_a_few(tmp_path: Path) -> None:
    deep_tree(tmp_path, 300)
    before = len(os.listdir("/proc/self/fd"))
    most = 0
    for _ in file_trees.removal(str(tmp_path / "dd"), recursive=True):
        most = max(most, len(os.listdir("/proc/self/fd")))
    assert most - before < 50
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_tree_that_is_given_up_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    before = os.listdir("/proc/self/fd")
    for work in (
        file_trees.listing(str(tmp_path), 9, 99),
        file_trees.removal(str(tmp_path / "a"), recursive=True),
        file_watch.watching(str(tmp_path), recursive=True),
    ):
        next(work)
        work.close()
    assert os.listdir("/proc/self/fd") == before


def test_names_are_sorted_across_runs(tmp_path: Path) -> None:
    for number in range(9000):
        os.mknod(tmp_path / str(number))
    assert names(tmp_path) == sorted(map(str, range(9000)))
    with pytest.raises(OSError, match="more than 8999"):
        names(tmp_path, limit=8999)


@in_a_loop
@pytest.mark.anyio
async def test_commands_are_served_while_a_large_tree_is_listed_and_removed(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    many = tmp_path / "many"
    many.mkdir()
    for number in range(20_000):
        os.mknod(many / str(number))
    for work in (
        channel.list_files(str(many), limit=20_000),
        channel.remove_file(str(many), recursive=True),
    ):
        working = asyncio.ensure_future(work)
        served = 0
        while not working.done():
            assert (await soon(channel.run(Command(command=["true"])))).ok
            served += 1
        await working
        assert served > 1
    assert not many.exists()


@in_a_loop
@pytest.mark.anyio
async def test_a_removal_that_is_called_off_stops(channel: RunnerChannel, tmp_path: Path) -> None:
    many = tmp_path / "many"
    many.mkdir()
    for number in range(20_000):
        os.mknod(many / str(number))
    working = asyncio.ensure_future(channel.remove_file(str(many), recursive=True))
    await until(lambda: len(os.listdir(many)) < 20_000)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    await channel.stat_file(str(many))  # The runner answers in order: it has stopped by now.
    left = len(os.listdir(many))
    await channel.run(Command(command=["true"]))
    assert len(os.listdir(many)) == left > 0


@in_a_loop
@pytest.mark.anyio
async def test_a_listing_waits_for_its_reader() -> None:
    """The runner sends no more than a window without credit, and goes on when it gets more."""
    with RawClient() as client:
        client.order(1, {"op": "list_files", "path": "/usr", "depth": 9, "limit": 10**6})
        received = 0
        while received < MIB - 100_000:
            received += len(client.expect()[2])
        client.order(2, {"op": "ping"})
        _, number, body = client.expect()
        while number == 1:
            received += len(body)
            _, number, body = client.expect()
        assert received <= MIB


# --- Watches ---------------------------------------------------------------------------------


def begin(path: Path, *, recursive: bool = False) -> "file_trees.Work":
    work = file_watch.watching(str(path), recursive=recursive)
    while not isinstance(next(work), int):
        pass
    return work


def test_a_watch_that_lost_events_says_so(tmp_path: Path) -> None:
    limit = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    work = begin(tmp_path)
    for number in range(limit + 100):
        os.mknod(tmp_path / str(number))
    with pytest.raises(OSError, match="events were lost") as failure:
        exhaust(work)
    assert failure.value.errno == errno.EOVERFLOW


def test_a_watch_does_not_leave_by_a_link(tmp_path: Path, kept: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    work = begin(tree, recursive=True)
    (tree / "link").symlink_to(kept)
    (kept / "file").write_text("changed")
    (tree / "end").mkdir()
    seen = []
    for step in work:
        if isinstance(step, list):
            seen.append(step)
        if step == ["created", "end"]:
            break
    work.close()
    assert seen == [["created", "link"], ["created", "end"]]


def test_many_writes_are_reported_once_until_they_are_read(tmp_path: Path) -> None:
    with (tmp_path / "log").open("wb", buffering=0) as log:
        work = begin(tmp_path)
        for _ in range(50):
            log.write(b"x")
        (tmp_path / "end").mkdir()
        seen = []
        while ["created", "end"] not in seen:
            step = next(work)
            if isinstance(step, list):
                seen.append(step)
        work.close()
    assert seen == [["written", "log"], ["created", "end"]]


@in_a_loop
@pytest.mark.anyio
async def test_a_watch_that_is_left_costs_nothing(channel: RunnerChannel, tmp_path: Path) -> None:
    for _ in range(200):  # More than a user may have at once.
        async with channel.watch_files(str(tmp_path), recursive=True):
            pass
    async with channel.watch_files(str(tmp_path)) as events:
        (tmp_path / "file").write_text("x")
        assert (await soon(anext(aiter(events)))).path == str(tmp_path / "file")


# --- Streams ---------------------------------------------------------------------------------


@in_a_loop
@pytest.mark.anyio
async def test_a_stream_that_fails_over_there_ends_the_source(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    given = 0

    async def endless() -> AsyncGenerator[bytes, None]:
        nonlocal given
        while True:
            given += MIB
            yield bytes(MIB)

    (tmp_path / "folder").mkdir()
    source = endless()
    with pytest.raises(IsADirectoryError):
        await soon(channel.write_file(str(tmp_path / "folder"), source))
    await source.aclose()
    assert given < 64 * MIB
    assert os.listdir(tmp_path) == ["folder"]


@in_a_loop
@pytest.mark.anyio
async def test_a_stream_is_sparse_gigabytes_long_and_read_in_parts(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as huge:
        huge.truncate(10 * 1024 * MIB)
        huge.seek(10 * 1024 * MIB - 3)
        huge.write(b"end")
    assert (await channel.stat_file(str(path))).size == 10 * 1024 * MIB
    tail = [part async for part in channel.stream_file(str(path), offset=10 * 1024 * MIB - 5)]
    assert b"".join(tail) == b"\0\0end"
    stream = channel.stream_file(str(path))
    largest = 0
    for _ in range(20):
        largest = max(largest, len(await anext(stream)))
    await stream.aclose()
    assert 0 < largest <= MIB


# --- A runner's lifetime ---------------------------------------------------------------------


@in_a_loop
@pytest.mark.anyio
async def test_a_runner_ends_everything_after_its_lifetime(
    tmp_path: Path,
) -> None:
    channel = await open_channel(host_launch(tmp_path), RunnerSettings(lifetime_s=0.5))
    try:
        pid_file = tmp_path / "pid"
        text = f"(setsid sh -c 'echo $$ >{pid_file}; exec sleep 300' &); sleep 300"
        result = await soon(channel.run(Command(command=text)))
        assert not is_alive(int(pid_file.read_text()))
        assert result.reason is Reason.SANDBOX_LOST
        assert "lifetime has ended" in result.error
    finally:
        await channel.close()


def test_a_runner_that_waits_for_clients_ends_its_jobs_after_its_lifetime(tmp_path: Path) -> None:
    env = {**default_environment(), "TMPDIR": str(tmp_path)}
    pid_file = tmp_path / "pid"
    with RawClient(RunnerSettings(linger=True, lifetime_s=1.0), env=env) as client:
        text = f"echo $$ >{pid_file}; exec sleep 300"
        client.ask(1, run_order("j", text, background=True))
        wait_until(lambda: pid_file.exists() and pid_file.read_text())
        client.leave()
        assert client.wait_until_gone() == 0
        assert not is_alive(int(pid_file.read_text()))
