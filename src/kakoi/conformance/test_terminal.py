"""Commands on a terminal."""

import signal

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import Command, TerminalSize
from kakoi.conformance.process_view import alive
from kakoi.conformance.sandbox_commands import TIMEOUT_S, Reader, result_of, running
from kakoi.results import Reason

pytestmark = [pytest.mark.anyio, pytest.mark.needs("terminal")]

SIZE = TerminalSize(rows=40, columns=100)


async def test_all_three_streams_are_the_terminal(sandbox: SandboxAdapter) -> None:
    text = "test -t 0 && test -t 1 && test -t 2 && echo yes && echo tty >/dev/tty"
    result = await sandbox.run(Command(command=text, terminal=SIZE, timeout_s=TIMEOUT_S))
    assert (result.stdout, result.exit_code) == ("yes\r\ntty\r\n", 0)


async def test_without_one_no_stream_is_a_terminal(sandbox: SandboxAdapter) -> None:
    text = "test -t 0 || test -t 1 || test -t 2 || (: >/dev/tty) 2>/dev/null || echo none"
    assert (await sandbox.run(Command(command=text))).stdout == "none\n"


async def test_both_streams_arrive_as_one_and_in_order(sandbox: SandboxAdapter) -> None:
    text = "stty -onlcr; for i in 1 2 3 4; do echo out $i; echo err $i >&2; done"
    result = await sandbox.run(Command(command=text, terminal=SIZE, timeout_s=TIMEOUT_S))
    expected = "".join(f"out {number}\nerr {number}\n" for number in range(1, 5))
    assert (result.stdout, result.stderr) == (expected, "")


async def test_it_has_the_size_that_was_asked_for(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command="stty size", terminal=SIZE, timeout_s=TIMEOUT_S))
    assert result.stdout.split() == ["40", "100"]


async def test_a_new_size_reaches_the_command(sandbox: SandboxAdapter) -> None:
    text = "trap 'stty size; exit 7' WINCH; echo ready; while :; do sleep 0.1; done"
    async with running(sandbox, Command(command=["sh", "-c", text], terminal=SIZE)) as opened:
        reader = Reader(opened)
        await reader.until(b"ready")
        await opened.resize(TerminalSize(rows=50, columns=120))
        await reader.until(b"50 120")
        assert (await result_of(opened)).exit_code == 7


async def test_what_is_typed_is_echoed_and_read(sandbox: SandboxAdapter) -> None:
    text = "echo ready; read -r word; echo got $word"
    command = Command(command=text, terminal=SIZE, stdin_open=True)
    async with running(sandbox, command) as opened:
        reader = Reader(opened)
        await reader.until(b"ready")
        await opened.write(b"hello\n")
        await reader.until(b"hello\r\ngot hello\r\n")
        assert (await result_of(opened)).ok


async def test_input_can_be_given_beforehand(sandbox: SandboxAdapter) -> None:
    command = Command(
        command="read -r a; read -r b; echo $a and $b",
        stdin=b"one\ntwo\n",
        terminal=SIZE,
        timeout_s=TIMEOUT_S,
    )
    assert "one and two" in (await sandbox.run(command)).stdout


async def test_control_c_interrupts(sandbox: SandboxAdapter) -> None:
    command = Command(command=["cat"], terminal=SIZE, stdin_open=True)
    async with running(sandbox, command) as opened:
        await opened.write(b"hello\n")
        await Reader(opened).until(b"hello\r\nhello\r\n")
        await opened.write(b"\x03")
        result = await result_of(opened)
    assert (result.reason, result.signal) == (Reason.SIGNALLED, signal.SIGINT)


async def test_control_d_ends_the_input(sandbox: SandboxAdapter) -> None:
    command = Command(command=["cat"], terminal=SIZE, stdin_open=True)
    async with running(sandbox, command) as opened:
        await opened.write(b"hello\n")
        await Reader(opened).until(b"hello\r\nhello\r\n")
        await opened.write(b"\x04")
        assert (await result_of(opened)).ok


async def test_closing_the_input_ends_it(sandbox: SandboxAdapter) -> None:
    command = Command(command=["cat"], terminal=SIZE, stdin_open=True)
    async with running(sandbox, command) as opened:
        await opened.close_stdin()
        assert (await result_of(opened)).ok


async def test_without_input_a_reader_on_a_terminal_finds_the_end(
    sandbox: SandboxAdapter,
) -> None:
    command = Command(command=["cat"], terminal=SIZE, timeout_s=TIMEOUT_S)
    result = await sandbox.run(command)
    assert (result.reason, result.exit_code) == (Reason.EXITED, 0)


async def test_much_output_arrives_whole(sandbox: SandboxAdapter) -> None:
    text = "stty -onlcr; i=0; while [ $i -lt 20000 ]; do echo $i; i=$((i + 1)); done"
    result = await sandbox.run(Command(command=text, terminal=SIZE, timeout_s=TIMEOUT_S))
    assert result.stdout.split() == [str(number) for number in range(20000)]


async def test_everything_on_it_is_dead_when_the_time_is_up(
    sandbox: SandboxAdapter, mark: str
) -> None:
    text = "trap '' HUP; sleep $0 & (setsid sleep $0 &); echo ready; sleep $0"
    for timeout_s in (1, 4, 16):
        result = await sandbox.run(
            Command(command=["sh", "-c", text, mark], terminal=SIZE, timeout_s=timeout_s)
        )
        assert result.reason is Reason.TIMED_OUT
        assert await alive(sandbox, mark) == []
        if result.stdout == "ready\r\n":
            return
    pytest.fail("the command never came to its first word")


async def test_it_returns_when_it_exits_though_a_child_holds_the_terminal(
    sandbox: SandboxAdapter, mark: str
) -> None:
    text = "trap '' HUP; sleep $0 & echo hi"
    result = await sandbox.run(
        Command(command=["sh", "-c", text, mark], terminal=SIZE, timeout_s=TIMEOUT_S)
    )
    assert (result.reason, result.stdout) == (Reason.EXITED, "hi\r\n")
    assert await alive(sandbox, mark) == []


async def test_a_terminal_is_not_seen_by_the_next_command(sandbox: SandboxAdapter) -> None:
    await sandbox.run(Command(command="stty -echo", terminal=SIZE, timeout_s=TIMEOUT_S))
    result = await sandbox.run(Command(command="stty -a", terminal=SIZE, timeout_s=TIMEOUT_S))
    assert " echo " in result.stdout
