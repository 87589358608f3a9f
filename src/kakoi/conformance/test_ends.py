"""How a command ended: by its own exit, by a signal, or it could not be started."""

import asyncio
import signal

import pytest

from kakoi.backends.adapter import ExecuteOptions, SandboxAdapter
from kakoi.channel.api import Command
from kakoi.conformance.sandbox_commands import TIMEOUT_S, Reader, result_of, running
from kakoi.errors import ExecutionError, ExecutionTimeoutError, SandboxError
from kakoi.results import Reason

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("code", [0, 1, 127, 137, 255])
async def test_an_exit_code_is_reported_as_it_is(sandbox: SandboxAdapter, code: int) -> None:
    result = await sandbox.run(Command(command=f"exit {code}"))
    assert (result.reason, result.exit_code, result.signal) == (Reason.EXITED, code, None)


@pytest.mark.needs("resident")
async def test_every_exit_code_is_reported_as_it_is(sandbox: SandboxAdapter) -> None:
    results = []
    for first in range(0, 256, 8):
        commands = [Command(command=f"exit {code}") for code in range(first, first + 8)]
        results += await asyncio.gather(*map(sandbox.run, commands))
    assert [result.exit_code for result in results] == list(range(256))
    assert {result.reason for result in results} == {Reason.EXITED}


@pytest.mark.needs("resident")
async def test_every_exit_code_is_reported_as_it_is_at_once(sandbox: SandboxAdapter) -> None:
    commands = [Command(command=f"exit {code}") for code in range(256)]
    results = await asyncio.gather(*map(sandbox.run, commands))
    assert [result.exit_code for result in results] == list(range(256))
    # In an image without Python, many commands at once run with one process less each. The shell
    # prints no message for SIGINT and SIGPIPE, so their exit codes can be mistaken for the signals.
    taken_for_signals = {each.exit_code for each in results if each.reason is not Reason.EXITED}
    assert taken_for_signals <= {128 + signal.SIGINT, 128 + signal.SIGPIPE}


@pytest.mark.needs("channel")
@pytest.mark.parametrize("name", ["KILL", "TERM", "INT", "PIPE", "HUP", "USR1", "SEGV"])
async def test_a_signal_is_the_reason_and_its_default_is_in_force(
    sandbox: SandboxAdapter, name: str
) -> None:
    number = signal.Signals[f"SIG{name}"]
    command = Command(command=["sh", "-c", f"echo before; kill -{name} $$; echo after"])
    result = await sandbox.run(command)
    assert (result.reason, result.exit_code) == (Reason.SIGNALLED, 128 + number)
    assert (result.signal, result.stdout) == (number, "before\n")


@pytest.mark.needs("channel")
async def test_no_signal_is_blocked_or_ignored_for_a_command(sandbox: SandboxAdapter) -> None:
    command = Command(command=["grep", "-E", "^Sig(Blk|Ign):", "/proc/self/status"])
    masks = [int(line.split()[1], 16) for line in (await sandbox.run(command)).stdout.splitlines()]
    # Signals 32 and 33 belong to the C library, and not every program can reset them.
    assert [mask & ~(0b11 << 31) for mask in masks] == [0, 0]


async def test_a_signal_to_a_child_is_the_shells_to_report(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command="sh -c 'kill -9 $$'; exit $?"))
    assert (result.reason, result.exit_code, result.signal) == (Reason.EXITED, 137, None)


async def test_a_missing_program_was_never_started(sandbox: SandboxAdapter) -> None:
    result = await sandbox.run(Command(command=["kakoi-no-such-program", "x"]))
    assert (result.reason, result.exit_code) == (Reason.NEVER_STARTED, 127)
    assert result.error
    assert (result.stdout, result.stderr) == ("", "")


@pytest.mark.needs("channel")
@pytest.mark.parametrize("path", ["/etc/passwd", "/etc"])
async def test_what_cannot_be_executed_was_never_started(
    sandbox: SandboxAdapter, path: str
) -> None:
    result = await sandbox.run(Command(command=[path]))
    assert (result.reason, result.exit_code) == (Reason.NEVER_STARTED, 126)
    assert result.error


@pytest.mark.parametrize("command", ["echo hi", ["echo", "hi"]], ids=["text", "argv"])
@pytest.mark.parametrize("cwd", ["/kakoi/no/such/folder", "/etc/passwd"])
async def test_without_its_directory_a_command_was_never_started(
    sandbox: SandboxAdapter, cwd: str, command: str | list[str]
) -> None:
    result = await sandbox.run(Command(command=command, cwd=cwd))
    assert result.reason is Reason.NEVER_STARTED
    assert result.exit_code in (126, 127)
    assert result.error
    assert result.stdout == ""


