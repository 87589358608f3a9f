"""When spawn returns or raises, nothing that it started is running. Nor when we are killed."""

import asyncio
import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from kakoi.errors import ExecutionError, ExecutionTimeoutError
from kakoi.process import ProcessExecutor, SpawnOptions
from kakoi.process import keeper_client as keeping
from tests.children import children_of_ours
from tests.process.trees import (
    PATIENCE_S,
    PRELUDE,
    TREES,
    Witness,
    client_environment,
    tree_argv,
)

pytestmark = pytest.mark.anyio

every_tree = pytest.mark.parametrize("kind", TREES)


async def grown(witness: Witness, count: int) -> None:
    await asyncio.to_thread(witness.wait_until_announced, count)


@every_tree
async def test_what_a_program_leaves_behind_is_dead_when_it_has_exited(
    executor: ProcessExecutor, witness: Witness, kind: str
) -> None:
    program, *args = tree_argv(kind, witness.pipe, then="os._exit(7)")
    result = await executor.spawn(program, args)
    assert not witness.anybody_alive()
    assert result.exit_code == 7
    assert len(witness.announced) >= TREES[kind][0] + 1
    assert result.leftovers_ended >= 1


@pytest.mark.requirement("B-006")
@every_tree
async def test_everything_is_dead_when_the_time_is_up(
    executor: ProcessExecutor, witness: Witness, kind: str
) -> None:
    program, *args = tree_argv(kind, witness.pipe, then="stay()")
    # A busy machine may not have grown the whole tree in half a second: then it gets more.
    for timeout_ms in (500, 2_000, 8_000, 32_000):
        witness.announced.clear()
        with pytest.raises(ExecutionTimeoutError):
            await executor.spawn(program, args, SpawnOptions(timeout=timeout_ms))
        assert not witness.anybody_alive()
        if len(witness.announced) > TREES[kind][0]:
            return
    pytest.fail("the tree never grew")


@every_tree
async def test_everything_is_dead_when_a_cancellation_arrives(
    executor: ProcessExecutor, witness: Witness, kind: str
) -> None:
    program, *args = tree_argv(kind, witness.pipe, then="stay()")
    task = asyncio.create_task(executor.spawn(program, args))
    await grown(witness, TREES[kind][0] + 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not witness.anybody_alive()


async def test_a_second_and_a_third_cancellation_do_not_cut_the_end_short(
    executor: ProcessExecutor, witness: Witness
) -> None:
    kind = "a bomb that keeps forking"
    program, *args = tree_argv(kind, witness.pipe, then="stay()")
    task = asyncio.create_task(executor.spawn(program, args))
    await grown(witness, TREES[kind][0] + 1)
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.001)
    assert task.cancelled()
    assert not witness.anybody_alive()


async def test_a_cancellation_from_a_deadline_of_the_caller_ends_everything(
    executor: ProcessExecutor, witness: Witness
) -> None:
    program, *args = tree_argv("daemons", witness.pipe, then="stay()")

    async def spawn_until_grown() -> None:
        async with asyncio.timeout(None) as deadline:
            growing = asyncio.create_task(grown(witness, 21))
            growing.add_done_callback(lambda _: deadline.reschedule(0))
            await executor.spawn(program, args)

    with pytest.raises(TimeoutError):
        await spawn_until_grown()
    assert not witness.anybody_alive()


async def test_one_of_many_spawns_that_is_cancelled_leaves_the_others_alone(
    executor: ProcessExecutor, witness: Witness
) -> None:
    program, *args = tree_argv("daemons", witness.pipe, then="stay()")
    doomed = asyncio.create_task(executor.spawn(program, args))
    waiting = asyncio.create_task(executor.spawn("cat", [], SpawnOptions(stdin="x")))
    other = asyncio.create_task(
        executor.spawn("sh", ["-c", f"read line < {witness.pipe.parent}/go; exit 5"])
    )
    os.mkfifo(witness.pipe.parent / "go")
    await grown(witness, 21)
    doomed.cancel()
    await asyncio.wait([doomed])
    assert not witness.anybody_alive()
    await asyncio.to_thread((witness.pipe.parent / "go").write_text, "go\n")
    assert (await other).exit_code == 5
    assert (await waiting).stdout == "x"


