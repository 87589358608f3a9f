"""Commands in the background: started, read by offset, fed, stopped, found again."""

import asyncio
import errno
import signal

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import MIB, Channel, Command, OutputPart, Stream, TerminalSize
from kakoi.conformance.conftest import Opener
from kakoi.conformance.process_view import alive
from kakoi.conformance.sandbox_commands import TIMEOUT_S
from kakoi.errors import ConfigurationError, UnsupportedError
from kakoi.results import Reason

pytestmark = [pytest.mark.anyio, pytest.mark.needs("jobs")]


async def read_to_the_end(channel: Channel, job: str, stream: Stream = "stdout") -> bytes:
    data = b""
    while True:
        part = await channel.read_output(job, stream, offset=len(data), wait_s=TIMEOUT_S)
        data += part.data
        if part.ended:
            return data


async def first_part(channel: Channel, job: str) -> OutputPart:
    return await channel.read_output(job, "stdout", wait_s=TIMEOUT_S)


async def test_a_job_goes_on_after_it_was_started(channel: Channel, mark: str) -> None:
    job = await channel.start(Command(command=["sh", "-c", "echo up; sleep $0", mark]))
    assert (await first_part(channel, job)).data == b"up\n"
    (info,) = [each for each in await channel.list_jobs() if each.id == job]
    assert info.running
    assert mark in info.command
    assert (info.stdout_bytes, info.stderr_bytes) == (3, 0)
    assert info.started_s_ago >= 0
    assert await channel.wait_job(job, wait_s=0.01) is None
    await channel.stop_job(job)


async def test_a_job_that_has_ended_can_still_be_asked(channel: Channel) -> None:
    job = await channel.start(Command(command="echo out; echo err >&2; exit 3"))
    result = await channel.wait_job(job, wait_s=TIMEOUT_S)
    assert result is not None
    assert (result.reason, result.exit_code, result.id) == (Reason.EXITED, 3, job)
    assert await read_to_the_end(channel, job) == b"out\n"
    assert await read_to_the_end(channel, job, "stderr") == b"err\n"
    (info,) = [each for each in await channel.list_jobs() if each.id == job]
    assert not info.running
    assert info.result is not None
    assert info.result.exit_code == 3


async def test_waiting_without_a_limit_waits_for_the_end(channel: Channel) -> None:
    command = Command(command="read -r line; exit 4", stdin_open=True)
    job = await channel.start(command)
    waiting = asyncio.create_task(channel.wait_job(job))
    await channel.write_stdin(job, b"go\n")
    result = await asyncio.wait_for(waiting, TIMEOUT_S)
    assert result is not None
    assert result.exit_code == 4


async def test_output_is_read_by_offset(channel: Channel) -> None:
    job = await channel.start(Command(command="printf 0123456789"))
    await channel.wait_job(job, wait_s=TIMEOUT_S)
    part = await channel.read_output(job, "stdout", offset=2, limit=3)
    assert (part.data, part.offset, part.next_offset, part.ended) == (b"234", 2, 5, False)
    part = await channel.read_output(job, "stdout", offset=part.next_offset)
    assert (part.data, part.next_offset, part.ended) == (b"56789", 10, True)
    part = await channel.read_output(job, "stdout", offset=10)
    assert (part.data, part.next_offset, part.ended) == (b"", 10, True)


async def test_a_reader_is_woken_by_the_next_output(channel: Channel) -> None:
    command = Command(command="while read -r line; do echo got $line; done", stdin_open=True)
    job = await channel.start(command)
    offset = 0
    for word in (b"one", b"two", b"three"):
        waiting = asyncio.create_task(
            channel.read_output(job, "stdout", offset=offset, wait_s=TIMEOUT_S)
        )
        await channel.write_stdin(job, word + b"\n")
        part = await waiting
        assert (part.data, part.ended) == (b"got " + word + b"\n", False)
        offset = part.next_offset
    await channel.write_stdin(job, b"", close=True)
    assert (await channel.read_output(job, "stdout", offset=offset, wait_s=TIMEOUT_S)).ended
    result = await channel.wait_job(job, wait_s=TIMEOUT_S)
    assert result is not None
    assert result.ok


async def test_a_reader_that_does_not_wait_gets_what_is_there(channel: Channel, mark: str) -> None:
    job = await channel.start(Command(command=["sleep", mark]))
    part = await channel.read_output(job, "stdout")
    assert (part.data, part.ended) == (b"", False)
    await channel.stop_job(job)