async def test_what_the_shell_does_not_find_is_the_commands_failure(
    sandbox: SandboxAdapter,
) -> None:
    result = await sandbox.run(Command(command="kakoi-no-such-program"))
    assert (result.reason, result.exit_code) == (Reason.EXITED, 127)
    assert "kakoi-no-such-program" in result.stderr


async def test_invalid_shell_text_fails_with_the_message_of_the_shell(
    sandbox: SandboxAdapter,
) -> None:
    result = await sandbox.run(Command(command="echo 'never closed"))
    assert result.reason is Reason.EXITED
    assert result.exit_code != 0
    assert result.stderr


async def test_a_result_carries_the_name_of_its_command(sandbox: SandboxAdapter) -> None:
    command = Command(command="true")
    assert (await sandbox.run(command)).id == command.id


@pytest.mark.needs("usage")
async def test_a_result_says_what_the_command_used(sandbox: SandboxAdapter) -> None:
    text = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done; command -v python3; true"
    busy = await sandbox.run(Command(command=text, timeout_s=TIMEOUT_S))
    assert busy.cpu_ms > 10
    assert busy.duration_ms >= 10
    # A shell cannot find out how much memory its children used.
    assert 100_000 < busy.max_rss_bytes < 10**9 or not busy.stdout


@pytest.mark.parametrize("name", ["USR1", "TERM", "KILL"])
async def test_a_signal_reaches_the_command_and_its_children(
    sandbox: SandboxAdapter, name: str
) -> None:
    text = "sh -c 'echo $$; exec sleep 300' & echo ready; wait $!; exit $?"
    number = signal.Signals[f"SIG{name}"]
    async with running(sandbox, Command(command=["sh", "-c", text])) as opened:
        reader = Reader(opened)
        await reader.until(rb"ready\n")
        await opened.signal(number)
        result = await result_of(opened)
    assert (result.reason, result.signal) == (Reason.SIGNALLED, number)


async def test_a_command_can_handle_a_signal(sandbox: SandboxAdapter) -> None:
    text = "trap 'echo caught; exit 9' USR2; echo ready; while :; do sleep 0.1; done"
    async with running(sandbox, Command(command=["sh", "-c", text])) as opened:
        await Reader(opened).until(b"ready\n")
        await opened.signal(signal.SIGUSR2)
        result = await result_of(opened)
    assert (result.reason, result.exit_code) == (Reason.EXITED, 9)


async def test_a_command_can_be_stopped_and_continued(sandbox: SandboxAdapter) -> None:
    text = "echo ready; read -r word; echo $word"
    command = Command(command=["sh", "-c", text], stdin_open=True)
    async with running(sandbox, command) as opened:
        reader = Reader(opened)
        await reader.until(b"ready\n")
        await opened.signal(signal.SIGSTOP)
        await opened.write(b"hello\n")
        await opened.signal(signal.SIGCONT)
        await reader.until(b"hello\n")
        assert (await result_of(opened)).ok


# --- `execute`, which raises on timeouts and on commands that did not start ------------------


async def test_execute_gives_an_exit_code_whatever_it_is(sandbox: SandboxAdapter) -> None:
    result = await sandbox.execute("echo hi; exit 3")
    assert (result.exitCode, result.stdout) == (3, "hi\n")
    assert (await sandbox.execute(["printf", "%s", "a b"])).stdout == "a b"


async def test_execute_passes_its_options_on(sandbox: SandboxAdapter) -> None:
    options = ExecuteOptions(cwd="/", env={"WORD": "x y"}, timeout=TIMEOUT_S * 1000)
    result = await sandbox.execute('pwd; echo "$WORD"', options)
    assert result.stdout == "/\nx y\n"


async def test_execute_raises_when_the_time_is_up_and_keeps_the_output(
    sandbox: SandboxAdapter,
) -> None:
    for timeout_ms in (1_000, 4_000, 16_000):
        with pytest.raises(ExecutionTimeoutError) as failure:
            await sandbox.execute("echo hi; sleep 300", ExecuteOptions(timeout=timeout_ms))
        assert isinstance(failure.value, SandboxError)
        assert isinstance(failure.value, TimeoutError)
        if failure.value.details["stdout"] == "hi\n":
            return
    pytest.fail("the command never came to its first word")


async def test_execute_raises_when_nothing_was_started(sandbox: SandboxAdapter) -> None:
    with pytest.raises(ExecutionError, match="not started"):
        await sandbox.execute(["kakoi-no-such-program"])
