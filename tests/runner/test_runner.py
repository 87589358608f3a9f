"""The runner on this machine: whatever a command does to it, it ends as promised and leaks nothing."""

import asyncio
import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.backends.host.adapter import HostAdapter
from kakoi.channel.api import Command, RunningCommand, TerminalSize
from kakoi.channel.delivery import RunnerSettings
from kakoi.channel.output_buffer import OutputBuffer
from kakoi.channel.runner_channel import RunnerChannel, open_channel
from kakoi.channel.runner_stream import RunnerTimeouts
from kakoi.errors import ConfigurationError, ExecutionError
from kakoi.process.options import default_environment
from kakoi.process.stream import ProcessStream
from kakoi.results import ExecutionResult, Reason
from kakoi.runner import frames
from kakoi.runner.jobs import RunnerJob
from kakoi.runner.loop import Loop
from kakoi.runner.memory import OomScores
from kakoi.runner.resident_keeper import END, SIGNAL, CommandRecord, Keeper, KeeperOptions
from kakoi.runner.spool import MEMORY_BYTES, Spool
from kakoi.runner.streams import CommandOutput, ReadBuffer
from tests.process.trees import PRELUDE, TREES, Witness, client_environment, tree_argv
from tests.runner.conftest import (
    PATIENCE_S,
    RawClient,
    host_launch,
    is_alive,
    run_order,
    soon,
    until,
)

in_a_loop = pytest.mark.usefixtures("nothing_leaks")
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="nobody else may look into the runner")
MIB = 1024 * 1024


@pytest.fixture
async def adapter(tmp_path: Path) -> AsyncIterator[HostAdapter]:
    adapter = HostAdapter(tmp_path, warn_on_start=False)
    try:
        yield adapter
    finally:
        await soon(adapter.cleanup())


def python(program: str, *arguments: object) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program, *map(str, arguments)]


async def run(
    channel: RunnerChannel, command: str | list[str], **options: object
) -> ExecutionResult:
    return await soon(channel.run(Command(command=command, **options)))  # type: ignore[arg-type]


async def up(witness: Witness, count: int) -> None:
    await asyncio.to_thread(witness.wait_until_announced, count)