async def test_a_child_that_kills_the_program_does_not_survive_it(
    executor: ProcessExecutor, witness: Witness
) -> None:
    program = PRELUDE + "if os.fork() == 0: up(); os.kill(first, signal.SIGKILL); stay()\nstay()"
    result = await executor.spawn(sys.executable, ["-I", "-S", "-c", program, str(witness.pipe)])
    assert not witness.anybody_alive()
    assert len(witness.announced) == 1
    assert (result.exit_code, result.signal) == (128 + signal.SIGKILL, signal.SIGKILL)


DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    up(); stay()
wait_for_all(1)
up()
"""


async def test_a_program_that_kills_its_keeper_has_not_escaped(
    executor: ProcessExecutor, witness: Witness
) -> None:
    program = PRELUDE + DAEMON + "os.kill(os.getppid(), signal.SIGKILL)\nstay()"
    with pytest.raises(ExecutionError, match="keeper") as failure:
        await executor.spawn(sys.executable, ["-I", "-S", "-c", program, str(witness.pipe)])
    assert not witness.anybody_alive()
    assert len(witness.announced) == 2
    assert failure.value.hint


STOP_EVERY_KEEPER = """
second = os.getppid()
with open(f"/proc/{second}/stat") as file:
    guard = int(file.read().rpartition(")")[2].split()[1])
