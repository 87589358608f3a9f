"""Several commands at once: in order, in parallel, and what becomes of the rest."""

import asyncio
import os
from pathlib import Path

import pytest

from kakoi.audit import Event, read
from kakoi.bash_executor import CommandExecutor
from tests.faces.bash_executor.conftest import Create


def codes(results: list[dict[str, str]]) -> list[str]:
    return [result["exit_code"] for result in results]


def test_in_order_each_starts_where_the_one_before_ended(
    executor: CommandExecutor, root: Path
) -> None:
    results = executor.execute_many(["mkdir a", "cd a", "pwd", "exit 3", "pwd"])
    assert codes(results) == ["0", "0", "0", "3", "0"]
    assert results[2]["stdout"] == results[4]["stdout"] == f"{root}/a\n"
    assert executor.get_cwd() == f"{root}/a"


def test_in_parallel_all_start_here_and_nobody_moves(executor: CommandExecutor, root: Path) -> None:
    (root / "a").mkdir()
    executor.execute("cd a")
    results = executor.execute_many(["cd ..", "pwd", "cd /; pwd", "pwd"], parallel=True)
    assert [result["stdout"] for result in results] == ["", f"{root}/a\n", "/\n", f"{root}/a\n"]
    assert {result["cwd"] for result in results} == {executor.get_cwd()} == {f"{root}/a"}
    assert {result["stderr"] for result in results} == {""}


def test_in_parallel_they_really_run_at_the_same_time(executor: CommandExecutor) -> None:
    """Each waits for the other; one after the other they would wait for ever."""
    meet = "touch {0}; while [ ! -e {1} ]; do sleep 0.01; done; echo {0}"
    results = executor.execute_many([meet.format("a", "b"), meet.format("b", "a")], parallel=True)
    assert [result["stdout"] for result in results] == ["a\n", "b\n"]


def test_results_have_the_order_of_the_commands_however_many_there_are(
    executor: CommandExecutor,
) -> None:
    results = executor.execute_many([f"echo {number}" for number in range(60)], parallel=True)
    assert [result["stdout"] for result in results] == [f"{number}\n" for number in range(60)]


@pytest.mark.parametrize("parallel", [False, True])
def test_a_command_without_a_result_says_why_and_the_others_run(
    create: Create, root: Path, audit_file: Path, parallel: bool
) -> None:
    commands = ["echo a", "touch marker; sudo id", "echo so far; sleep 30", "echo b"]
    results = create(timeout=1).execute_many(commands, parallel=parallel)
    assert codes(results) == ["0", "126", "124", "0"]
    assert [set(result) >= {"error", "code"} for result in results] == [False, True, True, False]
    assert results[1]["code"] == "COMMAND_NOT_ALLOWED"
    assert results[2]["stdout"] == "so far\n"
    assert list(root.iterdir()) == []
    assert [record.event for record in read(audit_file)].count(Event.REFUSED) == 1


@pytest.mark.parametrize("failing", ["false", "sudo id", "echo `id`"])
def test_nothing_is_run_after_the_first_failure(
    executor: CommandExecutor, root: Path, failing: str
) -> None:
    results = executor.execute_many(["echo a", failing, "touch marker"], stop_on_error=True)
    assert len(results) == 2
    assert list(root.iterdir()) == []


def test_a_failure_ends_what_runs_beside_it(executor: CommandExecutor) -> None:
    results = executor.execute_many(["sleep 25", "false"], parallel=True, stop_on_error=True)
    assert codes(results) == ["130", "1"]
    assert results[0]["code"] == "CANCELLED"


def test_no_commands_have_no_results(executor: CommandExecutor) -> None:
    assert executor.execute_many([]) == []
    assert executor.execute_many(iter(()), parallel=True) == []


@pytest.mark.anyio
async def test_coroutines_have_their_own_ways_in(create: Create, root: Path) -> None:
    async with create() as executor:
        assert (await executor.aexecute("echo a"))["stdout"] == "a\n"
        assert codes(await executor.aexecute_many(["true", "false"], parallel=True)) == ["0", "1"]
        # A blocking call inside of a running loop works, too: it only blocks.
        assert executor.execute("echo b")["stdout"] == "b\n"
        both = await asyncio.gather(executor.aexecute("echo c"), executor.aexecute("echo d"))
        assert [result["stdout"] for result in both] == ["c\n", "d\n"]


@pytest.mark.anyio
async def test_a_cancelled_command_is_ended_recorded_and_logged(
    create: Create, audit_file: Path, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    executor = create()
    os.mkfifo(root / "begun")
    work = asyncio.ensure_future(executor.aexecute("echo yes > begun; sleep 30"))
    assert await asyncio.to_thread((root / "begun").read_text) == "yes\n"
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert [record.reason for record in read(audit_file)][-1] == "cancelled"
    assert "sleep 30" in caplog.text
