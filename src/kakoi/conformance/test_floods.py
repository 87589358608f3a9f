"""However much a command writes, our memory use stays flat and the byte count is right."""

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import MIB, Command
from kakoi.conformance.process_view import peak_memory, reset_peak_memory
from kakoi.conformance.sandbox_commands import running

pytestmark = pytest.mark.anyio

GIB = 1024 * MIB
ALLOWED_GROWTH = 30 * MIB
LIMIT_S = 240


@pytest.mark.extended("size: a flood of 32 MiB on both streams proves the same")
@pytest.mark.slow("a shell without Python passes a gigabyte on")
async def test_a_gigabyte_through_a_limit_of_a_megabyte(sandbox: SandboxAdapter) -> None:
    await sandbox.run(Command(command="true"))
    before = reset_peak_memory()
    command = Command(command=f"printf head; head -c {GIB - 4} /dev/zero", timeout_s=LIMIT_S)
    result = await sandbox.run(command)
    growth = peak_memory() - before
    assert (result.exit_code, result.stdout_bytes) == (0, GIB)
    assert (len(result.stdout), result.stdout[:5]) == (MIB, "head\0")
    assert (result.stdout_truncated, result.stderr_truncated) == (True, False)
    assert growth < ALLOWED_GROWTH


@pytest.mark.needs("resident")
async def test_what_was_spilled_can_be_read_at_any_place(sandbox: SandboxAdapter) -> None:
    text = "i=1000000; while [ $i -lt 1150000 ]; do echo $i; i=$((i + 1)); done"
    command = Command(command=text, max_output_bytes=16, spill_bytes=MIB, timeout_s=LIMIT_S)
    result = await sandbox.run(command)
    assert (result.stdout_bytes, result.stdout) == (1_200_000, "1000000\n1000001\n")
    channel = await sandbox.channel()
    for offset in (0, 8, 800_000):
        part = await channel.read_output(result.id, "stdout", offset=offset, limit=8)
        assert part.data == b"%d\n" % (1_000_000 + offset // 8)
        assert part.next_offset == offset + 8
    last = await channel.read_output(result.id, "stdout", offset=MIB - 8, limit=100)
    assert (last.data, last.ended) == (b"%d\n" % (1_000_000 + MIB // 8 - 1), True)
    assert last.lost_bytes == 1_200_000 - MIB


@pytest.mark.slow("shells pass 64 MiB on")
async def test_a_flood_on_both_streams(sandbox: SandboxAdapter) -> None:
    await sandbox.run(Command(command="true"))
    before = reset_peak_memory()
    size = 32 * MIB
    text = f"head -c {size} /dev/zero & head -c {size} /dev/zero >&2 & wait"
    result = await sandbox.run(Command(command=text, timeout_s=LIMIT_S))
    growth = peak_memory() - before
    assert (result.stdout_bytes, result.stderr_bytes) == (size, size)
    assert (result.stdout_truncated, result.stderr_truncated) == (True, True)
    assert growth < ALLOWED_GROWTH


async def test_a_flood_that_is_read_as_it_comes(sandbox: SandboxAdapter) -> None:
    size = 64 * MIB
    before = reset_peak_memory()
    seen = 0
    command = Command(command=f"head -c {size} /dev/zero", timeout_s=LIMIT_S)
    async with running(sandbox, command) as opened:
        async for _stream, data in opened.output():
            seen += len(data)
        result = await opened.result()
    growth = peak_memory() - before
    assert (seen, result.stdout_bytes) == (size, size)
    assert growth < ALLOWED_GROWTH


async def test_a_flood_of_input(sandbox: SandboxAdapter) -> None:
    before = reset_peak_memory()
    chunk = bytes(MIB)
    async with running(sandbox, Command(command="wc -c", stdin_open=True)) as opened:
        for _ in range(64):
            await opened.write(chunk)
        await opened.close_stdin()
        result = await opened.result()
    growth = peak_memory() - before
    assert int(result.stdout) == 64 * MIB
    assert growth < ALLOWED_GROWTH


@pytest.mark.needs("resident")
@pytest.mark.slow("shells pass 60 MiB on")
async def test_many_floods_leave_no_memory_behind(sandbox: SandboxAdapter) -> None:
    command = f"head -c {2 * MIB} /dev/zero; head -c {2 * MIB} /dev/zero >&2"
    await sandbox.run(Command(command=command, timeout_s=LIMIT_S))
    before = reset_peak_memory()
    for _ in range(15):
        await sandbox.run(Command(command=command, timeout_s=LIMIT_S))
    assert peak_memory() - before < ALLOWED_GROWTH