async def test_output_that_nobody_reads_does_not_stop_a_job(channel: Channel) -> None:
    size = 32 * MIB
    text = f"head -c {size} /dev/zero; echo end >&2"
    job = await channel.start(Command(command=text, spill_bytes=MIB))
    result = await channel.wait_job(job, wait_s=2 * TIMEOUT_S)
    assert result is not None
    assert (result.exit_code, result.stdout_bytes) == (0, size)
    last = await channel.read_output(job, "stdout", offset=MIB - 1)
    assert (last.data, last.ended, last.lost_bytes) == (b"\0", True, size - MIB)


async def test_stopping_a_job_ends_everything_it_started(
    channel: Channel, sandbox: SandboxAdapter, mark: str
) -> None:
    text = "trap '' TERM; sleep $0 & (setsid sleep $0 &); echo up; sleep $0"
    job = await channel.start(Command(command=["sh", "-c", text, mark]))
    await first_part(channel, job)
    result = await channel.stop_job(job)
    assert await alive(sandbox, mark) == []
    assert (result.reason, result.exit_code, result.stdout_bytes) == (Reason.CANCELLED, 130, 3)
    again = await channel.stop_job(job)
    assert again.reason is Reason.CANCELLED


async def test_a_job_receives_signals(channel: Channel) -> None:
    text = "trap 'echo got it; exit 7' USR1; echo up; while :; do sleep 0.05; done"
    job = await channel.start(Command(command=text))
    await first_part(channel, job)
    await channel.signal_job(job, signal.SIGUSR1)
    result = await channel.wait_job(job, wait_s=TIMEOUT_S)
    assert result is not None
    assert (result.reason, result.exit_code) == (Reason.EXITED, 7)
    assert b"got it\n" in await read_to_the_end(channel, job)
    await channel.signal_job(job, signal.SIGKILL)  # Nobody is there to receive it.


async def test_a_signal_reaches_all_of_a_job_and_nobody_else(
    channel: Channel, sandbox: SandboxAdapter, mark: str
) -> None:
    other = await channel.start(Command(command=["sleep", mark]))
    job = await channel.start(Command(command=["sh", "-c", "sleep $0 & echo up; wait", mark]))
    await first_part(channel, job)
    await channel.signal_job(job, signal.SIGTERM)
    result = await channel.wait_job(job, wait_s=TIMEOUT_S)
    assert result is not None
    assert (result.reason, result.signal) == (Reason.SIGNALLED, signal.SIGTERM)
    assert len(await alive(sandbox, mark)) >= 1
    assert await channel.wait_job(other, wait_s=0) is None
    await channel.stop_job(other)


async def test_a_signal_that_is_none_or_for_nobody_is_refused(channel: Channel, mark: str) -> None:
    with pytest.raises(ConfigurationError, match="no job"):
        await channel.signal_job("nobody", signal.SIGTERM)
    job = await channel.start(Command(command=["sleep", mark]))
    for number in (0, -9, 65, 4096):
        with pytest.raises((ConfigurationError, OSError)):
            await channel.signal_job(job, number)
    assert await channel.wait_job(job, wait_s=0) is None
    await channel.stop_job(job)


@pytest.mark.needs("terminal")
async def test_the_terminal_of_a_job_has_the_size_it_is_given(channel: Channel) -> None:
    """A sandbox resizes the terminals of jobs, or says that jobs have none."""
    text = "trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.05; done"
    small, large = TerminalSize(10, 40), TerminalSize(33, 111)
    try:
        job = await channel.start(Command(command=text, terminal=small))
    except UnsupportedError:
        with pytest.raises(UnsupportedError, match="cannot have a terminal"):
            await channel.resize_job("any", large)
        return
    assert (await first_part(channel, job)).data == b"10 40\r\n"
    await channel.resize_job(job, large)
    assert await read_to_the_end(channel, job) == b"10 40\r\n33 111\r\n"
    await channel.resize_job(job, small)
    plain = await channel.start(Command(command="sleep 9"))
    with pytest.raises(OSError, match="terminal") as failure:
        await channel.resize_job(plain, large)
    assert failure.value.errno == errno.ENOTTY
    await channel.stop_job(plain)


async def test_a_job_keeps_its_limits(channel: Channel, sandbox: SandboxAdapter, mark: str) -> None:
    late = await channel.start(Command(command=["sleep", mark], timeout_s=0.3))
    idle = await channel.start(Command(command=["sleep", mark], idle_timeout_s=0.3))
    for job, reason in ((late, Reason.TIMED_OUT), (idle, Reason.IDLE_TIMEOUT)):
        result = await channel.wait_job(job, wait_s=TIMEOUT_S)
        assert result is not None
        assert (result.reason, result.exit_code) == (reason, 124)
    assert await alive(sandbox, mark) == []


