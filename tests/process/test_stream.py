"""A program that stays, and the stream to it: nothing of it is left when it has been ended."""

import asyncio
import contextlib
import errno
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from kakoi.errors import ExecutionError
from kakoi.process.options import default_environment
from kakoi.process.stream import Launch, ProcessStream
from tests.children import children_of_ours
from tests.process.trees import (
    PATIENCE_S,
    PRELUDE,
    Witness,
    client_environment,
    tree_argv,
)

pytestmark = pytest.mark.anyio
in_a_loop = pytest.mark.usefixtures("nothing_is_left")

both_ways = pytest.mark.parametrize("kept", [False, True], ids=["alone", "kept"])


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
async def nothing_is_left() -> AsyncIterator[None]:
    before = open_descriptors()
    yield
    await asyncio.sleep(0)
    assert open_descriptors() == before
    assert children_of_ours() == []


def start(*argv: str, kept: bool = True, **changes: object) -> ProcessStream:
    given: dict[str, object] = {"argv": argv, "env": default_environment(), "kept": kept}
    return ProcessStream(Launch(**{**given, **changes}))  # type: ignore[arg-type]


def python(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", program, *arguments]


async def ended(stream: ProcessStream, grace_s: float = 2.0) -> None:
    async with asyncio.timeout(PATIENCE_S):
        await stream.end(grace_s)


async def read(stream: ProcessStream, size: int) -> bytes:
    data = b""
    async with asyncio.timeout(PATIENCE_S):
        while len(data) < size:
            part = await asyncio.get_running_loop().sock_recv(stream.socket, size - len(data))
            if not part:
                break
            data += part
    return data


@in_a_loop
@both_ways
async def test_bytes_go_in_and_come_out_until_it_is_ended(kept: bool) -> None:
    stream = start("cat", kept=kept)
    data = os.urandom(300_000)
    loop = asyncio.get_running_loop()
    sending = asyncio.create_task(loop.sock_sendall(stream.socket, data))
    assert await read(stream, len(data)) == data
    await sending
    await ended(stream)
    with pytest.raises(ProcessLookupError):
        os.kill(stream.pid, 0)


@in_a_loop
@both_ways
async def test_a_waiter_gets_the_status(kept: bool) -> None:
    stream = start("sh", "-c", "exit 7", kept=kept)
    async with asyncio.timeout(PATIENCE_S):
        status = await stream.wait()
    assert status == (0 if kept else 7)  # A keeper's own status says nothing.
    await ended(stream)
    await ended(stream)


@in_a_loop
@both_ways
async def test_without_pidfds_its_end_is_noticed_too(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Linux before 5.3, or with a Python that was built for that."""
    monkeypatch.delattr(os, "pidfd_open")
    stream = start("cat", kept=kept)
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(stream.socket, b"line")
    assert await read(stream, 4) == b"line"
    await ended(stream)
    with pytest.raises(ProcessLookupError):
        os.kill(stream.pid, 0)


@in_a_loop
async def test_nothing_stays_if_its_keeper_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_fd: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "dup", refuse)
    with pytest.raises(ExecutionError, match="cannot start"):
        start("cat", kept=True)


@in_a_loop
@both_ways
async def test_the_head_of_standard_error_is_kept(kept: bool) -> None:
    program = "import os\nfor _ in range(100): os.write(2, b'x' * 65536)\nos.write(1, b'.')"
    stream = start(*python(program), kept=kept)
    assert await read(stream, 1) == b"."
    await ended(stream)
    assert stream.stderr == "x" * (16 * 1024)


@in_a_loop
async def test_output_written_while_exiting_is_there_at_the_end() -> None:
    stream = start("sh", "-c", "read line; echo last words >&2", kept=False)
    await ended(stream)
    assert stream.stderr == "last words\n"


@in_a_loop
@both_ways
async def test_a_program_that_does_not_want_to_go_is_killed(kept: bool) -> None:
    program = """
import os, signal, time
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
os.write(1, b".")
time.sleep(300)
"""
    stream = start(*python(program), kept=kept)
    assert await read(stream, 1) == b"."
    await ended(stream, grace_s=0.1)


@pytest.mark.parametrize("kind", ["daemons", "deaf to signals", "stopped"])
@in_a_loop
async def test_what_a_kept_program_started_is_dead_when_its_stream_is_ended(
    witness: Witness, kind: str
) -> None:
    stream = start(*tree_argv(kind, witness.pipe, then="stay()"))
    await asyncio.to_thread(witness.wait_until_announced, 3)
    await ended(stream)
    assert not witness.anybody_alive()


@in_a_loop
async def test_what_a_kept_program_started_is_dead_when_it_exits_by_itself(
    witness: Witness,
) -> None:
    stream = start(*tree_argv("daemons", witness.pipe, then="os._exit(0)"))
    async with asyncio.timeout(PATIENCE_S):
        await stream.wait()
    assert not witness.anybody_alive()
    await ended(stream)


@in_a_loop
async def test_what_stays_in_the_group_of_a_program_dies_with_it_if_that_is_wanted(
    witness: Witness,
) -> None:
    program = PRELUDE + "if os.fork() == 0: up(); stay()\nos.read(0, 1)\n"
    stream = start(*python(program, str(witness.pipe)), kept=False, with_group=True)
    await asyncio.to_thread(witness.wait_until_announced, 1)
    await ended(stream)
    witness.wait_until_nobody_is_alive()


STOP_EVERY_KEEPER = """
second = os.getppid()
with open(f"/proc/{second}/stat") as file:
    guard = int(file.read().rpartition(")")[2].split()[1])
os.kill(guard, signal.SIGSTOP)
os.kill(second, signal.SIGSTOP)
up()
stay()
"""


@in_a_loop
async def test_a_program_that_has_stopped_its_keepers_is_ended_all_the_same(
    witness: Witness,
) -> None:
    program = PRELUDE + "if os.fork() == 0: os.setsid(); up(); stay()\n" + STOP_EVERY_KEEPER
    stream = start(*python(program, str(witness.pipe)))
    await asyncio.to_thread(witness.wait_until_announced, 2)
    await ended(stream, grace_s=0.1)
    assert not witness.anybody_alive()


@in_a_loop
async def test_without_descriptors_to_spare_an_end_is_still_an_end(witness: Witness) -> None:
    """The helper for a stopped keeper cannot be started at first."""
    stream = start(*python(PRELUDE + STOP_EVERY_KEEPER, str(witness.pipe)))
    await asyncio.to_thread(witness.wait_until_announced, 1)
    with no_more_descriptors():
        ending = asyncio.create_task(stream.end(grace_s=0))
        await asyncio.wait([ending], timeout=0.3)
        assert not ending.done()
    async with asyncio.timeout(PATIENCE_S):
        await ending
    assert not witness.anybody_alive()


@contextlib.contextmanager
def no_more_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    filling = [os.open(os.devnull, os.O_RDONLY)]
    highest = max(map(int, os.listdir("/proc/self/fd")))
    while filling[-1] < highest:
        filling.append(os.dup(filling[0]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (filling[-1] + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in filling:
            os.close(fd)


@in_a_loop
async def test_cancelling_does_not_cut_the_end_short(witness: Witness) -> None:
    stream = start(*tree_argv("daemons", witness.pipe, then="stay()"))
    await asyncio.to_thread(witness.wait_until_announced, 21)
    ending = asyncio.create_task(stream.end())
    await asyncio.sleep(0)
    while not ending.done():
        ending.cancel()
        await asyncio.wait([ending], timeout=0.001)
    assert ending.cancelled()
    assert not witness.anybody_alive()


@both_ways
@pytest.mark.parametrize("argv", [["kakoi-no-such-program"], ["/etc/passwd"], ["/no/such/program"]])
@in_a_loop
async def test_a_program_that_cannot_be_started_leaves_nothing_behind(
    argv: list[str], kept: bool
) -> None:
    if not kept:
        with pytest.raises(ExecutionError, match="cannot start") as failure:
            start(*argv, kept=kept)
        assert failure.value.hint
        return
    stream = start(*argv, kept=kept)  # Only its keeper knows.
    async with asyncio.timeout(PATIENCE_S):
        await stream.wait()
    assert await read(stream, 1) == b""
    await ended(stream)


@in_a_loop
@both_ways
async def test_without_its_directory_nothing_is_started(kept: bool) -> None:
    with pytest.raises(ExecutionError):
        start("true", kept=kept, cwd="/no/such/folder")


@in_a_loop
@both_ways
async def test_an_environment_of_a_megabyte_does_not_block_us(kept: bool) -> None:
    """It is more than a socket takes before anybody reads from it."""
    env = default_environment() | {f"BIG{number}": "x" * 100_000 for number in range(10)}
    began = time.monotonic()
    stream = start("sh", "-c", "echo ${#BIG9}", kept=kept, env=env)
    assert time.monotonic() - began < PATIENCE_S
    assert await read(stream, 7) == b"100000\n"
    await ended(stream)


@in_a_loop
@both_ways
async def test_a_program_is_given_files_that_no_path_leads_to(kept: bool) -> None:
    files = {"@one": b"first", "@two": b"second" * 100_000}
    argv = ["sh", "-c", "cat /proc/self/fd/$0; wc -c < /proc/self/fd/$1", "@one", "@two"]
    stream = start(*argv, kept=kept, files=files)
    assert await read(stream, 12) == b"first600000\n"
    await ended(stream)


@in_a_loop
async def test_a_program_gets_no_descriptor_of_ours() -> None:
    os.set_inheritable(leak := os.open(os.devnull, os.O_RDONLY), True)
    try:
        for kept in (False, True):
            stream = start("ls", "/proc/self/fd", kept=kept)
            assert await read(stream, 100) == b"0\n1\n2\n3\n"
            await ended(stream)
    finally:
        os.close(leak)


@in_a_loop
async def test_running_out_of_descriptors_is_reported_and_loses_none() -> None:
    await ended(start("true"))
    before = open_descriptors()
    outcomes = set()
    for spare in range(20):
        with no_more_descriptors():
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft + spare, hard))
            try:
                stream = start("cat")
            except ExecutionError as error:
                outcomes.add(str(error))
                continue
        await ended(stream)
        outcomes.add("started")
    assert outcomes == {"cannot start `cat`: Too many open files", "started"}
    assert open_descriptors() == before


CLIENT = """
import asyncio, sys
from kakoi.process.stream import Launch, ProcessStream

async def main():
    ProcessStream(Launch(argv=sys.argv[1:], env={}, kept=True))
    await asyncio.sleep(300)

asyncio.run(main())
"""


def test_a_kept_program_dies_when_our_own_process_is_killed(witness: Witness) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT, *tree_argv("daemons", witness.pipe, then="stay()")],
        env=client_environment(),
        start_new_session=True,
    )
    try:
        witness.wait_until_announced(21)
        process.send_signal(signal.SIGKILL)
        process.wait()
        witness.wait_until_nobody_is_alive()
    finally:
        process.kill()
        process.wait()