os.kill(guard, signal.SIGSTOP)
os.kill(second, signal.SIGSTOP)
up()
stay()
"""


async def test_a_program_that_stops_its_keepers_still_ends_at_its_limit(witness: Witness) -> None:
    executor = ProcessExecutor(grace_s=0.5)
    program = PRELUDE + DAEMON + STOP_EVERY_KEEPER
    args = ["-I", "-S", "-c", program, str(witness.pipe)]
    for timeout_ms in (500, 4_000, 32_000):
        witness.announced.clear()
        with pytest.raises(ExecutionTimeoutError):
            await executor.spawn(sys.executable, args, SpawnOptions(timeout=timeout_ms))
        assert not witness.anybody_alive()
        if len(witness.announced) == 3:
            return  # A busy machine may need more than a moment to get there.
    pytest.fail("the keepers were never stopped")


async def test_a_program_that_stops_its_keepers_still_ends_when_cancelled(
    witness: Witness,
) -> None:
    executor = ProcessExecutor(grace_s=0.1)
    program = PRELUDE + DAEMON + STOP_EVERY_KEEPER
    args = ["-I", "-S", "-c", program, str(witness.pipe)]
    task = asyncio.create_task(executor.spawn(sys.executable, args))
    await grown(witness, 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not witness.anybody_alive()


async def test_help_that_cannot_be_started_at_once_comes_later(
    witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To kill the keeper instead would let everything below it go."""
    start = keeping.help_to_end
    refused: list[int] = []

    def start_the_third_time(keeper: int) -> subprocess.Popen[bytes]:
        if len(refused) < 2:
            refused.append(keeper)
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return start(keeper)

    monkeypatch.setattr(keeping, "help_to_end", start_the_third_time)
    program = PRELUDE + DAEMON + STOP_EVERY_KEEPER
    args = ["-I", "-S", "-c", program, str(witness.pipe)]
    task = asyncio.create_task(ProcessExecutor(grace_s=0.1).spawn(sys.executable, args))
    await grown(witness, 3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert len(refused) == 2
    assert not witness.anybody_alive()


async def test_a_program_that_kills_both_keepers_is_reported(
    executor: ProcessExecutor, witness: Witness
) -> None:
    """It has escaped: on the host, nothing but another user or a sandbox would hold it."""
    program = PRELUDE + STOP_EVERY_KEEPER.replace("SIGSTOP", "SIGKILL")
    with pytest.raises(ExecutionError, match="may still be running"):
        await executor.spawn(sys.executable, ["-I", "-S", "-c", program, str(witness.pipe)])
    witness.wait_until_announced(1)
    os.kill(witness.announced[0], signal.SIGKILL)
    witness.wait_until_nobody_is_alive()


async def test_without_pidfds_everything_is_still_dead_at_the_end(
    executor: ProcessExecutor, witness: Witness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Linux before 5.3, or with a Python that was built there."""
    monkeypatch.delattr(os, "pidfd_open")
    program, *args = tree_argv("daemons", witness.pipe, then="os._exit(3)")
    assert (await executor.spawn(program, args)).exit_code == 3
    assert not witness.anybody_alive()
    with pytest.raises(ExecutionTimeoutError):
        await executor.spawn("sleep", ["600"], SpawnOptions(timeout=50))
    assert children_of_ours() == []


async def test_a_keeper_is_deaf_to_the_signals_of_a_terminal(
    executor: ProcessExecutor, witness: Witness
) -> None:
    program = (
        PRELUDE
        + """
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
    os.kill(os.getppid(), number)
    with open(f"/proc/{os.getppid()}/stat") as file:
        os.kill(int(file.read().rpartition(")")[2].split()[1]), number)
up()
os._exit(4)
"""
    )
    result = await executor.spawn(sys.executable, ["-I", "-S", "-c", program, str(witness.pipe)])
    assert result.exit_code == 4


CLIENT = """
import asyncio, os, sys
from kakoi.process import ProcessExecutor

async def main():
    await ProcessExecutor().spawn(sys.argv[1], sys.argv[2:])

{before}
asyncio.run(main())
"""


@contextlib.contextmanager
def client(argv: list[str], *, before: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """Another process of ours, in which `spawn` runs `argv`."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLIENT.format(before=before), *argv],
        env=client_environment(),
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def test_a_program_that_spawns_through_keepers_of_its_own_dies_with_all_of_them(
    executor: ProcessExecutor, witness: Witness
) -> None:
    """Its keepers are deaf to everything but SIGKILL, and adopt orphans that are ours to end."""
    argv = [sys.executable, "-c", CLIENT.format(before="")]
    nested = [*argv, *argv, *tree_argv("daemons", witness.pipe, then="stay()")]
    options = SpawnOptions(env=client_environment())
    inherit = "ProcessExecutor(base_env=dict(os.environ))"
    nested = [word.replace("ProcessExecutor()", inherit) for word in nested]
    task = asyncio.create_task(executor.spawn(nested[0], nested[1:], options))
    await grown(witness, 21)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not witness.anybody_alive()


async def test_a_cancel_scope_of_anyio_ends_everything_too(
    executor: ProcessExecutor, witness: Witness
) -> None:
    """It cancels again and again until the task gives in."""
    program, *args = tree_argv("daemons", witness.pipe, then="stay()")

    async def cancel_when_grown(scope: anyio.CancelScope) -> None:
        await grown(witness, 21)
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel_when_grown, group.cancel_scope)
        await executor.spawn(program, args)
    assert group.cancel_scope.cancelled_caught
    assert not witness.anybody_alive()


@every_tree
@pytest.mark.slow("kills processes that fork as fast as they can")
def test_everything_dies_when_our_own_process_is_killed(witness: Witness, kind: str) -> None:
    with client(tree_argv(kind, witness.pipe, then="stay()")) as process:
        witness.wait_until_announced(TREES[kind][0] + 1)
        process.kill()
        process.wait()
        witness.wait_until_nobody_is_alive()


def test_a_forked_child_of_ours_does_not_keep_the_tree_alive(witness: Witness) -> None:
    """It inherits every descriptor, also the line that the keeper watches."""
    before = """
import signal, threading
def fork():
    if os.fork() == 0:
        signal.pause()
main_ = main
async def main():
    asyncio.get_running_loop().call_later(0.1, fork)
    await main_()
"""
    argv = tree_argv("daemons", witness.pipe, then="stay()")
    with client(argv, before=before) as process:
        witness.wait_until_announced(21)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        give_up = time.monotonic() + PATIENCE_S
        while len(pids := children.read_text().split()) < 2:
            assert time.monotonic() < give_up
        process.kill()
        process.wait()
        witness.wait_until_nobody_is_alive()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_everything_dies_when_our_own_process_is_interrupted(
    witness: Witness, number: signal.Signals
) -> None:
    with client(tree_argv("daemons", witness.pipe, then="stay()")) as process:
        witness.wait_until_announced(21)
        process.send_signal(number)
        process.wait(PATIENCE_S)
        witness.wait_until_nobody_is_alive()
