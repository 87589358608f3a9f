"""Output arrives complete and in order, with separate streams, truncated only at the limit."""

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import MIB, Channel, Command
from kakoi.conformance.sandbox_commands import TIMEOUT_S, Reader, result_of, running
from kakoi.results import Reason

pytestmark = pytest.mark.anyio


async def test_the_two_streams_arrive_apart(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command="echo out; echo err >&2"))
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert (result.stdout_bytes, result.stderr_bytes) == (4, 4)
    assert not result.truncated


async def test_a_silent_command_has_empty_output(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command="true"))
    assert result.ok
    assert (result.stdout, result.stderr, result.stdout_bytes) == ("", "", 0)
    assert not result.truncated


async def test_a_last_line_without_an_end_stays_without_one(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command="printf 'a\\n\\nb'"))
    assert result.stdout == "a\n\nb"


async def test_control_characters_and_zero_bytes_arrive_unchanged(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command=r"printf 'a\000b\033[31m\r\n\007'"))
    assert result.stdout == "a\0b\x1b[31m\r\n\a"


async def test_bytes_that_are_not_text_are_replaced_and_counted(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command=r"printf 'a\377\376b'; printf '\200' >&2"))
    assert (result.stdout, result.stderr) == ("a��b", "�")
    assert (result.stdout_bytes, result.stderr_bytes) == (4, 1)


async def test_a_character_that_is_written_in_pieces_arrives_whole(
    sandbox: SandboxAdapter,
) -> None:
    result = await sandbox.run(Command(command=r"printf '\343\201'; sleep 0.1; printf '\202'"))
    assert result.stdout == "あ"


async def test_twenty_thousand_lines_arrive_in_order(sandbox: SandboxAdapter) -> None:
    text = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i + 1)); done"
    result = await sandbox.run(Command(command=text))
    assert result.stdout.splitlines() == [str(number) for number in range(20000)]


@pytest.mark.needs("channel")
async def test_a_line_of_three_megabytes_arrives_whole(sandbox: SandboxAdapter) -> None:
    text = f"head -c {3 * MIB} /dev/zero | tr '\\0' x"
    result = await sandbox.run(Command(command=text, max_output_bytes=4 * MIB))
    assert len(result.stdout) == 3 * MIB
    assert set(result.stdout) == {"x"}
    assert not result.truncated


async def test_the_head_is_kept_and_all_is_counted(sandbox: SandboxAdapter) -> None:
    text = "printf 0123456789abc; printf xyz >&2"
    result = await sandbox.run(Command(command=text, max_output_bytes=10))
    assert (result.stdout, result.stdout_bytes, result.stdout_truncated) == ("0123456789", 13, True)
    assert (result.stderr, result.stderr_bytes, result.stderr_truncated) == ("xyz", 3, False)


async def test_output_of_exactly_the_limit_is_not_cut(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command="printf 0123456789", max_output_bytes=10))
    assert (result.stdout, result.truncated) == ("0123456789", False)


async def test_a_cut_does_not_break_a_character(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command="printf あいうえお", max_output_bytes=10))
    assert (result.stdout, result.stdout_bytes, result.truncated) == ("あいう", 15, True)


async def test_nothing_at_all_may_be_kept(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command="echo hello", max_output_bytes=0))
    assert (result.stdout, result.stdout_bytes, result.truncated) == ("", 6, True)


async def test_a_command_may_close_its_output_and_go_on(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command="echo hi; exec >&- 2>&-; sleep 0.1; exit 4"))
    assert (result.exit_code, result.stdout) == (4, "hi\n")


async def test_output_is_seen_while_the_command_runs(sandbox: SandboxAdapter) -> None:
    """The command waits for a reply to its output."""
    text = "echo one; read -r word; echo two $word; echo three >&2"
    async with running(sandbox, Command(command=text, stdin_open=True)) as opened:
        reader = Reader(opened)
        await reader.until(b"one\n")
        await opened.write(b"go\n")
        await reader.until(b"two go\n")
        await reader.to_the_end()
        result = await result_of(opened)
    assert (reader.stdout, reader.stderr) == (b"", b"three\n")
    assert (result.reason, result.exit_code, result.stdout_bytes) == (Reason.EXITED, 0, 11)


async def test_live_output_is_complete_and_in_order(sandbox: SandboxAdapter) -> None:
    text = "i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i + 1)); done"
    async with running(sandbox, Command(command=text)) as opened:
        reader = Reader(opened)
        await reader.to_the_end()
    assert reader.stdout.split() == [b"%d" % number for number in range(20000)]


async def test_a_reader_that_does_not_read_holds_the_command_back(
    sandbox: SandboxAdapter, folder: str
) -> None:
    """It cannot write a hundred megabytes that nobody reads, while other commands continue."""
    text = f"head -c {100 * MIB} /dev/zero; : >{folder}/written"
    async with running(sandbox, Command(command=text)) as opened:
        await anext(aiter(opened.output()))
        for _ in range(3):
            other = await sandbox.run(Command(command=["test", "-e", f"{folder}/written"]))
            assert other.exit_code == 1
        result = await result_of(opened)
    assert (result.exit_code, result.stdout_bytes) == (0, 100 * MIB)


@pytest.mark.needs("resident")
async def test_output_beyond_the_kept_head_can_be_read_afterwards(channel: Channel) -> None:
    text = "i=100000; while [ $i -lt 110000 ]; do echo $i; i=$((i + 1)); done"
    result = await channel.run(Command(command=text, max_output_bytes=7, timeout_s=TIMEOUT_S))
    assert (result.stdout, result.stdout_bytes) == ("100000\n", 70_000)
    part = await channel.read_output(result.id, "stdout", offset=7 * 9_999, limit=100)
    assert (part.data, part.offset, part.ended) == (b"109999\n", 69_993, True)
    assert part.next_offset == 70_000
