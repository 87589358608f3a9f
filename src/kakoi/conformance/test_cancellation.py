"""Cancelling the call ends the command first, however and whenever it is cancelled."""

import asyncio

import anyio
import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.backends.probes import processes_outside
from kakoi.channel.api import Command
from kakoi.conformance.conftest import Opener
from kakoi.conformance.process_view import alive
from kakoi.conformance.sandbox_commands import (
    Reader,
    output_of,
    result_of,
    running,
    wait_until_exists,
)

pytestmark = pytest.mark.anyio


def sleeper(mark: str, folder: str) -> Command:
    return Command(command=["sh", "-c", "(setsid sleep $0 &); : >$1/up; sleep $0", mark, folder])


async def test_the_process_is_dead_when_the_cancellation_returns(
    sandbox: SandboxAdapter, mark: str, folder: str
) -> None:
    task = asyncio.create_task(sandbox.run(sleeper(mark, folder)))
    await wait_until_exists(sandbox, f"{folder}/up")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert processes_outside(mark) == []
    assert await alive(sandbox, mark) == []


async def test_a_second_and_a_third_cancellation_do_not_cut_the_end_short(
    sandbox: SandboxAdapter, mark: str, folder: str
) -> None:
    task = asyncio.create_task(sandbox.run(sleeper(mark, folder)))
    await wait_until_exists(sandbox, f"{folder}/up")
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=0.001)
    assert task.cancelled()
    assert await alive(sandbox, mark) == []


async def test_a_cancel_scope_of_anyio_ends_everything_too(
    sandbox: SandboxAdapter, mark: str, folder: str
) -> None:
    async def cancel_when_up(scope: anyio.CancelScope) -> None:
        await wait_until_exists(sandbox, f"{folder}/up")
        scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(cancel_when_up, group.cancel_scope)
        await sandbox.run(sleeper(mark, folder))
    assert group.cancel_scope.cancelled_caught
    assert await alive(sandbox, mark) == []


async def test_a_cancelled_wait_for_a_result_leaves_other_waits_alone(
    sandbox: SandboxAdapter,
) -> None:
    channel = await sandbox.channel()
    async with channel.open(Command(command=["cat"], stdin_open=True)) as opened:
        left, kept = (asyncio.create_task(result_of(opened)) for _ in range(2))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.wait([left])
        await opened.close_stdin()
        assert (left.cancelled(), (await kept).exit_code) == (True, 0)


async def test_a_deadline_of_the_caller_ends_everything(sandbox: SandboxAdapter, mark: str) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.5):
            await sandbox.run(Command(command=["sh", "-c", "sleep $0 & sleep $0", mark]))
    assert await alive(sandbox, mark) == []


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 20])
async def test_a_cancellation_at_any_moment_leaves_nothing(
    sandbox: SandboxAdapter, mark: str, turns: int
) -> None:
    await output_of(sandbox, "true")
    task = asyncio.create_task(sandbox.run(Command(command=["sleep", mark])))
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await alive(sandbox, mark) == []


async def test_a_cancellation_while_the_sandbox_is_made_leaves_nothing(
    fresh: Opener, mark: str
) -> None:
    async with fresh() as sandbox:
        task = asyncio.create_task(sandbox.run(Command(command=["sleep", mark])))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await output_of(sandbox, "echo hi") == "hi\n"
        assert await alive(sandbox, mark) == []


async def test_an_exception_in_the_block_ends_the_command(
    sandbox: SandboxAdapter, mark: str
) -> None:
    command = Command(command=["sh", "-c", "echo up; sleep $0", mark])

    async def stumble() -> None:
        async with running(sandbox, command) as opened:
            await Reader(opened).until(b"up\n")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await stumble()
    assert await alive(sandbox, mark) == []


async def test_many_cancelled_commands_leave_a_sandbox_that_works(fresh: Opener, mark: str) -> None:
    async with fresh() as sandbox:
        await output_of(sandbox, "true")
        for _ in range(3):
            tasks = [
                asyncio.create_task(
                    sandbox.run(Command(command=["sh", "-c", "yes $0 & sleep $0", mark]))
                )
                for _ in range(10)
            ]
            await asyncio.wait(tasks, timeout=0.05)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() for task in tasks)
        assert await alive(sandbox, mark) == []
        assert await output_of(sandbox, "echo hi") == "hi\n"


async def test_closing_the_channel_ends_every_command(fresh: Opener, mark: str) -> None:
    async with fresh() as sandbox:
        channel = await sandbox.channel()
        async with channel.open(
            Command(command=["sh", "-c", "(setsid sleep $0 &); echo up; sleep $0", mark])
        ) as opened:
            await Reader(opened).until(b"up\n")
            await channel.close()
            assert processes_outside(mark) == []
        assert await output_of(sandbox, "echo hi") == "hi\n"
        assert await alive(sandbox, mark) == []
