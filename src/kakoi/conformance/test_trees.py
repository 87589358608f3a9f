"""When a command is over, nothing that it started is running, however it hides."""

import asyncio

import pytest

from kakoi.conformance.asking import PATIENCE_S, Reader, running, said, until, until_exists
from kakoi.conformance.conftest import Opener
from kakoi.conformance.trees import TREES, tree
from kakoi.conformance.watching import alive
from kakoi.results import Reason
from kakoi.runner.commands import Command
from kakoi.sandbox.adapter import SandboxAdapter

pytestmark = pytest.mark.anyio

every_tree = pytest.mark.parametrize("kind", TREES)


@every_tree
async def test_what_a_command_leaves_behind_is_dead_when_it_has_exited(
    sandbox: SandboxAdapter, place: str, mark: str, kind: str
) -> None:
    result = await sandbox.run(tree(kind, mark, place, then="exit 7", timeout_s=PATIENCE_S))
    assert await alive(sandbox, mark) == []
    assert (result.reason, result.exit_code, result.stdout) == (Reason.EXITED, 7, "grown\n")
    assert result.leftovers_ended >= 1


@every_tree
async def test_everything_is_dead_when_the_time_is_up(
    sandbox: SandboxAdapter, place: str, mark: str, kind: str
) -> None:
    # A busy machine may not have grown the whole tree in a second: then it gets more.
    for timeout_s in (1, 4, 16):
        command = tree(kind, mark, place, then="sleep $0", timeout_s=timeout_s)
        result = await sandbox.run(command)
        assert await alive(sandbox, mark) == []
        assert (result.reason, result.exit_code) == (Reason.TIMED_OUT, 124)
        if result.stdout == "grown\n":
            return
    pytest.fail("the tree never grew")


@every_tree
async def test_everything_is_dead_when_a_cancellation_has_arrived(
    sandbox: SandboxAdapter, place: str, mark: str, kind: str
) -> None:
    command = tree(kind, mark, place, then=': >"$HERE/grown"; sleep $0')
    task = asyncio.create_task(sandbox.run(command))
    await until_exists(sandbox, f"{place}/grown")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await alive(sandbox, mark) == []


@every_tree
async def test_everything_is_dead_after_the_block_that_opened_it(
    sandbox: SandboxAdapter, place: str, mark: str, kind: str
) -> None:
    async with running(sandbox, tree(kind, mark, place, then="sleep $0")) as opened:
        await Reader(opened).until(b"grown\n")
        # The comets have no process that would be there in every moment.
        assert kind == "comets" or await alive(sandbox, mark)
    assert await alive(sandbox, mark) == []


async def test_a_command_returns_when_it_exits_though_a_child_holds_its_output(
    sandbox: SandboxAdapter, mark: str
) -> None:
    command = Command(command=["sh", "-c", "sleep $0 & echo hi", mark], timeout_s=PATIENCE_S)
    result = await sandbox.run(command)
    assert (result.reason, result.stdout) == (Reason.EXITED, "hi\n")
    assert result.leftovers_ended == 1
    assert result.duration_ms < 30_000  # the child would have slept ten times as long
    assert await alive(sandbox, mark) == []


async def test_what_a_child_wrote_before_the_command_exited_is_not_lost(
    sandbox: SandboxAdapter, place: str, mark: str
) -> None:
    text = """
mkfifo "$1/written"
(echo from the child; echo x >"$1/written"; sleep $0) &
read -r word <"$1/written"
echo from the command
"""
    result = await sandbox.run(
        Command(command=["sh", "-c", text, mark, place], timeout_s=PATIENCE_S)
    )
    assert result.stdout == "from the child\nfrom the command\n"


@pytest.mark.needs("resident", "isolates_processes")
async def test_no_zombie_is_left_by_many_commands(fresh: Opener, mark: str) -> None:
    async with fresh() as sandbox:
        for _ in range(10):
            await sandbox.run(Command(command=["sh", "-c", "(setsid sleep $0 &)", mark]))

        async def none_left() -> bool:
            text = "grep -l '^State:.*Z' /proc/[0-9]*/status 2>/dev/null | wc -l"
            return int(await said(sandbox, text)) == 0

        await until(none_left, "every process that has ended is reaped")
