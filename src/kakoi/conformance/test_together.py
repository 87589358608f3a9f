"""Many commands at once: none gets the output, the input or the exit code of another."""

import asyncio
import contextlib

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import MIB, Command
from kakoi.conformance.conftest import Opener
from kakoi.conformance.process_view import alive
from kakoi.conformance.sandbox_commands import (
    TIMEOUT_S,
    Reader,
    output_of,
    result_of,
    running,
    wait_until_exists,
)
from kakoi.conformance.subjects import Traits

pytestmark = pytest.mark.anyio


def many(traits: Traits) -> int:
    """Return how many: fewer if each command needs its own sandbox, which costs more."""
    return 100 if traits.resident else 8


@pytest.mark.slow("shells start many commands one after the other")
async def test_many_at_once_each_get_their_own(sandbox: SandboxAdapter, traits: Traits) -> None:
    text = 'read -r line; echo "out $1 $line $WORD"; echo "err $1" >&2; exit $(($1 % 200))'
    commands = [
        Command(
            command=["sh", "-c", text, "x", str(number)],
            env={"WORD": f"word{number}"},
            stdin=b"line%d\n" % number,
        )
        for number in range(many(traits))
    ]
    async with asyncio.timeout(2 * TIMEOUT_S):
        results = await asyncio.gather(*map(sandbox.run, commands))
    for number, result in enumerate(results):
        assert result.stdout == f"out {number} line{number} word{number}\n"
        assert result.stderr == f"err {number}\n"
        assert (result.exit_code, result.id) == (number % 200, commands[number].id)


@pytest.mark.slow("shells start many commands one after the other")
async def test_many_are_really_at_once(
    sandbox: SandboxAdapter, traits: Traits, folder: str
) -> None:
    """Each command waits until all have started."""
    count = many(traits)
    text = f": >$0/$1; n=$1; until set -- $0/*; [ $# -ge {count} ]; do sleep 0.3; done; echo $n"
    commands = [
        Command(command=["sh", "-c", text, folder, str(number)], timeout_s=2 * TIMEOUT_S)
        for number in range(count)
    ]
    results = await asyncio.gather(*map(sandbox.run, commands))
    assert [result.stdout for result in results] == [f"{number}\n" for number in range(count)]


@pytest.mark.needs("channel")
async def test_many_floods_at_once_are_each_complete(
    sandbox: SandboxAdapter, traits: Traits
) -> None:
    letters = "abcdefghijklmnop"[: min(16, many(traits))]
    commands = [
        Command(
            command=f"head -c {4 * MIB} /dev/zero | tr '\\0' {letter}",
            max_output_bytes=5 * MIB,
            timeout_s=2 * TIMEOUT_S,
        )
        for letter in letters
    ]
    results = await asyncio.gather(*map(sandbox.run, commands))
    for letter, result in zip(letters, results, strict=True):
        assert len(result.stdout) == 4 * MIB
        assert set(result.stdout) == {letter}


async def test_a_flood_does_not_keep_the_others_waiting(sandbox: SandboxAdapter) -> None:
    async with running(sandbox, Command(command="yes")) as flood:

        async def read() -> None:
            async for _ in flood.output():
                pass

        reading = asyncio.create_task(read())
        for _ in range(3):
            assert await output_of(sandbox, "echo hi") == "hi\n"
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reading


async def test_one_that_is_cancelled_leaves_the_others_alone(
    sandbox: SandboxAdapter, mark: str, folder: str
) -> None:
    text = "echo ready; read -r word; echo $word; exit 5"
    async with running(sandbox, Command(command=text, stdin_open=True)) as other:
        reader = Reader(other)
        await reader.until(b"ready\n")
        doomed = Command(command=["sh", "-c", ": >$1/up; sleep $0", mark, folder])
        task = asyncio.create_task(sandbox.run(doomed))
        await wait_until_exists(sandbox, f"{folder}/up")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await alive(sandbox, mark) == []
        await other.write(b"still here\n")
        await reader.until(b"still here\n")
        assert (await result_of(other)).exit_code == 5


@pytest.mark.needs("shares_workspace")
async def test_two_adapters_on_one_workspace_do_not_disturb_each_other(fresh: Opener) -> None:
    async with fresh() as one:
        async with fresh() as two:
            assert await output_of(one, "echo shared >file; cat file") == "shared\n"
            assert await output_of(two, "cat file") == "shared\n"
            results = await asyncio.gather(
                *(each.run(Command(command=f"echo {n}")) for n in range(4) for each in (one, two))
            )
            assert [int(result.stdout) for result in results] == [n // 2 for n in range(8)]
        assert await output_of(one, "cat file") == "shared\n"
