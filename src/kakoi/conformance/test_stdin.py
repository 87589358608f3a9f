"""A command's stdin."""

import asyncio
import contextlib

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import MIB, Command
from kakoi.conformance.sandbox_commands import TIMEOUT_S, Reader, result_of, running
from kakoi.errors import KakoiError
from kakoi.results import Reason

pytestmark = pytest.mark.anyio

FIVE_MIB = b"".join(b"%015d\n" % number for number in range(5 * MIB // 16))


async def test_a_command_that_was_given_no_input_finds_its_end_at_once(
    sandbox: SandboxAdapter,
) -> None:
    result = await sandbox.run(Command(command=["cat"], timeout_s=TIMEOUT_S))
    assert (result.reason, result.exit_code, result.stdout) == (Reason.EXITED, 0, "")


async def test_input_arrives_byte_for_byte(sandbox: SandboxAdapter) -> None:
    command = Command(command="od -An -v -tx1", stdin=bytes(range(256)), timeout_s=TIMEOUT_S)
    result = await sandbox.run(command)
    assert bytes.fromhex(result.stdout) == bytes(range(256))


async def test_five_megabytes_come_back_unchanged(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(
        Command(
            command=["tee", "/dev/stderr"],
            stdin=FIVE_MIB,
            max_output_bytes=6 * MIB,
            timeout_s=TIMEOUT_S,
        )
    )
    assert result.ok
    assert result.stdout_bytes == len(FIVE_MIB)
    same = (result.stdout == FIVE_MIB.decode(), result.stderr == FIVE_MIB.decode())
    assert same == (True, True)


@pytest.mark.parametrize("text", ["exec <&-; echo ok", "echo ok", "head -c 16 >/dev/null; echo ok"])
async def test_input_that_nobody_wants_does_no_harm(sandbox: SandboxAdapter, text: str) -> None:
    result = await sandbox.run(Command(command=text, stdin=FIVE_MIB, timeout_s=TIMEOUT_S))
    assert (result.reason, result.exit_code, result.stdout) == (Reason.EXITED, 0, "ok\n")


async def test_writing_into_a_pipe_that_was_closed_ends_the_writer(
    sandbox: SandboxAdapter,
) -> None:
    result = await sandbox.run(Command(command="yes | head -n 1", timeout_s=TIMEOUT_S))
    assert (result.exit_code, result.stdout) == (0, "y\n")


async def test_input_can_follow_while_the_command_runs(sandbox: SandboxAdapter) -> None:
    command = Command(command=["cat"], stdin=b"first ", stdin_open=True)
    async with running(sandbox, command) as opened:
        reader = Reader(opened)
        await reader.until(b"first ")
        for word in (b"second ", b"third "):
            await opened.write(word)
            await reader.until(word)
        await opened.close_stdin()
        assert (await result_of(opened)).ok


async def test_a_command_whose_input_stays_open_ends_by_itself(sandbox: SandboxAdapter) -> None:
    async with running(sandbox, Command(command="exit 6", stdin_open=True)) as opened:
        result = await result_of(opened)
    assert (result.reason, result.exit_code) == (Reason.EXITED, 6)


async def test_much_input_waits_for_a_slow_reader(sandbox: SandboxAdapter) -> None:
    text = "read -r word; echo ready; read -r go; wc -c"
    async with running(sandbox, Command(command=text, stdin_open=True)) as opened:
        reader = Reader(opened)
        await opened.write(b"word\n")
        await reader.until(b"ready\n")
        await opened.write(b"go\n")

        async def feed() -> None:
            for _ in range(4):
                await opened.write(FIVE_MIB)
            await opened.close_stdin()

        async with asyncio.timeout(TIMEOUT_S), asyncio.TaskGroup() as group:
            group.create_task(feed())
            await reader.until(b"%d\n" % (4 * len(FIVE_MIB)))


async def test_input_for_a_command_that_has_ended_does_not_hang(sandbox: SandboxAdapter) -> None:
    async with running(sandbox, Command(command="exit 3", stdin_open=True)) as opened:
        await Reader(opened).to_the_end()
        async with asyncio.timeout(TIMEOUT_S):
            with contextlib.suppress(KakoiError, OSError):
                await opened.write(FIVE_MIB)
            with contextlib.suppress(KakoiError, OSError):
                await opened.close_stdin()
        assert (await result_of(opened)).exit_code == 3
