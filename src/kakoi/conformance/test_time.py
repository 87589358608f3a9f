"""A timeout ends the command: the result arrives long before the command would have ended."""

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import Command
from kakoi.conformance.process_view import alive
from kakoi.conformance.sandbox_commands import TIMEOUT_S, Reader, result_of, running, wait_until
from kakoi.results import ExecutionResult, Reason

pytestmark = pytest.mark.anyio


async def run_until_started(sandbox: SandboxAdapter, text: str, mark: str) -> ExecutionResult:
    """Run a command until it times out, with more time on a busy machine until it has written."""
    for timeout_s in (0.5, 2, 8, 32):
        command = Command(command=["sh", "-c", text, mark], timeout_s=timeout_s)
        result = await sandbox.run(command)
        if result.stdout:
            return result
    pytest.fail("the command never came to its first word")


@pytest.mark.parametrize(
    "text",
    [
        "echo before; sleep $0",
        "echo before; exec sleep $0",
        "trap '' TERM INT HUP; echo before; sleep $0; sleep $0",
        "echo before; kill -STOP $$",
        "echo before; exec >&- 2>&- <&-; sleep $0",
        "echo before; while :; do :; done",
    ],
)
async def test_the_time_is_up_and_the_partial_output_is_there(
    sandbox: SandboxAdapter, mark: str, text: str
) -> None:
    result = await run_until_started(sandbox, text, mark)
    assert (result.reason, result.exit_code) == (Reason.TIMED_OUT, 124)
    assert result.stdout == "before\n"
    assert result.duration_ms < 100_000
    assert await alive(sandbox, mark) == []


async def test_a_flood_without_end_ends_when_the_time_is_up(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command="yes", timeout_s=2, max_output_bytes=4))
    assert (result.reason, result.stdout) == (Reason.TIMED_OUT, "y\ny\n")
    assert result.stdout_bytes > 4


async def test_a_command_that_nobody_reads_ends_when_the_time_is_up(
    sandbox: SandboxAdapter, mark: str
) -> None:
    command = Command(command=["sh", "-c", "yes $0", mark], timeout_s=2)
    async with running(sandbox, command) as opened:
        await anext(aiter(opened.output()))

        async def dead() -> bool:
            return not await alive(sandbox, mark)

        await wait_until(dead, "it is dead")
        assert (await result_of(opened)).reason is Reason.TIMED_OUT


async def test_enough_time_changes_nothing(sandbox: SandboxAdapter) -> None:
    command = Command(command="echo hi", timeout_s=TIMEOUT_S, idle_timeout_s=TIMEOUT_S)
    result = await sandbox.run(command)
    assert (result.reason, result.stdout) == (Reason.EXITED, "hi\n")


async def test_next_to_no_time_is_a_timeout_too(sandbox: SandboxAdapter, mark: str) -> None:
    command = Command(command=["sh", "-c", "sleep $0", mark], timeout_s=0.001)
    assert (await sandbox.run(command)).reason is Reason.TIMED_OUT
    assert await alive(sandbox, mark) == []


async def test_one_that_runs_out_of_time_leaves_the_others_alone(
    sandbox: SandboxAdapter, mark: str
) -> None:
    text = "echo ready; read -r word; echo $word; exit 5"
    async with running(sandbox, Command(command=text, stdin_open=True)) as other:
        reader = Reader(other)
        await reader.until(b"ready\n")
        command = Command(command=["sh", "-c", "sleep $0", mark], timeout_s=0.5)
        assert (await sandbox.run(command)).reason is Reason.TIMED_OUT
        await other.write(b"still here\n")
        await reader.until(b"still here\n")
        assert (await result_of(other)).exit_code == 5


async def test_a_command_that_falls_silent_is_ended(sandbox: SandboxAdapter, mark: str) -> None:
    command = Command(
        command=["sh", "-c", "echo hi; (setsid sleep $0 &); sleep $0", mark],
        idle_timeout_s=2,
        timeout_s=TIMEOUT_S,
    )
    result = await sandbox.run(command)
    assert (result.reason, result.exit_code, result.stdout) == (Reason.IDLE_TIMEOUT, 124, "hi\n")
    assert await alive(sandbox, mark) == []


async def test_a_command_that_never_says_anything_is_ended(
    sandbox: SandboxAdapter, mark: str
) -> None:
    command = Command(command=["sleep", mark], idle_timeout_s=0.5, timeout_s=TIMEOUT_S)
    assert (await sandbox.run(command)).reason is Reason.IDLE_TIMEOUT


@pytest.mark.slow("a command talks for longer than it may be silent")
async def test_a_command_that_keeps_talking_is_not_idle(sandbox: SandboxAdapter) -> None:
    """Output on either stream counts."""
    text = """
for i in 1 2 3 4 5; do
    echo $i; sleep 0.5; echo $i >&2; sleep 0.5
done"""
    command = Command(command=text, idle_timeout_s=4, timeout_s=TIMEOUT_S)
    result = await sandbox.run(command)
    assert (result.reason, len(result.stdout), len(result.stderr)) == (Reason.EXITED, 10, 10)


async def test_the_shorter_of_two_limits_is_the_reason(sandbox: SandboxAdapter, mark: str) -> None:
    command = Command(command=["sleep", mark], idle_timeout_s=TIMEOUT_S, timeout_s=0.5)
    assert (await sandbox.run(command)).reason is Reason.TIMED_OUT