# --- Trees that do not want to end -----------------------------------------------------------


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("kind", TREES)
async def test_what_a_command_leaves_behind_is_dead_when_it_has_exited(
    channel: RunnerChannel, witness: Witness, kind: str
) -> None:
    result = await run(channel, tree_argv(kind, witness.pipe, then="os._exit(7)"))
    assert not witness.anybody_alive()
    assert (result.reason, result.exit_code) == (Reason.EXITED, 7)
    assert len(witness.announced) >= TREES[kind][0] + 1
    assert result.leftovers_ended >= 1


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["a bomb that keeps forking", "daemons", "stopped"])
async def test_everything_is_dead_when_a_cancellation_arrives(
    channel: RunnerChannel, witness: Witness, kind: str
) -> None:
    task = asyncio.create_task(run(channel, tree_argv(kind, witness.pipe, then="stay()")))
    await up(witness, TREES[kind][0] + 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert not witness.anybody_alive()
    assert (await run(channel, "echo next")).stdout == "next\n"


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("kind", ["comets that leave their session", "deaf to signals"])
async def test_everything_is_dead_when_the_time_is_up(
    channel: RunnerChannel, witness: Witness, kind: str
) -> None:
    argv = tree_argv(kind, witness.pipe, then="stay()")
    for timeout_s in (0.5, 2.0, 8.0):  # A busy machine may need more than a moment to get there.
        witness.announced.clear()
        result = await run(channel, argv, timeout_s=timeout_s)
        assert result.reason is Reason.TIMED_OUT
        assert not witness.anybody_alive()
        if len(witness.announced) > TREES[kind][0]:
            return
    pytest.fail("the tree never grew")


@in_a_loop
@pytest.mark.anyio
async def test_everything_is_dead_when_the_channel_is_closed(
    tmp_path: Path, witness: Witness
) -> None:
    channel = await open_channel(host_launch(tmp_path), RunnerSettings())
    argv = tree_argv("daemons", witness.pipe, then="stay()")
    waiting = asyncio.create_task(channel.run(Command(command=argv)))
    await up(witness, 21)
    await soon(channel.close())
    assert not witness.anybody_alive()
    assert (await soon(waiting)).reason is Reason.SANDBOX_LOST


CLIENT = """
import asyncio, sys
from kakoi.channel.api import Command
from kakoi.backends.host.adapter import HostAdapter

async def main():
    adapter = HostAdapter(warn_on_start=False)
    await adapter.run(Command(command=sys.argv[1:]))

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["daemons", "deaf to signals", "stopped"])
def test_everything_is_dead_when_our_own_process_is_killed(witness: Witness, kind: str) -> None:
    argv = tree_argv(kind, witness.pipe, then="stay()")
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, *argv], env=client_environment(), start_new_session=True
    )
    try:
        witness.wait_until_announced(TREES[kind][0] + 1)
        process.kill()
        process.wait()
        witness.wait_until_nobody_is_alive()
    finally:
        process.kill()
        process.wait()


# --- Commands that turn on their keeper, and on the runner -----------------------------------

# Nobody is looked for: what is hit must be ours for certain.
KEEPER = """
keeper, runner = os.getppid(), int(sys.argv[2])
with open(f"/proc/{keeper}/stat") as file:
    assert int(file.read().rpartition(")")[2].split()[1]) == runner
"""
DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    up(); stay()
wait_for_all(1)
"""


@in_a_loop
@pytest.mark.anyio
async def test_a_command_that_kills_its_keeper_has_not_escaped(
    channel: RunnerChannel, witness: Witness
) -> None:
    program = PRELUDE + DAEMON + KEEPER + "up(); os.kill(keeper, signal.SIGKILL); stay()"
    result = await run(channel, python(program, witness.pipe, runner_of(channel)))
    assert not witness.anybody_alive()
    assert len(witness.announced) == 2
    assert (result.reason, result.exit_code) == (Reason.SANDBOX_LOST, 125)
    assert "killed its keeper" in result.error
    assert not channel.lost
    assert (await run(channel, "echo next")).stdout == "next\n"


STOP_THE_KEEPER = PRELUDE + DAEMON + KEEPER + "os.kill(keeper, signal.SIGSTOP); up(); stay()"


@in_a_loop
@pytest.mark.anyio
async def test_a_command_that_stops_its_keeper_is_ended_when_it_is_cancelled(
    channel: RunnerChannel, witness: Witness
) -> None:
    argv = python(STOP_THE_KEEPER, witness.pipe, runner_of(channel))
    task = asyncio.create_task(run(channel, argv))
    await up(witness, 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert not witness.anybody_alive()
    assert (await run(channel, "echo next")).stdout == "next\n"


@in_a_loop
@pytest.mark.anyio
async def test_a_command_that_stops_its_keeper_is_ended_when_its_time_is_up(
    channel: RunnerChannel, witness: Witness
) -> None:
    argv = python(STOP_THE_KEEPER, witness.pipe, runner_of(channel))
    for timeout_s in (0.5, 2.0, 8.0):  # A busy machine may need more than a moment to get there.
        witness.announced.clear()
        assert (await run(channel, argv, timeout_s=timeout_s)).reason is Reason.TIMED_OUT
        assert not witness.anybody_alive()
        if len(witness.announced) == 2:
            break
    assert len(witness.announced) == 2
    assert (await run(channel, "echo next")).stdout == "next\n"


@in_a_loop
@pytest.mark.anyio
async def test_a_command_that_kills_the_runner_takes_nobody_else_along_for_long(
    adapter: HostAdapter, witness: Witness
) -> None:
    channel = await adapter.channel()
    assert isinstance(channel, RunnerChannel)
    bystander = asyncio.create_task(adapter.run(Command(command="sleep 300")))
    program = PRELUDE + DAEMON + KEEPER + "up(); os.kill(runner, signal.SIGKILL); stay()"
    argv = python(program, witness.pipe, runner_of(channel))
    result = await soon(adapter.run(Command(command=argv)))
    assert not witness.anybody_alive()
    assert result.reason is Reason.SANDBOX_LOST
    assert (await soon(bystander)).reason is Reason.SANDBOX_LOST
    assert (await soon(adapter.run(Command(command="echo next")))).stdout == "next\n"


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("limit_s", [0.5, None])
async def test_a_command_that_stops_the_runner_loses_the_sandbox_and_everything_is_dead(
    witness: Witness, limit_s: float | None
) -> None:
    timeouts = RunnerTimeouts(silence_s=0.5, grace_s=0.5)
    channel = await open_channel(host_launch(), RunnerSettings(), ProcessStream, timeouts)
    try:
        program = PRELUDE + DAEMON + KEEPER + "up(); os.kill(runner, signal.SIGSTOP); stay()"
        argv = python(program, witness.pipe, runner_of(channel))
        result = await run(channel, argv, timeout_s=limit_s)
        assert result.reason is Reason.SANDBOX_LOST
        assert not witness.anybody_alive()
    finally:
        await soon(channel.close())


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_what_somebody_does_to_idle_keepers_does_not_last(
    channel: RunnerChannel, number: signal.Signals
) -> None:
    """They wait for the next command; one that cannot take it any more is done without."""
    await asyncio.gather(*(run(channel, f"sleep 0.1; echo {n}") for n in range(5)))
    keepers = children_of(runner_of(channel))
    assert len(keepers) >= 5
    for pid in keepers:
        os.kill(pid, number)
    results = await asyncio.gather(
        *(run(channel, f"echo {n}", timeout_s=0.5, id=f"try{n}") for n in range(8))
    )
    assert {result.reason for result in results} <= {
        Reason.EXITED,
        Reason.TIMED_OUT,
        Reason.SANDBOX_LOST,
        Reason.NEVER_STARTED,
    }
    results = await asyncio.gather(*(run(channel, f"echo {n}") for n in range(8)))
    assert [result.stdout for result in results] == [f"{n}\n" for n in range(8)]
    assert not channel.lost


def test_a_word_that_comes_too_late_is_not_taken_for_the_next_command() -> None:
    """A signal, or the word to end, may arrive when the command has just ended by itself."""
    with RawClient() as client:
        for turn in range(60):
            client.order(1, run_order(f"x{turn}", ["true"]))
            for number in range(2, 12):
                order = {"op": "signal", "id": f"x{turn}", "number": signal.SIGWINCH}
                client.order(number, order)
            client.send(frames.CANCEL, 1)
            kinds = client.answers(11)[1]["kind"]
            assert kinds in ("exited", "cancelled")
        assert client.complaints() == b""


@in_a_loop
@pytest.mark.anyio
async def test_a_command_that_is_cancelled_while_it_ends_harms_no_other(
    channel: RunnerChannel,
) -> None:
    for turn in range(40):
        task = asyncio.create_task(channel.run(Command(command=["true"])))
        await asyncio.wait([task], timeout=turn * 0.0001)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() or task.result().ok
    assert (await run(channel, "echo next")).stdout == "next\n"


def test_what_is_meant_for_a_command_that_has_ended_harms_not_the_next_one() -> None:
    """Its keeper is told to signal or to end it, and has no command at that moment."""
    scores = OomScores()
    keeper = Keeper(KeeperOptions({}, scores))
    os.close(scores._own)
    null = os.open(os.devnull, os.O_RDWR)
    try:
        for _ in range(2):
            for late in (SIGNAL + bytes([signal.SIGKILL]), END, SIGNAL + bytes([signal.SIGTERM])):
                keeper.send(late)
            keeper.start(([b"/bin/sh", b"-c", b"exit 7"], {}, "/", False, ""), [null] * 3)
            assert select.select([keeper], [], [], PATIENCE_S)[0]
            record = keeper.record()
            assert (record.kind, record.number) == ("exited", 7)
    finally:
        os.close(null)
        keeper.close()
        keeper.wait()


# --- Output ------------------------------------------------------------------------------------


@in_a_loop
@pytest.mark.anyio
async def test_a_pipe_that_somebody_else_holds_is_not_waited_for(
    channel: RunnerChannel, witness: Witness
) -> None:
    program = PRELUDE + DAEMON + "os.write(1, b'done'); os._exit(0)"
    result = await run(channel, python(program, witness.pipe))
    assert (result.stdout, result.exit_code) == ("done", 0)
    assert not witness.anybody_alive()


@in_a_loop
@pytest.mark.anyio
async def test_a_stranger_who_holds_the_output_does_not_hold_the_result(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    """Nobody ends the stranger: the pipe has no end when the command has one."""
    for name in ("pid", "go"):
        os.mkfifo(tmp_path / name)
    script = "echo $$ > pid; read line < go; echo done"
    task = asyncio.create_task(run(channel, ["sh", "-c", script], cwd=str(tmp_path)))
    pid = (await soon(asyncio.to_thread((tmp_path / "pid").read_text))).strip()
    stranger = os.open(f"/proc/{pid}/fd/1", os.O_WRONLY)
    try:
        await soon(asyncio.to_thread((tmp_path / "go").write_text, "go\n"))
        result = await soon(task)
    finally:
        os.close(stranger)
    assert (result.stdout, result.exit_code) == ("done\n", 0)


def test_what_is_written_after_the_end_of_a_command_is_not_read() -> None:
    """Whoever holds its output and writes as fast as it is read would never let it end."""
    job = RunnerJob(Loop(), run_order("x", "true"), ReadBuffer(), lambda _job: None)
    reading, writing = os.pipe()
    job.outputs.append(CommandOutput(job, reading, frames.STDOUT, send_limit=0, spill_limit=0))
    left = 100

    def write_again() -> None:
        nonlocal left
        if left and job.answer is None:
            left -= 1
            os.write(writing, b"late")

    job.watchers.append(write_again)
    os.write(writing, b"in time")
    job.over(CommandRecord("exited", 0))
    os.close(writing)
    assert job.counts() == [len("in time"), 0]
    assert job.answer is not None


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("limit", [0, 10, MIB])
async def test_a_client_that_does_not_read_live_output_can_have_the_result(
    channel: RunnerChannel, limit: int
) -> None:
    command = Command(command="head -c 30000000 /dev/zero; echo end >&2", max_output_bytes=limit)
    async with channel.open(command) as running:
        result = await soon(running.result())
    assert (result.exit_code, result.stdout_bytes) == (0, 30_000_000)
    assert (len(result.stdout), result.stdout_truncated) == (limit, True)
    assert result.stderr == "end\n"[:limit]


async def first_part(running: RunningCommand) -> bytes:
    async for _stream, body in running.output():
        return body
    return b""


@in_a_loop
@pytest.mark.anyio
async def test_a_reader_that_has_had_enough_can_have_the_result(channel: RunnerChannel) -> None:
    async with channel.open(Command(command="head -c 30000000 /dev/zero")) as running:
        assert await soon(first_part(running))
        result = await soon(running.result())
    assert (result.exit_code, result.stdout_bytes) == (0, 30_000_000)


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("limit", [0, 10, MIB])
@pytest.mark.parametrize("parts", [0, 1])
async def test_a_reader_that_leaves_a_flood_ends_it(
    channel: RunnerChannel, limit: int, parts: int
) -> None:
    async with channel.open(Command(command="yes", max_output_bytes=limit)) as running:
        if parts:
            assert await soon(first_part(running))
        else:
            await until(lambda: unread(running) > MIB // 2)
    assert not channel.lost
    assert (await run(channel, "echo next")).stdout == "next\n"


def unread(running: RunningCommand) -> int:
    size: int = running._output_buffer.size  # type: ignore[attr-defined]
    return size


@in_a_loop
@pytest.mark.anyio
async def test_a_reader_that_stops_holds_the_command_back_and_our_memory_stays_flat(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    text = f"head -c 20000000 /dev/zero; touch {tmp_path}/written"
    async with channel.open(Command(command=text, spill_bytes=0)) as running:
        await until(lambda: unread(running) >= MIB - 65536)
        for _ in range(20):
            await asyncio.sleep(0.005)
            assert unread(running) <= frames.WINDOW
        assert not (tmp_path / "written").exists()
        seen = 0
        async for _stream, body in running.output():
            seen += len(body)
            assert unread(running) <= frames.WINDOW
        assert seen == 20_000_000
        assert (await soon(running.result())).stdout_bytes == seen
    assert (tmp_path / "written").exists()


@in_a_loop
@pytest.mark.anyio
async def test_a_reader_that_stops_beyond_the_time_limit_loses_nothing() -> None:
    """The runner keeps its word: the answer only waits for the output before it."""
    timeouts = RunnerTimeouts(grace_s=1.0)
    channel = await open_channel(host_launch(), RunnerSettings(), ProcessStream, timeouts)
    try:
        async with channel.open(Command(command="yes", timeout_s=0.2)) as running:
            await until(lambda: unread(running) > MIB // 2)
            await asyncio.sleep(1.5)  # Somebody reads very slowly.
            assert not channel.lost
            async for _ in running.output():
                pass
            assert (await soon(running.result())).reason is Reason.TIMED_OUT
    finally:
        await soon(channel.close())


@in_a_loop
@pytest.mark.anyio
async def test_a_command_that_is_held_back_by_its_reader_is_not_idle(
    channel: RunnerChannel,
) -> None:
    text = "head -c 5000000 /dev/zero"
    async with channel.open(Command(command=text, idle_timeout_s=1.0)) as running:
        await until(lambda: unread(running) > MIB // 2)
        await asyncio.sleep(1.5)  # Somebody reads very slowly.
        result = await soon(running.result())
    assert (result.reason, result.stdout_bytes) == (Reason.EXITED, 5_000_000)


class LeavingFollower:
    """Takes output until it has had enough, and is gone then: as a client whose stream breaks."""

    def __init__(self, job: RunnerJob) -> None:
        self._job = job
        self.answers: list[dict[str, Any]] = []

    def room(self) -> int:
        return 1 << 20

    def send(self, kind: int, body: bytes) -> None:
        self._job.follower = None
        self._job.has_room()

    def answer(self, answer: dict[str, Any]) -> None:
        self.answers.append(answer)


def test_a_follower_that_leaves_in_the_middle_of_the_last_output_gets_nothing_more() -> None:
    over: list[RunnerJob] = []
    job = RunnerJob(Loop(), run_order("x", "true"), ReadBuffer(), over.append)
    for kind in (frames.STDOUT, frames.STDERR):
        reading, writing = os.pipe()
        os.write(writing, bytes(65536))
        os.close(writing)
        job.outputs.append(CommandOutput(job, reading, kind, send_limit=1 << 20, spill_limit=0))
    follower = job.follower = LeavingFollower(job)
    job.over(CommandRecord("exited", 0))
    assert (over, follower.answers) == ([job], [])
    assert job.counts() == [65536, 65536]


@in_a_loop
@pytest.mark.anyio
async def test_two_floods_at_once_arrive_apart_and_complete(channel: RunnerChannel) -> None:
    text = (
        "head -c 3000000 /dev/zero | tr '\\0' o & head -c 3000000 /dev/zero | tr '\\0' e >&2; wait"
    )
    seen = {"stdout": b"", "stderr": b""}
    async with channel.open(Command(command=text)) as running:
        async for stream, body in running.output():
            seen[stream] += body
        assert (await soon(running.result())).ok
    assert seen == {"stdout": b"o" * 3_000_000, "stderr": b"e" * 3_000_000}


@in_a_loop
@pytest.mark.anyio
async def test_two_readers_of_one_command_share_its_output_and_both_end(
    channel: RunnerChannel,
) -> None:
    async def count(running: RunningCommand) -> int:
        return sum([len(body) async for _stream, body in running.output()])

    async with channel.open(Command(command="sleep 0.1; head -c 3000000 /dev/zero")) as running:
        counts = await soon(asyncio.gather(count(running), count(running)))
        assert (await soon(running.result())).ok
    assert sum(counts) == 3_000_000


@given(st.lists(st.tuples(st.sampled_from(["stdout", "stderr"]), st.sampled_from([1, 3, 5000]))))
def test_output_that_waits_keeps_its_order(
    parts: list[tuple[Literal["stdout", "stderr"], int]],
) -> None:
    unread = OutputBuffer(time.monotonic)
    sent = [(stream, os.urandom(size)) for stream, size in parts]
    for stream, body in sent:
        unread.put(stream, body)
    assert unread.size == sum(size for _, size in parts)
    taken = []
    while unread:
        taken.append(unread.take())
    assert [(s, byte) for s, body in taken for byte in body] == [
        (s, byte) for s, body in sent for byte in body
    ]
    assert unread.size == 0


def test_a_million_single_bytes_that_wait_are_not_a_million_things() -> None:
    for streams in (["stdout"], ["stdout", "stderr"]):
        unread = OutputBuffer(time.monotonic)
        for number in range(200_000):
            unread.put(streams[number % len(streams)], b"x")  # type: ignore[arg-type]
        assert unread.size == 200_000
        assert len(unread) < 1_100
        seen = {"stdout": 0, "stderr": 0}
        while unread:
            stream, body = unread.take()
            seen[stream] += len(body)
        assert sum(seen.values()) == 200_000


@in_a_loop
@pytest.mark.anyio
async def test_a_reader_that_is_cancelled_can_read_on(channel: RunnerChannel) -> None:
    async with channel.open(Command(command="read line; echo $line", stdin_open=True)) as running:
        reading = asyncio.create_task(first_part(running))
        await asyncio.wait([reading], timeout=0.05)
        reading.cancel()
        await asyncio.wait([reading])
        await running.write(b"late\n")
        assert [body async for _stream, body in running.output()] == [b"late\n"]


# --- Output that stays in the sandbox ----------------------------------------------------------


@in_a_loop
@pytest.mark.anyio
async def test_what_was_not_kept_can_be_read_by_offset(channel: RunnerChannel) -> None:
    text = "seq 1 200000; echo oops >&2"
    result = await run(channel, text, max_output_bytes=100)
    whole = "".join(f"{number}\n" for number in range(1, 200_001)).encode()
    assert result.stdout == whole[:100].decode()
    found = b""
    while True:
        part = await channel.read_output(result.id, "stdout", offset=len(found), limit=300_000)
        assert part.offset == len(found)
        found += part.data
        assert part.next_offset == len(found)
        if part.ended:
            break
    assert found == whole
    assert (await channel.read_output(result.id, "stderr")).data == b"oops\n"
    assert (await channel.read_output(result.id, "stdout", offset=10**9)).data == b""
    for offset, limit in ((-1, 10), (0, -1)):
        with pytest.raises((OSError, ConfigurationError)):
            await channel.read_output(result.id, "stdout", offset=offset, limit=limit)
    assert not channel.lost


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("spill", [0, 1000, 300_000])
async def test_no_more_stays_than_was_asked_for(channel: RunnerChannel, spill: int) -> None:
    text = "head -c 1000000 /dev/zero | tr '\\0' x"
    result = await run(channel, text, max_output_bytes=10, spill_bytes=spill)
    assert result.stdout_bytes == 1_000_000
    part = await channel.read_output(result.id, "stdout")
    assert part.data == b"x" * spill
    assert (part.ended, part.lost_bytes) == (True, 1_000_000 - spill)


@in_a_loop
@pytest.mark.anyio
async def test_without_a_folder_for_it_the_head_stays_in_memory(tmp_path: Path) -> None:
    env = {**default_environment(), "TMPDIR": str(tmp_path / "no-such-folder")}
    channel = await open_channel(host_launch(env=env), RunnerSettings())
    try:
        result = await run(channel, "head -c 1000000 /dev/zero", max_output_bytes=10)
        assert (result.exit_code, result.stdout_bytes) == (0, 1_000_000)
        part = await channel.read_output(result.id, "stdout")
        assert len(part.data) <= MEMORY_BYTES
        assert part.lost_bytes == 1_000_000 - len(part.data)
    finally:
        await soon(channel.close())


@contextlib.contextmanager
def no_file_bigger_than(size: int) -> Iterator[None]:
    """As on a disk that is full then. (Python ignores the signal that comes along.)"""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("room", [0, 1000, MEMORY_BYTES, 3 * MEMORY_BYTES])
def test_on_a_full_disk_what_is_stored_so_far_stays_readable(room: int) -> None:
    spool = Spool(10 * MEMORY_BYTES)
    chunk = os.urandom(MEMORY_BYTES // 2)
    with no_file_bigger_than(room):
        for _ in range(10):
            spool.append(chunk)
    assert spool.total == 10 * len(chunk)
    assert spool.stored >= MEMORY_BYTES
    assert spool.read(0, spool.stored) == (chunk * 10)[: spool.stored]
    spool.close()


# --- Input -----------------------------------------------------------------------------------


@in_a_loop
@pytest.mark.anyio
async def test_input_that_is_never_read_does_not_hold_the_command(channel: RunnerChannel) -> None:
    result = await run(channel, "sleep 0.1; exit 3", stdin=bytes(5_000_000))
    assert result.exit_code == 3


@in_a_loop
@pytest.mark.anyio
async def test_a_cancellation_in_the_middle_of_input_ends_the_command(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    text = f"echo $$ > {tmp_path}/pid; exec sleep 300"
    task = asyncio.create_task(run(channel, text, stdin=bytes(50_000_000)))
    await until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await soon(task)
    assert not is_alive(int((tmp_path / "pid").read_text()))


@in_a_loop
@pytest.mark.anyio
async def test_the_end_of_the_input_comes_after_all_of_it(channel: RunnerChannel) -> None:
    """Also when it is asked for before the first of it is sent."""
    command = Command(command="sleep 0.1; wc -c", stdin=bytes(5_000_000), stdin_open=True)
    async with channel.open(command) as running:
        await soon(running.close_stdin())
        assert (await soon(running.result())).stdout.strip() == "5000000"


@in_a_loop
@pytest.mark.anyio
async def test_writers_at_the_same_time_do_not_end_the_input(channel: RunnerChannel) -> None:
    async with channel.open(Command(command="sleep 0.1; wc -c", stdin_open=True)) as running:
        await soon(asyncio.gather(*(running.write(bytes(700_000)) for _ in range(8))))
        await running.close_stdin()
        assert (await soon(running.result())).stdout.strip() == "5600000"


@in_a_loop
@pytest.mark.anyio
async def test_a_job_that_is_over_before_it_could_be_given_its_input_was_started(
    channel: RunnerChannel,
) -> None:
    for _ in range(10):
        job = await channel.start(Command(command=["true"], stdin=bytes(1_000_000)))
        result = await soon(channel.wait_job(job))
        assert result is not None
        assert result.ok


# --- Terminals -------------------------------------------------------------------------------

TERMINAL = TerminalSize(24, 80)


async def read_until(parts: AsyncIterator[tuple[str, bytes]], wanted: bytes) -> bytes:
    seen = b""
    async with asyncio.timeout(PATIENCE_S):
        while wanted not in seen:
            seen += (await anext(parts))[1]
    return seen


@in_a_loop
@pytest.mark.anyio
async def test_a_terminal_controls_its_command(channel: RunnerChannel) -> None:
    text = "test -t 0 && test -t 1 && test -t 2 && echo word > /dev/tty && stty size"
    result = await run(channel, text, terminal=TERMINAL)
    assert (result.exit_code, result.stdout) == (0, "word\r\n24 80\r\n")


@in_a_loop
@pytest.mark.anyio
async def test_a_resized_terminal_notifies_its_command(channel: RunnerChannel) -> None:
    text = "trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"
    command = Command(command=text, terminal=TERMINAL, stdin_open=True)
    async with channel.open(command) as running:
        parts = running.output()
        await read_until(parts, b"ready")
        await running.resize(TerminalSize(50, 132))
        await read_until(parts, b"50 132")


@in_a_loop
@pytest.mark.anyio
async def test_control_c_interrupts_and_control_d_ends_the_input(channel: RunnerChannel) -> None:
    command = Command(command="echo ready; exec sleep 300", terminal=TERMINAL, stdin_open=True)
    async with channel.open(command) as running:
        await read_until(running.output(), b"ready")
        await running.write(b"\x03")
        assert (await soon(running.result())).signal == signal.SIGINT
    command = Command(command="cat; echo over", terminal=TERMINAL, stdin_open=True)
    async with channel.open(command) as running:
        await running.write(b"line\n")
        parts = running.output()
        await read_until(parts, b"line\r\nline\r\n")
        await running.close_stdin()
        await read_until(parts, b"over")


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("data", [b"", b"line\n", b"half a line", b"x" * 70_000])
async def test_the_input_of_a_terminal_ends_also_in_the_middle_of_a_line(
    channel: RunnerChannel, data: bytes
) -> None:
    """A terminal takes no more than 4095 letters of a line."""
    result = await run(channel, "stty -echo; cat", stdin=data, terminal=TERMINAL, timeout_s=30)
    assert result.reason is Reason.EXITED
    assert result.stdout.replace("\r", "").lstrip("\a").endswith(data.decode()[:4000])


@in_a_loop
@pytest.mark.anyio
async def test_a_terminal_that_nobody_reads_can_be_given_a_whole_window_and_its_end(
    channel: RunnerChannel,
) -> None:
    command = Command(
        command="stty raw -echo; echo ready; sleep 300", terminal=TERMINAL, stdin_open=True
    )
    async with channel.open(command) as running:
        await read_until(running.output(), b"ready")
        writing = asyncio.create_task(running.write(bytes(3 * MIB)))
        await asyncio.wait([writing], timeout=0.2)
        await running.close_stdin()
        assert (await run(channel, "echo next")).stdout == "next\n"
        writing.cancel()
        await asyncio.wait([writing])
    assert not channel.lost


@in_a_loop
@pytest.mark.anyio
async def test_what_was_written_to_a_terminal_is_complete_at_the_end(
    channel: RunnerChannel,
) -> None:
    result = await run(channel, "seq 1 20000", terminal=TERMINAL)
    assert result.stdout.split() == [str(number) for number in range(1, 20_001)]


@in_a_loop
@pytest.mark.anyio
async def test_a_terminal_that_its_command_has_left_can_be_resized_in_peace(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    """Its descriptor is somebody else's by then."""
    text = f"exec < /dev/null > /dev/null 2>&1; touch {tmp_path}/left; sleep 300"
    command = Command(command=["setsid", "-w", "sh", "-c", text], terminal=TERMINAL)
    async with channel.open(command) as running:
        await until((tmp_path / "left").exists)
        other = Command(command="echo ready; read line", terminal=TERMINAL, stdin_open=True)
        async with channel.open(other) as second:
            await read_until(second.output(), b"ready")
            await running.resize(TerminalSize(3, 3))
            await second.write(b"\n")
        size = Command(command="stty size", terminal=TERMINAL)
        assert (await soon(channel.run(size))).stdout == "24 80\r\n"


# --- Where the shell ended -------------------------------------------------------------------

# text → (exit code, where it ended, below the folder; None: it cannot say)
ENDINGS: dict[str, tuple[int, str | None]] = {
    "true": (0, ""),
    "cd sub": (0, "sub"),
    "cd sub; exit 3": (3, "sub"),
    "(cd sub); false": (1, ""),
    "cd sub && exec sh -c 'exit 4'": (4, None),
    "cd sub; trap 'exit 5' EXIT": (5, None),
    "cd 'new\nline'": (0, "new\nline"),
    "mkdir gone; cd gone; rmdir ../gone; exit 6": (6, None),
    "set -e; cd sub; false": (1, "sub"),
    "cd sub; exec 3>x 4>x 5>x 6>x 7>x; echo hi >&7": (0, "sub"),
    "cd sub; sh -c 'cd /'": (0, "sub"),
    "cd sub; kill -9 $$": (137, None),
    "cd sub; echo $(cd /; pwd)": (0, "sub"),
    "cd sub; f() { cd ..; }; f": (0, ""),
}


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_where_the_shell_ended_is_reported_and_changes_nothing_else(
    tmp_path: Path, shell: str
) -> None:
    # All but one of the places where a bash may be are gone, in as many letters.
    bashes = '"/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash"'
    hidden = bashes.replace("bash", "hash")
    changes = {bashes: hidden} if shell == "sh" else {}
    with RawClient(changes=changes) as client:
        for number, (text, (code, where)) in enumerate(ENDINGS.items(), 1):
            folder = tmp_path / str(number)
            (folder / "sub").mkdir(parents=True)
            (folder / "new\nline").mkdir()
            options = {"cwd": str(folder), "report_shell": True}
            answer = client.ask(number, run_order(f"x{number}", text, **options))
            found = answer["number"] + (128 if answer["kind"] == "signalled" else 0)
            wanted = "" if where is None else str(folder / where)
            assert (text, found, answer["cwd"]) == (text, code, wanted)
            assert (text, answer["bytes"][1]) == (text, 0)


@in_a_loop
@pytest.mark.anyio
async def test_a_script_may_use_the_descriptors_that_scripts_use(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    text = "exec 8>a 9>b; flock 9; echo held >&9; cd /usr"
    result = await run(channel, text, report_shell=True)
    assert (result.exit_code, result.stderr, result.cwd) == (0, "", "/usr")
    assert (tmp_path / "b").read_text() == "held\n"


# --- What the environment must not do --------------------------------------------------------


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("report_shell", [False, True])
async def test_variables_that_change_a_shell_are_not_heard_and_not_passed_on(
    tmp_path: Path, report_shell: bool
) -> None:
    (tmp_path / "evil").write_text("echo evil; cd /\n")
    env = {
        **default_environment(),
        "BASH_ENV": str(tmp_path / "evil"),
        "ENV": str(tmp_path / "evil"),
        "SHELLOPTS": "xtrace",
        "BASHOPTS": "extglob",
        "PS4": "$(echo evil >&2)",
        "CDPATH": "/",
        "PROMPT_COMMAND": "echo evil",
        "BASH_FUNC_echo%%": "() { builtin echo evil; }",
        "POSIXLY_CORRECT": "1",
        "KEPT": "yes",
    }
    channel = await open_channel(host_launch(tmp_path, env=env), RunnerSettings())
    try:
        result = await run(
            channel, "echo $KEPT; set -o | grep xtrace; env", report_shell=report_shell
        )
        lines = result.stdout.splitlines()
        assert (lines[0], lines[1].split(), result.stderr) == ("yes", ["xtrace", "off"], "")
        assert not {line.partition("=")[0] for line in lines[2:]} & (set(env) - {"KEPT"}) - set(
            default_environment()
        )
        assert "BASH_ENV" not in result.stdout
    finally:
        await soon(channel.close())


@in_a_loop
@pytest.mark.anyio
async def test_a_megabyte_of_variables_arrives_and_too_much_is_refused_here(
    channel: RunnerChannel,
) -> None:
    env = {f"BIG{number}": "x" * 100_000 for number in range(10)}
    assert (await run(channel, "echo ${#BIG9}", env=env)).stdout == "100000\n"
    env = {f"BIG{number}": "\x01" * 100_000 for number in range(10)}
    with pytest.raises(ExecutionError, match="too long"):
        await run(channel, "true", env=env)
    result = await run(channel, "true", env={"BIG": "x" * 200_000})
    assert (result.reason, result.exit_code) == (Reason.NEVER_STARTED, 126)
    assert (await run(channel, "echo next")).stdout == "next\n"


@in_a_loop
@pytest.mark.anyio
async def test_arguments_are_not_shell_text(channel: RunnerChannel) -> None:
    words = ["$HOME", "; exit 3", "`id`", "*", "a b", ""]
    result = await run(channel, ["printf", "%s|", *words])
    assert result.stdout == "".join(f"{word}|" for word in words)


@in_a_loop
@pytest.mark.anyio
async def test_the_same_id_is_the_same_execution(channel: RunnerChannel, tmp_path: Path) -> None:
    command = Command(command=f"echo x >> {tmp_path}/log; exit 4", id="once")
    results = await soon(asyncio.gather(*(channel.run(command) for _ in range(5))))
    assert {result.exit_code for result in results} == {4}
    assert (tmp_path / "log").read_text() == "x\n"


@in_a_loop
@pytest.mark.anyio
async def test_waits_that_were_given_up_are_forgotten_on_both_ends(channel: RunnerChannel) -> None:
    """Somebody asks every second, and the job takes hours."""
    job = await channel.start(Command(command="sleep 300"))
    for _ in range(3):
        calls = [
            *(channel.wait_job(job) for _ in range(20)),
            *(channel.read_output(job, "stdout", wait_s=300) for _ in range(20)),
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.wait(tasks, timeout=0.05)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        await until(lambda: not channel._stream.frames._exchanges)
    assert (await soon(channel.stop_job(job))).reason is Reason.CANCELLED


@in_a_loop
@pytest.mark.anyio
async def test_a_file_that_is_given_up_half_way_is_not_stored_here(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    (tmp_path / "big").touch()
    os.truncate(tmp_path / "big", 50 * MIB)
    for _ in range(5):
        task = asyncio.ensure_future(channel.read_file(str(tmp_path / "big")))
        await asyncio.wait([task], timeout=0.01)
        task.cancel()
        await asyncio.wait([task])
        await until(lambda: not channel._stream.frames._exchanges)
    assert not channel.lost
    assert len(await soon(channel.read_file(str(tmp_path / "big")))) == 50 * MIB


@needs_root
@in_a_loop
@pytest.mark.anyio
async def test_a_runner_out_of_descriptors_says_so_and_loses_none() -> None:
    launch = host_launch()
    argv = ["sh", "-c", 'ulimit -n 40; exec "$0" "$@"', *launch.argv]
    channel = await open_channel(replace(launch, argv=argv), RunnerSettings())
    try:
        for _ in range(3):
            commands = [
                Command(command="sleep 0.2", stdin=b"x", terminal=TERMINAL if n % 3 == 0 else None)
                for n in range(24)
            ]
            results = await soon(asyncio.gather(*map(channel.run, commands)))
            reasons = [result.reason for result in results]
            assert set(reasons) == {Reason.EXITED, Reason.NEVER_STARTED}
            assert reasons.count(Reason.EXITED) >= 4
        assert (await run(channel, "echo next")).stdout == "next\n"
        # Streams, loop, null, stderr, its score, and a line for each keeper. The runner closes the
        # streams of a command a moment after its answer.
        runner = runner_of(channel)
        await until(lambda: descriptors_of(runner) <= 9 + len(children_of(runner)))
    finally:
        await soon(channel.close())


# --- Files -----------------------------------------------------------------------------------


@in_a_loop
@pytest.mark.anyio
async def test_what_is_not_a_file_is_not_replaced_by_one(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link", "."):
        with pytest.raises(OSError, match="regular file"):
            await soon(channel.write_file(str(tmp_path / name), b"x"))
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe"]


@in_a_loop
@pytest.mark.anyio
async def test_a_file_may_have_as_long_a_name_as_the_system_allows(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    for name in ("x" * 255, "囲" * 85, "caf\udce9"):
        await channel.write_file(str(tmp_path / name), b"data")
        assert await channel.read_file(str(tmp_path / name)) == b"data"
        assert name in {file.name for file in await channel.list_files(str(tmp_path))}


@in_a_loop
@pytest.mark.anyio
async def test_names_that_no_file_can_have_are_refused_and_nothing_is_lost(
    channel: RunnerChannel,
) -> None:
    for path in ("/tmp/a\0b", "/tmp/\ud800", ""):
        for call in (
            channel.read_file(path),
            channel.write_file(path, b""),
            channel.list_files(path),
            channel.stat_file(path),
            channel.make_dir(path),
            channel.move_file(path, "/tmp/x"),
            channel.remove_file(path, recursive=True),
        ):
            with pytest.raises(ConfigurationError, match=r"^(path|source) (contains|is empty)"):
                await soon(call)
        with pytest.raises(ConfigurationError, match=r"^destination (contains|is empty)"):
            await channel.move_file("/tmp/x", path)
    assert not channel.lost


# --- Nothing grows ---------------------------------------------------------------------------


def runner_of(channel: RunnerChannel) -> int:
    """The runner's process: below the two keepers that ProcessStream puts above it."""
    pid = channel._stream.process.pid
    for _ in range(2):
        pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    return pid


def children_of(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def descriptors_of(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(status.partition("VmRSS:")[2].split()[0])


async def one_of_each(channel: RunnerChannel) -> None:
    cancelled = asyncio.create_task(channel.run(Command(command="sleep 300", stdin=b"x" * 99_999)))
    asyncio.get_running_loop().call_later(0.01, cancelled.cancel)
    await soon(
        asyncio.gather(
            channel.run(Command(command="exit 3", report_shell=True)),
            channel.run(Command(command=["cat"], stdin=bytes(100_000), spill_bytes=0)),
            channel.run(Command(command=["no-such-program"])),
            channel.run(Command(command="true", cwd="/no/such")),
            channel.run(Command(command="true", env={"BIG": "x" * 200_000}, report_shell=True)),
            channel.run(Command(command="sleep 300 & echo hi")),
            channel.run(Command(command="sleep 300", timeout_s=0.01)),
            channel.run(Command(command="echo hi", terminal=TERMINAL)),
            channel.run(Command(command="head -c 100000 /dev/zero", spill_bytes=0)),
            cancelled,
            return_exceptions=True,
        )
    )


@needs_root
@in_a_loop
@pytest.mark.anyio
async def test_five_hundred_commands_of_every_kind_leak_nothing(channel: RunnerChannel) -> None:
    runner = runner_of(channel)
    for _ in range(26):  # Until as many are remembered as ever are.
        await one_of_each(channel)
    keepers = children_of(runner)
    before = descriptors_of(runner)
    ours = len(os.listdir("/proc/self/fd"))
    for _ in range(24):
        await one_of_each(channel)
    # The runner closes the streams of the last commands a moment after their answers.
    await until(lambda: descriptors_of(runner) <= before)
    # A keeper lets the last command's pipes go a moment after its record: three streams, its line,
    # and a pipe to wake it are what it keeps.
    await until(lambda: all(descriptors_of(pid) == 6 for pid in keepers))
    assert children_of(runner) == keepers
    assert all(is_alive(pid) for pid in keepers)
    assert len(keepers) <= 12
    assert len(os.listdir("/proc/self/fd")) == ours


@needs_root
@in_a_loop
@pytest.mark.anyio
async def test_only_so_many_commands_are_remembered_and_little_of_each(
    channel: RunnerChannel,
) -> None:
    runner = runner_of(channel)
    env = {f"BIG{number}": "x" * 100_000 for number in range(10)}
    first = await run(channel, "echo first", env=env)
    before = memory_kib(runner)
    for _ in range(60):
        await run(channel, "true", env=env)
    assert memory_kib(runner) - before < 20_000
    for _ in range(20):
        await soon(asyncio.gather(*(channel.run(Command(command=["true"])) for _ in range(10))))
    with pytest.raises(ConfigurationError, match="no job"):
        await channel.read_output(first.id, "stdout")
    last = await run(channel, "echo last")
    assert (await channel.read_output(last.id, "stdout")).data == b"last\n"


def test_keepers_that_nobody_needs_are_let_go_and_buried() -> None:
    changes = {"_TRIM_AFTER_S = 10.0": "_TRIM_AFTER_S = 0.05"}
    with RawClient(changes=changes) as client:
        for number in range(20):
            client.order(number, run_order(f"x{number}", ["sleep", "0.2"]))
        client.answers(20)
        give_up = time.monotonic() + PATIENCE_S
        while len(children_of(client.process.pid)) > 4:
            assert time.monotonic() < give_up
            time.sleep(0.01)
        assert client.ask(1, run_order("next", ["true"]))["kind"] == "exited"
        assert all(is_alive(pid) for pid in children_of(client.process.pid))


@in_a_loop
@pytest.mark.anyio
async def test_a_job_list_that_is_too_long_is_an_error_and_not_the_end(
    channel: RunnerChannel, tmp_path: Path
) -> None:
    """Names that are no text take six letters for every byte on the wire."""
    deep = tmp_path
    while len(os.fsencode(deep)) < 3500:
        deep = deep / ("\udce9" * 250)
        deep.mkdir()
    commands = [
        Command(command=f": {n} {'🙂' * 600}", cwd=str(deep), report_shell=True) for n in range(100)
    ]
    for command in commands:
        await channel.start(command)
    for command in commands:
        assert (await soon(channel.wait_job(command.id))) is not None
    with pytest.raises(OSError, match="too long"):
        await channel.list_jobs()
    assert not channel.lost


def test_timers_that_were_cancelled_do_not_pile_up() -> None:
    loop = Loop()
    kept = [loop.after(500, lambda: None) for _ in range(10)]
    for _ in range(20_000):
        loop.after(300, lambda: None).cancel()
    assert len(loop._timers) < 1_000
    assert all(timer in loop._timers for timer in kept)