async def test_a_job_with_a_limit_ends_when_its_command_does(channel: Channel) -> None:
    for total_s, idle_s in ((600.0, None), (None, 600.0)):
        command = Command(command="echo done", timeout_s=total_s, idle_timeout_s=idle_s)
        job = await channel.start(command)
        result = await channel.wait_job(job, wait_s=TIMEOUT_S)
        assert result is not None
        assert (result.reason, result.exit_code) == (Reason.EXITED, 0)


async def test_a_job_that_cannot_be_started_says_so(channel: Channel) -> None:
    job = await channel.start(Command(command=["kakoi-no-such-program"]))
    result = await channel.wait_job(job, wait_s=TIMEOUT_S)
    assert result is not None
    assert (result.reason, result.exit_code) == (Reason.NEVER_STARTED, 127)
    assert result.error


async def test_a_job_can_be_given_a_megabyte_at_its_start_and_no_more(channel: Channel) -> None:
    job = await channel.start(Command(command="wc -c", stdin=bytes(MIB)))
    assert int(await read_to_the_end(channel, job)) == MIB
    with pytest.raises(ConfigurationError):
        await channel.start(Command(command="wc -c", stdin=bytes(MIB + 1)))


@pytest.mark.parametrize("name", ["no-such-job", "..", "a" * 64])
async def test_a_job_that_is_not_there_is_the_callers_error(channel: Channel, name: str) -> None:
    with pytest.raises(ConfigurationError):
        await channel.read_output(name, "stdout")
    with pytest.raises(ConfigurationError):
        await channel.stop_job(name)
    with pytest.raises(ConfigurationError):
        await channel.wait_job(name)
    with pytest.raises(ConfigurationError):
        await channel.write_stdin(name, b"x")


@pytest.mark.slow("shells start many commands one after the other")
async def test_fifty_jobs_at_once(channel: Channel) -> None:
    commands = [Command(command=f"echo {number}; exit {number}") for number in range(50)]
    jobs = await asyncio.gather(*map(channel.start, commands))
    assert jobs == [command.id for command in commands]
    results = await asyncio.gather(*(channel.wait_job(job, wait_s=TIMEOUT_S) for job in jobs))
    assert [result.exit_code for result in results if result] == list(range(50))
    outputs = await asyncio.gather(*(read_to_the_end(channel, job) for job in jobs))
    assert outputs == [b"%d\n" % number for number in range(50)]


async def test_cleanup_ends_every_job(fresh: Opener, mark: str) -> None:
    async with fresh() as sandbox:
        channel = await sandbox.channel()
        text = "(setsid sleep $0 &); echo up; sleep $0"
        job = await channel.start(Command(command=["sh", "-c", text, mark]))
        await first_part(channel, job)
    async with fresh() as sandbox:
        assert await alive(sandbox, mark) == []


# --- At most once ----------------------------------------------------------------------------


@pytest.mark.needs("resident")
async def test_the_same_id_twice_is_one_execution(
    sandbox: SandboxAdapter, channel: Channel, folder: str
) -> None:
    command = Command(command=f"echo x >>{folder}/effects; echo hi; exit 3")
    first = await sandbox.run(command)
    second = await sandbox.run(command)
    assert (first.exit_code, second.exit_code) == (3, 3)
    assert first.stdout == "hi\n"
    assert second.id == first.id
    assert (await sandbox.run(Command(command=f"cat {folder}/effects"))).stdout == "x\n"


@pytest.mark.needs("resident")
async def test_the_same_id_at_the_same_time_is_one_execution(
    sandbox: SandboxAdapter, folder: str
) -> None:
    command = Command(command=f"echo x >>{folder}/effects; sleep 0.2; exit 3")
    results = await asyncio.gather(*(sandbox.run(command) for _ in range(10)))
    assert {result.exit_code for result in results} == {3}
    assert (await sandbox.run(Command(command=f"cat {folder}/effects"))).stdout == "x\n"


async def test_a_job_that_is_started_twice_runs_once(channel: Channel, folder: str) -> None:
    command = Command(command=f"echo x >>{folder}/effects; echo hi")
    assert await channel.start(command) == await channel.start(command) == command.id
    await channel.wait_job(command.id, wait_s=TIMEOUT_S)
    await channel.start(command)
    assert await read_to_the_end(channel, command.id) == b"hi\n"
    assert (await channel.run(Command(command=f"cat {folder}/effects"))).stdout == "x\n"
