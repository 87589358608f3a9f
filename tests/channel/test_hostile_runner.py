"""The other end may be anything: a command that replaced the runner, a corpse, a liar.

Whatever it does, every waiting caller soon gets an error, nothing of it is left, and the next command
gets a runner that works.
"""

import asyncio
import contextlib
import json
import math
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.channel.api import Channel, Command, FileEvent, FileInfo, TerminalSize
from kakoi.channel.connection import Connection
from kakoi.channel.delivery import RunnerSettings
from kakoi.channel.runner_answers import (
    Hello,
    ListingParser,
    parse_events,
    parse_file,
    parse_jobs,
    parse_object,
    parse_result,
)
from kakoi.channel.runner_channel import RunnerChannel, open_channel
from kakoi.channel.runner_stream import RunnerTimeouts
from kakoi.errors import ExecutionError, SandboxError
from kakoi.process.stream import Launch, ProcessStream
from kakoi.results import Capture, ExecutionResult, Reason
from kakoi.runner import frames
from kakoi.runner.frames import BadFrame
from tests.runner.conftest import QUICK, host_launch, soon, until

in_a_loop = pytest.mark.usefixtures("nothing_leaks")

# A Python that speaks as a runner does, as far as it is told to.
PRELUDE = f"""
import json, os, signal, struct, sys, time
HEAD, WINDOW, MAX_DATA = struct.Struct(">BII"), {frames.WINDOW}, {frames.MAX_DATA}
REQUEST, INPUT, CANCEL, CREDIT, HELLO, ANSWER, STDOUT, STDERR = range(1, 9)

def take(size):
    data = b""
    while len(data) < size:
        part = os.read(0, size - len(data))
        if not part: os._exit(0)
        data += part
    return data

def put(data):
    data = memoryview(data)
    while data: data = data[os.write(1, data):]

def say(kind, number, body=b""):
    if not isinstance(body, bytes): body = json.dumps(body).encode()
    put(HEAD.pack(kind, number, len(body)) + body)

def hear():
    kind, number, size = HEAD.unpack(take(HEAD.size))
    return kind, number, take(size)

def request():
    while True:
        kind, number, body = hear()
        if kind == REQUEST: return number, json.loads(body)

def greet():
    put(b"kakoi 00000000\\n")
    take(int(take(10)))

HI = {{"version": 1, "shell": "/bin/sh", "uid": 0, "cwd": "/"}}
def hello():
    greet()
    say(HELLO, 0, HI)

def result(order, **changes):
    return {{"id": order["id"], "kind": "exited", "number": 0, "error": "", "duration_ms": 1,
            "bytes": [0, 0], "stored": [0, 0], "cwd": "", "cpu_ms": 0, "max_rss_kib": 0,
            "ended": 0, "survivors": 0, "disk_full": "", "kept_out": "", "exports": "", **changes}}

def stay():
    while os.read(0, 65536): pass
    os._exit(0)

def hang():
    time.sleep(300)
    os._exit(9)
"""
AFTER_A_REQUEST = PRELUDE + "hello(); number, order = request()\n"


class HostileSandbox:
    """A sandbox whose first runner is a script of ours, and every later one is real."""

    def __init__(self, script: str, timeouts: RunnerTimeouts = QUICK) -> None:
        self._script = script
        self._timeouts = timeouts
        self._connection = Connection(self._open)
        self.opened = 0

    async def _open(self) -> RunnerChannel:
        self.opened += 1
        argv = [sys.executable, "-I", "-S", "-c", self._script]
        if self.opened > 1:
            return await open_channel(host_launch(), RunnerSettings())
        launch = Launch(argv=argv, env={}, kept=True)
        return await open_channel(launch, RunnerSettings(), ProcessStream, self._timeouts)

    async def channel(self) -> Channel:
        return await soon(self._connection.channel())

    async def run(self, command: Command) -> ExecutionResult:
        return await soon((await self.channel()).run(command))

    async def __aenter__(self) -> "HostileSandbox":
        return self

    async def __aexit__(self, *_error: object) -> None:
        await soon(self._connection.close())


async def the_next_one_works(sandbox: HostileSandbox) -> None:
    result = await sandbox.run(Command(command="echo again"))
    assert (result.reason, result.stdout) == (Reason.EXITED, "again\n")
    assert sandbox.opened == 2


# --- Before it has greeted -------------------------------------------------------------------

BAD_STARTS = {
    "is gone at once": "",
    "is gone in the middle of a greeting": "put(b'kakoi 0000')",
    "greets in another way": "put(b'Welcome to Alpine!\\n'); stay()",
    "greets with the wrong number of digits": "put(b'kakoi 00\\n'); stay()",
    "never ends its greeting": "put(b'k' * 100_000); stay()",
    "greets and is gone": "greet()",
    "greets and dies": "greet(); os.kill(os.getpid(), signal.SIGKILL)",
    "greets with noise behind it": "put(b'kakoi 00000000\\nnoise' * 100); stay()",
    "is of another version": "greet(); say(HELLO, 0, {**HI, 'version': 2}); stay()",
    "has no shell": "greet(); say(HELLO, 0, {**HI, 'shell': 7}); stay()",
    "says hello for a request": "greet(); say(HELLO, 1, HI); stay()",
    "says hello with a list": "greet(); say(HELLO, 0, []); stay()",
    "says hello with nothing": "greet(); say(HELLO, 0, b''); stay()",
    "answers before hello": "greet(); say(ANSWER, 1, {}); stay()",
    "sends output before hello": "greet(); say(STDOUT, 0, b'x'); stay()",
    "sends a frame too big": "greet(); put(HEAD.pack(HELLO, 0, 2**31)); stay()",
}


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("script", BAD_STARTS.values(), ids=BAD_STARTS)
async def test_a_runner_that_does_not_greet_as_one_could_not_be_started(script: str) -> None:
    async with HostileSandbox(PRELUDE + script) as sandbox:
        with pytest.raises(SandboxError, match="could not be started"):
            await sandbox.channel()


SILENT_STARTS = {
    "says nothing": "hang()",
    "stops half-way": "put(b'kakoi '); hang()",
    "takes nothing": "put(b'kakoi 00000000\\n'); hang()",
    "takes the runner and keeps silent": "greet(); hang()",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "says hello byte by byte for ever": "greet(); put(HEAD.pack(HELLO, 0, 2**20))\nwhile True: put(b' '); time.sleep(0.01)",
}


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("script", SILENT_STARTS.values(), ids=SILENT_STARTS)
async def test_a_runner_that_never_greets_is_given_up(script: str) -> None:
    async with HostileSandbox(PRELUDE + script, RunnerTimeouts(hello_s=0.3)) as sandbox:
        with pytest.raises(SandboxError, match="did not greet within"):
            await sandbox.channel()


@in_a_loop
@pytest.mark.anyio
async def test_after_a_runner_that_never_greeted_the_next_one_works() -> None:
    """It takes the same descriptors, which nobody may still be watching."""
    async with HostileSandbox(PRELUDE + "hang()", RunnerTimeouts(hello_s=2)) as sandbox:
        with pytest.raises(SandboxError):
            await sandbox.channel()
        await the_next_one_works(sandbox)


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("script", ["hang()", "greet(); hang()", "os.write(2, b'x'); os._exit(1)"])
async def test_a_client_that_does_not_wait_for_a_greeting_leaves_nothing_behind(
    script: str,
) -> None:
    async with HostileSandbox(PRELUDE + script) as sandbox:
        for turns in (1, 20, 400):
            sandbox.opened = 0
            opening = asyncio.create_task(sandbox.channel())
            for _ in range(turns):
                await asyncio.sleep(0.0005)
            opening.cancel()
            await asyncio.wait([opening])
            assert opening.cancelled() or isinstance(opening.exception(), SandboxError)


@in_a_loop
@pytest.mark.anyio
async def test_what_it_says_on_standard_error_is_the_reason() -> None:
    script = "import os; os.write(2, b'no such container: web\\n'); os._exit(1)"
    async with HostileSandbox(script) as sandbox:
        with pytest.raises(SandboxError, match="no such container: web"):
            await sandbox.channel()


@in_a_loop
@pytest.mark.anyio
async def test_a_program_that_is_not_there_is_named() -> None:
    launch = Launch(argv=["kakoi-no-such-engine"], env={"PATH": "/usr/bin"})
    with pytest.raises(ExecutionError, match="kakoi-no-such-engine"):
        await open_channel(launch, RunnerSettings())


# --- After a request -------------------------------------------------------------------------

BREACHES = {
    "exits": "os._exit(3)",
    "dies": "os.kill(os.getpid(), signal.SIGKILL)",
    "dies in the middle of a head": "put(b'\\x06\\0\\0'); os._exit(0)",
    "dies in the middle of an answer": "put(HEAD.pack(ANSWER, number, 100) + b'{'); os._exit(0)",
    "closes both its streams and stays": "os.close(0); os.close(1); hang()",
    "talks nonsense": "put(b'Segmentation fault\\n' * 100); stay()",
    "sends a frame too big": "put(HEAD.pack(STDOUT, number, MAX_DATA + 1)); stay()",
    "sends an unknown kind": "put(HEAD.pack(99, number, 0)); stay()",
    "sends a request": "say(REQUEST, number, {}); stay()",
    "sends input": "say(INPUT, number, b'x'); stay()",
    "cancels": "say(CANCEL, number); stay()",
    "says hello again": "say(HELLO, 0, HI); stay()",
    "answers somebody else": "say(ANSWER, number + 1, result(order)); stay()",
    "answers request 0": "say(ANSWER, 0, result(order)); stay()",
    "sends output of somebody else": "say(STDOUT, 77, b'x'); stay()",
    "sends output that is none": "say(STDOUT, number, b''); stay()",
    "sends more output than was asked for": "say(STDOUT, number, b'x' * 12); stay()",
    "sends more errors than were asked for": "say(STDERR, number, b'x' * 12); stay()",
    "gives more credit than was used": "say(CREDIT, number, b'\\0\\0\\0\\1'); stay()",
    "gives half a credit": "say(CREDIT, number, b'\\0'); stay()",
    "answers without JSON": "say(ANSWER, number, b'{]'); stay()",
    "answers with nothing": "say(ANSWER, number, b''); stay()",
    "answers with a list": "say(ANSWER, number, [1]); stay()",
    "answers in broken UTF-8": 'say(ANSWER, number, b\'{"id": "\\xff"}\'); stay()',
    "answers with deep lists": "say(ANSWER, number, b'[' * 1_000_000); stay()",
    "answers with deep objects": "say(ANSWER, number, b'{\"a\":' * 200_000); stay()",
    "answers with a very long number": "say(ANSWER, number, b'{\"number\": ' + b'7' * 900_000 + b'}'); stay()",
    "answers with no number": "say(ANSWER, number, result(order, number=float('nan'))); stay()",
    "answers with a system's error": "say(ANSWER, number, {'errno': 2, 'error': 'x'}); stay()",
    "answers for another command": "say(ANSWER, number, result(order, id='other')); stay()",
    "counts less than it has sent": "say(STDOUT, number, b'xxx'); say(ANSWER, number, result(order, bytes=[2, 0])); stay()",
    "leaves a field out": "answer = result(order); del answer['cpu_ms']; say(ANSWER, number, answer); stay()",
    "ends in an unknown way": "say(ANSWER, number, result(order, kind='exploded')); stay()",
    "exits with an impossible code": "say(ANSWER, number, result(order, number=256)); stay()",
}


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("script", BREACHES.values(), ids=BREACHES)
async def test_a_breach_is_the_end_of_the_sandbox(script: str) -> None:
    async with HostileSandbox(AFTER_A_REQUEST + script) as sandbox:
        result = await sandbox.run(Command(command="x", max_output_bytes=10, id="mine"))
        assert (result.reason, result.exit_code) == (Reason.SANDBOX_LOST, 125)
        assert result.error.startswith("the sandbox was lost: ")
        assert result.id == "mine"


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("name", ["dies", "talks nonsense", "closes both its streams and stays"])
async def test_after_a_breach_the_next_command_gets_a_new_runner(name: str) -> None:
    async with HostileSandbox(AFTER_A_REQUEST + BREACHES[name]) as sandbox:
        assert (await sandbox.run(Command(command="x"))).reason is Reason.SANDBOX_LOST
        await the_next_one_works(sandbox)


AFTER_THE_ANSWER = {
    "answers twice": "say(ANSWER, number, result(order))",
    "goes on with output": "say(STDOUT, number, b'late')",
    "gives credit": "say(CREDIT, number, b'\\0\\0\\0\\0')",
}


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("script", AFTER_THE_ANSWER.values(), ids=AFTER_THE_ANSWER)
async def test_an_answer_is_the_last_word_on_a_request(script: str) -> None:
    answered = AFTER_A_REQUEST + "say(ANSWER, number, result(order)); request(); "
    async with HostileSandbox(answered + script + "; stay()") as sandbox:
        assert (await sandbox.run(Command(command="x"))).ok
        assert (await sandbox.run(Command(command="y"))).reason is Reason.SANDBOX_LOST


@in_a_loop
@pytest.mark.anyio
async def test_output_before_a_breach_is_in_the_result() -> None:
    script = "say(STDOUT, number, b'partial'); say(STDERR, number, b'odd'); put(bytes(9)); stay()"
    async with HostileSandbox(AFTER_A_REQUEST + script) as sandbox:
        result = await sandbox.run(Command(command="x"))
        assert (result.reason, result.stdout) == (Reason.SANDBOX_LOST, "partial")
        assert (result.stderr, result.stderr_bytes) == ("odd", 3)


@in_a_loop
@pytest.mark.anyio
async def test_output_beyond_the_credit_is_a_breach_however_fast_it_comes() -> None:
    """Nobody reads here: all that may come is one window."""
    flood = "for _ in range(5): say(STDOUT, number, bytes(MAX_DATA))\nstay()"
    async with HostileSandbox(AFTER_A_REQUEST + flood) as sandbox:
        channel = await sandbox.channel()
        async with channel.open(Command(command="x")):
            await until(lambda: channel.lost)


@in_a_loop
@pytest.mark.anyio
async def test_many_tiny_frames_do_not_fill_our_memory_with_credit() -> None:
    """It sends bytes one by one, and never reads what it is given back for each."""
    count = 200_000
    flood = f"put((HEAD.pack(STDOUT, number, 1) + b'x') * {count})\nstay()"
    async with HostileSandbox(AFTER_A_REQUEST + flood, RunnerTimeouts()) as sandbox:
        channel = await sandbox.channel()
        assert isinstance(channel, RunnerChannel)
        seen = 0
        async with asyncio.timeout(60), channel.open(Command(command="x")) as running:
            async for _stream, body in running.output():
                seen += len(body)
                if seen == count:
                    break
            assert unsent(channel) < 1000
            channel._stream.frames.lose("the test is over")


def unsent(channel: RunnerChannel) -> int:
    transport = channel._stream.frames._transport
    assert transport is not None
    return transport.get_write_buffer_size()


# --- Silence ---------------------------------------------------------------------------------

SILENCES = {
    "hangs": "hang()",
    "stops itself": "os.kill(os.getpid(), signal.SIGSTOP)",
    "closes its output": "os.close(1); hang()",
    "hears everything and says nothing": "while True: hear()",
    "starts an answer and goes on for ever": "put(HEAD.pack(ANSWER, number, 2**20))\nwhile True: put(b' '); time.sleep(0.01)",
    "gives credit for ever and no answer": "while True: say(CREDIT, number, bytes(4)); time.sleep(0.01)",
}


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("script", SILENCES.values(), ids=SILENCES)
async def test_a_runner_that_does_not_keep_the_time_is_lost(script: str) -> None:
    async with HostileSandbox(AFTER_A_REQUEST + script, RunnerTimeouts(grace_s=0.3)) as sandbox:
        result = await sandbox.run(Command(command="sleep 1", timeout_s=0.2))
        assert (result.reason, result.exit_code) == (Reason.SANDBOX_LOST, 125)
        assert "in time" in result.error


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("name", ["hangs", "stops itself", "closes its output"])
async def test_a_runner_that_says_nothing_for_long_is_asked_and_then_lost(name: str) -> None:
    async with HostileSandbox(AFTER_A_REQUEST + SILENCES[name]) as sandbox:
        result = await sandbox.run(Command(command="sleep 1000"))
        assert result.reason is Reason.SANDBOX_LOST
        assert "has not responded" in result.error


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize("name", ["hangs", "stops itself", "hears everything and says nothing"])
async def test_a_cancellation_does_not_wait_for_a_runner_that_ignores_it(name: str) -> None:
    async with HostileSandbox(
        AFTER_A_REQUEST + SILENCES[name], RunnerTimeouts(grace_s=0.2)
    ) as sandbox:
        running = asyncio.create_task(sandbox.run(Command(command="sleep 1000")))
        await asyncio.wait([running], timeout=0.1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await soon(running)
        assert (await sandbox.channel()) is not None
        assert sandbox.opened == 2


@in_a_loop
@pytest.mark.anyio
async def test_a_runner_that_trickles_does_not_get_more_time_than_it_has() -> None:
    """Somebody reads all of it at once: nothing waits for us."""
    trickle = "while True: say(STDOUT, number, b'x'); time.sleep(0.01)"
    async with HostileSandbox(AFTER_A_REQUEST + trickle, RunnerTimeouts(grace_s=0.3)) as sandbox:
        channel = await sandbox.channel()
        async with (
            asyncio.timeout(60),
            channel.open(Command(command="x", timeout_s=0.2)) as running,
        ):
            async for _ in running.output():
                pass
            assert (await running.result()).reason is Reason.SANDBOX_LOST


@in_a_loop
@pytest.mark.anyio
async def test_a_slow_runner_is_not_a_hostile_one() -> None:
    """Byte by byte, but all of it in time."""
    script = """
body = json.dumps(result(order, bytes=[4, 0])).encode()
for byte in HEAD.pack(STDOUT, number, 4) + b"slow" + HEAD.pack(ANSWER, number, len(body)) + body:
    put(bytes([byte])); time.sleep(0.001)
stay()
"""
    async with HostileSandbox(AFTER_A_REQUEST + script) as sandbox:
        result = await sandbox.run(Command(command="x", timeout_s=30))
        assert (result.ok, result.stdout) == (True, "slow")


@in_a_loop
@pytest.mark.anyio
async def test_a_channel_that_was_idle_for_long_is_not_taken_for_dead() -> None:
    """Silence counts from the moment that something is expected."""
    quick = RunnerTimeouts(silence_s=1.0)
    channel = await open_channel(host_launch(), RunnerSettings(), ProcessStream, quick)
    try:
        assert (await channel.run(Command(command="true"))).ok
        await asyncio.sleep(1.3)  # Nobody wants anything for a while.
        result = await soon(channel.run(Command(command="sleep 1.5; echo awake")))
        assert (result.reason, result.stdout) == (Reason.EXITED, "awake\n")
    finally:
        await soon(channel.close())


# --- It does not read ------------------------------------------------------------------------


@in_a_loop
@pytest.mark.anyio
async def test_a_runner_that_never_reads_does_not_make_us_store_what_we_have_to_say() -> None:
    async with HostileSandbox(PRELUDE + "hello(); hang()") as sandbox:
        channel = await sandbox.channel()
        assert isinstance(channel, RunnerChannel)
        env = {"BIG": "x" * 120_000} | {f"BIG{n}": "x" * 120_000 for n in range(9)}
        asked = [asyncio.create_task(channel.run(Command(command="x", env=env))) for _ in range(30)]
        asked.append(asyncio.create_task(channel.run(Command(command="x", stdin=bytes(10**7)))))
        most = 0
        while not all(task.done() for task in asked):
            await asyncio.wait(asked, timeout=0.01)
            most = max(most, unsent(channel))
        assert {task.result().reason for task in asked} == {Reason.SANDBOX_LOST}
        assert 10**6 < most < 8 * 10**6


@in_a_loop
@pytest.mark.anyio
async def test_a_request_that_was_cancelled_before_it_could_be_sent_is_never_sent() -> None:
    """The first one fills all that may wait; then it is read, and nothing of the second comes."""
    count_them = """
hello()
time.sleep(0.5)
heard = []
while len(heard) < 7:
    number, order = request()
    heard.append(order["id"])
    say(STDOUT, number, order["id"].encode())
    say(ANSWER, number, result(order, bytes=[len(order["id"]), 0]))
assert "cancelled" not in heard
stay()
"""
    async with HostileSandbox(PRELUDE + count_them, RunnerTimeouts()) as sandbox:
        channel = await sandbox.channel()
        env = {f"BIG{n}": "x" * 120_000 for n in range(12)}
        first = [
            asyncio.create_task(channel.run(Command(command="x", env=env, id=f"first{n}")))
            for n in range(6)
        ]
        await asyncio.sleep(0)
        unlucky = asyncio.create_task(channel.run(Command(command="x", id="cancelled")))
        await asyncio.sleep(0)
        unlucky.cancel()
        await asyncio.wait([unlucky])
        assert unlucky.cancelled()
        last = await sandbox.run(Command(command="x", id="last"))
        assert last.stdout == "last"
        assert [(await soon(task)).stdout for task in first] == [f"first{n}" for n in range(6)]


@in_a_loop
@pytest.mark.anyio
async def test_megabytes_on_standard_error_are_taken_and_forgotten() -> None:
    script = (
        "for _ in range(300): os.write(2, b'x' * 65536)\nsay(ANSWER, number, result(order)); stay()"
    )
    async with HostileSandbox(AFTER_A_REQUEST + script, RunnerTimeouts()) as sandbox:
        channel = await sandbox.channel()
        assert isinstance(channel, RunnerChannel)
        assert (await sandbox.run(Command(command="x"))).ok
        assert len(channel._stream.process.stderr) <= 16 * 1024


# --- Everybody who waits is told -------------------------------------------------------------


async def every_kind_of_call(channel: Channel) -> list[Awaitable[object]]:
    return [
        channel.start(Command(command="x")),
        channel.list_jobs(),
        channel.read_output("j", "stdout", wait_s=100),
        channel.write_stdin("j", bytes(600_000)),
        channel.stop_job("j"),
        channel.wait_job("j"),
        channel.read_file("/f"),
        channel.write_file("/f", bytes(3_000_000)),
        channel.list_files("/"),
        channel.stat_file("/f"),
        channel.make_dir("/f"),
        channel.move_file("/f", "/g"),
        channel.remove_file("/f", recursive=True),
        channel.signal_job("j", 15),
        channel.resize_job("j", TerminalSize()),
        last_part(channel.stream_file("/f")),
        first_event(channel),
    ]


async def last_part(parts: AsyncIterator[bytes]) -> None:
    async for _ in parts:
        pass


async def first_event(channel: Channel) -> FileEvent:
    async with channel.watch_files("/f") as events:
        return await anext(aiter(events))


@in_a_loop
@pytest.mark.anyio
async def test_every_call_that_waits_ends_when_the_runner_dies() -> None:
    async with HostileSandbox(PRELUDE + "hello()\nfor _ in range(38): request()\n") as sandbox:
        channel = await sandbox.channel()
        calls = await every_kind_of_call(channel)
        runs = [channel.run(Command(command="x", stdin=bytes(2_000_000))) for _ in range(20)]

        async def only_read() -> None:
            async with channel.open(Command(command="x")) as running:
                async for _ in running.output():
                    pass

        outcomes = await soon(
            asyncio.gather(*calls, *runs, only_read(), return_exceptions=True),
        )
        for outcome in outcomes[:17]:
            assert isinstance(outcome, SandboxError)
        for outcome in outcomes[17:37]:
            assert isinstance(outcome, ExecutionResult)
            assert outcome.reason is Reason.SANDBOX_LOST
        assert outcomes[37] is None


@in_a_loop
@pytest.mark.anyio
async def test_a_lost_channel_refuses_everything_at_once() -> None:
    async with HostileSandbox(PRELUDE + "hello()") as sandbox:
        channel = await sandbox.channel()
        await until(lambda: channel.lost)
        for call in await every_kind_of_call(channel):
            with pytest.raises(SandboxError, match="the sandbox was lost"):
                await soon(call)
        result = await soon(channel.run(Command(command="x")))
        assert result.reason is Reason.SANDBOX_LOST
        running = channel.open(Command(command="x"))
        async with running:
            assert [part async for part in running.output()] == []


@in_a_loop
@pytest.mark.anyio
async def test_leaving_a_lost_command_ends_the_sandbox_first() -> None:
    """It may still run over there; and the failure is told to nobody else, at no other time."""
    async with HostileSandbox(AFTER_A_REQUEST + "put(bytes(9)); stay()") as sandbox:
        channel = await sandbox.channel()
        assert isinstance(channel, RunnerChannel)
        async with channel.open(Command(command="x")) as running:
            async for _ in running.output():
                pass
        with pytest.raises(ProcessLookupError):
            os.kill(channel._stream.process.pid, 0)


@in_a_loop
@pytest.mark.anyio
async def test_a_sandbox_that_was_cleaned_up_opens_no_runner_any_more() -> None:
    async with HostileSandbox(PRELUDE + "hello(); stay()") as sandbox:
        await sandbox.channel()
    with pytest.raises(SandboxError, match="cleaned up"):
        await sandbox.channel()
    assert sandbox.opened == 1


# --- Answers that are not what they should be ------------------------------------------------

BAD_ANSWERS: dict[str, tuple[str, Callable[[Channel], Awaitable[object]]]] = {
    "jobs that are no list": ("{'jobs': {}}", lambda channel: channel.list_jobs()),
    "jobs that are numbers": ("{'jobs': [1]}", lambda channel: channel.list_jobs()),
    "a file without a kind": ("{'name': 'x'}", lambda channel: channel.stat_file("/x")),
    "a part without counts": ("{'ended': True}", lambda c: c.read_output("j", "stdout")),
    "a wait without an end": ("{'running': 'no'}", lambda channel: channel.wait_job("j")),
    "a stop of another job": ("result({'id': 'k'})", lambda channel: channel.stop_job("j")),
    "a wait for another job": ("result({'id': 'k'})", lambda channel: channel.wait_job("j")),
    "an error without a number": ("{'errno': 'x', 'error': ''}", lambda c: c.read_file("/x")),
    "an error in no words": ("{'errno': 5, 'error': ['x']}", lambda c: c.read_file("/x")),
    "an error in half a character": ("{'errno': 5, 'error': '\\ud800'}", lambda c: c.list_jobs()),
    "an error of an impossible number": ("{'errno': 2**40, 'error': 'x'}", lambda c: c.list_jobs()),
    "a start without a name": ("{'id': 7}", lambda c: c.start(Command(command="x"))),
}


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize(("answer", "call"), BAD_ANSWERS.values(), ids=BAD_ANSWERS)
async def test_an_answer_of_the_wrong_shape_is_a_breach(
    answer: str, call: Callable[[Channel], Awaitable[object]]
) -> None:
    async with HostileSandbox(
        AFTER_A_REQUEST + f"say(ANSWER, number, {answer}); stay()"
    ) as sandbox:
        channel = await sandbox.channel()
        with pytest.raises(SandboxError, match="violates the protocol"):
            await soon(call(channel))
        assert channel.lost


@in_a_loop
@pytest.mark.anyio
@pytest.mark.parametrize(
    "call",
    [
        lambda channel: channel.read_output("j", "stdout", limit=10),
        lambda channel: channel.read_file("/x", limit=10),
        lambda channel: channel.list_jobs(),
    ],
    ids=["output", "file", "jobs"],
)
async def test_nobody_is_given_more_bytes_than_were_asked_for(
    call: Callable[[Channel], Awaitable[object]],
) -> None:
    flood = """
while True:
    say(STDOUT, number, bytes(1000))
"""
    async with HostileSandbox(AFTER_A_REQUEST + flood) as sandbox:
        with pytest.raises((SandboxError, OSError)):
            await soon(call(await sandbox.channel()))


# --- Every field of every answer, of every wrong type ----------------------------------------

NO_NUMBER: tuple[object, ...] = (
    None,
    True,
    -1,
    1.5,
    math.nan,
    math.inf,
    2**63,
    10**4000,
    "1",
    "",
    [],
    [1],
    {},
)
NO_TEXT: tuple[object, ...] = (
    None,
    False,
    0,
    1.5,
    math.nan,
    [],
    ["x"],
    {},
    "x" * 70_000,
    "\ud800",
    "\udfff x",
)
NO_SECONDS: tuple[object, ...] = (
    None,
    True,
    math.nan,
    math.inf,
    -math.inf,
    2**63,
    1e30,
    "1",
    [],
    {},
)
NO_PAIR: tuple[object, ...] = (
    None,
    1,
    [],
    [1],
    [1, 2, 3],
    [1, -1],
    [1, "2"],
    [1, 2.0],
    [True, 1],
    {"0": 1, "1": 2},
)
NO_OBJECTS: tuple[object, ...] = (None, {}, "x", 1, [1], [None], [[]], ["x"])

RESULT = {
    "id": "x",
    "kind": "exited",
    "number": 0,
    "error": "",
    "duration_ms": 1,
    "bytes": [0, 0],
    "stored": [0, 0],
    "cwd": "/tmp",
    "cpu_ms": 0,
    "max_rss_kib": 0,
    "ended": 0,
    "survivors": 0,
    "disk_full": "",
    "kept_out": "",
    "exports": "",
}
WRONG_RESULTS: dict[str, tuple[object, ...]] = {
    "id": NO_TEXT,
    "kind": (*NO_TEXT, "", "Exited", "no_", "unknown"),
    "number": (*NO_NUMBER, 256),
    "duration_ms": NO_NUMBER,
    "bytes": NO_PAIR,
    "cwd": (*NO_TEXT, "relative/path", "/a\0b"),
    "cpu_ms": NO_NUMBER,
    "max_rss_kib": NO_NUMBER,
    "ended": NO_NUMBER,
    "survivors": NO_NUMBER,
    "disk_full": (None, 1, "x", "a/b", "/a\0"),
    "kept_out": (*NO_TEXT, "policy", "Unlisted"),
    "exports": (*NO_TEXT, "\u0100"),
}
JOB = {"id": "x", "command": "true", "age_s": 1.5, "bytes": [0, 0], "answer": None}
WRONG_JOBS: dict[str, tuple[object, ...]] = {
    "id": NO_TEXT,
    "command": NO_TEXT,
    "age_s": NO_SECONDS,
    "bytes": NO_PAIR,
    "answer": (0, False, "x", [], [RESULT], {}, {**RESULT, "kind": 7}),
}
FILE = {
    "name": "x",
    "kind": "file",
    "size": 1,
    "mode": 0o644,
    "modified_s": 1.5,
    "owner": "root",
    "group": "0",
    "target": "",
}
WRONG_FILES: dict[str, tuple[object, ...]] = {
    "name": NO_TEXT,
    "kind": (*NO_TEXT, "socket", ["file"], {"file": 1}),
    "size": NO_NUMBER,
    "mode": NO_NUMBER,
    "modified_s": NO_SECONDS,
    "owner": (*NO_TEXT, "x" * 2000),
    "group": (*NO_TEXT, "x" * 2000),
    "target": (*NO_TEXT, "x" * 5000),
}


def parse_listing(*entries: object, depth: int = 3, limit: int = 9) -> list[FileInfo]:
    parser = ListingParser("/top", depth, limit)
    for entry in entries:
        parser.feed(json.dumps([entry]).encode())
    return parser.files


def entry(level: object, name: object, kind: str = "file") -> list[object]:
    return [level, *{**FILE, "name": name, "kind": kind}.values()]


HELLO = {"version": 1, "shell": "/bin/sh", "uid": 0, "cwd": "/"}
WRONG_HELLOS: dict[str, tuple[object, ...]] = {
    "version": (*NO_NUMBER, 0, 2),
    "shell": NO_TEXT,
    "uid": NO_NUMBER,
    "cwd": NO_TEXT,
}

Parse = Callable[[Mapping[str, Any]], object]
SHAPES: dict[str, tuple[Parse, Mapping[str, object], Mapping[str, tuple[object, ...]]]] = {
    "result": (lambda result: parse_result(result, "x"), RESULT, WRONG_RESULTS),
    "job": (lambda job: parse_jobs({"jobs": [job]}), JOB, WRONG_JOBS),
    "result of a job": (
        lambda r: parse_jobs({"jobs": [{**JOB, "answer": r}]}),
        RESULT,
        WRONG_RESULTS,
    ),
    "file": (lambda file: parse_file(file, "/x"), FILE, WRONG_FILES),
    "entry": (lambda file: parse_listing([0, *file.values()]), FILE, WRONG_FILES),
    "hello": (Hello.parse, HELLO, WRONG_HELLOS),
}


@pytest.mark.parametrize(("parse", "good", "wrong"), SHAPES.values(), ids=SHAPES)
def test_a_field_that_is_wrong_or_missing_is_refused(
    parse: Parse, good: Mapping[str, object], wrong: Mapping[str, tuple[object, ...]]
) -> None:
    parse(good)
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(BadFrame):
                parse({**good, name: value})
        if name != "answer":
            with pytest.raises(BadFrame):
                parse({key: value for key, value in good.items() if key != name})


@pytest.mark.parametrize("value", NO_OBJECTS, ids=repr)
def test_a_list_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(BadFrame):
        parse_jobs({"jobs": value})


def test_a_listing_is_built_from_levels_and_names() -> None:
    found = parse_listing(
        entry(0, "a", "directory"), entry(1, "b", "directory"), entry(2, "c"), entry(0, "d")
    )
    assert [each.path for each in found] == ["/top/a", "/top/a/b", "/top/a/b/c", "/top/d"]


OUTSIDE: dict[str, tuple[object, ...]] = {
    "the parent": (entry(0, ".."),),
    "itself": (entry(0, "."),),
    "no name": (entry(0, ""),),
    "an absolute path": (entry(0, "/etc"),),
    "a path": (entry(0, "a/b"),),
    "a NUL": (entry(0, "a\0"),),
    "below a file": (entry(0, "a"), entry(1, "b")),
    "below a link": (entry(0, "a", "link"), entry(1, "b")),
    "deeper than asked": (
        *(entry(level, "a", "directory") for level in range(3)),
        entry(3, "a"),
    ),
    "twice": (entry(0, "a"), entry(0, "a", "directory")),
    "not in order": (entry(0, "b"), entry(0, "a")),
    "a level that is none": (entry(True, "a"),),
    "a negative level": (entry(-1, "a"),),
    "more than asked for": tuple(entry(0, str(number)) for number in range(10)),
    "a path without end": (entry(0, "x" * 1024, "directory"),) * 2,
    "too few fields": (entry(0, "a")[:-1],),
    "too many fields": ([*entry(0, "a"), 1],),
    "no list": (7,),
}


@pytest.mark.parametrize("entries", OUTSIDE.values(), ids=OUTSIDE)
def test_an_entry_that_cannot_be_in_the_listed_tree_is_refused(entries: tuple[object, ...]) -> None:
    with pytest.raises(BadFrame):
        parse_listing(*entries)


def test_events_are_at_the_watched_path_or_below() -> None:
    body = json.dumps([["created", "a/b"], ["removed", ""]]).encode()
    assert parse_events(body, "/top/") == [
        FileEvent("created", "/top/a/b"),
        FileEvent("removed", "/top/"),
    ]
    for bad in (
        *("..", "a/../b", "/a", "a//b", "a/", "./a", "a\0", "x" * 9000, 1, None, "\ud800"),
    ):
        with pytest.raises(BadFrame):
            parse_events(json.dumps([["created", bad]]).encode(), "/top")
    for body in (b"", b"{}", b"[1]", b"[[]]", b'[["made", "a"]]', b'[["created"]]', b"[" * 99_999):
        with pytest.raises(BadFrame):
            parse_events(body, "/top")


@pytest.mark.parametrize("kind", ["no_cwd", "no_program", "no_start", "no_keeper"])
@pytest.mark.parametrize("error", NO_TEXT, ids=lambda value: repr(value)[:20])
def test_the_reason_for_not_starting_must_be_text(kind: str, error: object) -> None:
    with pytest.raises(BadFrame):
        parse_result({**RESULT, "kind": kind, "number": 2, "error": error}, "x")


def test_a_name_that_is_not_text_in_the_sandbox_is_reported_as_python_reports_it() -> None:
    """Bytes that are no UTF-8 are a file name like any other."""
    assert parse_file({**FILE, "name": "caf\udce9"}, "/x").name == "caf\udce9"
    assert parse_result({**RESULT, "cwd": "/caf\udce9"}, "x").cwd == "/caf\udce9"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(st.sampled_from(sorted(SHAPES)), st.data())
def test_whatever_comes_is_a_value_or_a_breach_and_nothing_else(
    shape: str, data: st.DataObject
) -> None:
    parse, good, _ = SHAPES[shape]
    changed = dict(good)
    for name in data.draw(st.sets(st.sampled_from(sorted(good)), max_size=3)):
        changed[name] = data.draw(json_values)
    body = json.dumps(changed).encode()
    with contextlib.suppress(BadFrame):
        parse(parse_object(body))


@given(st.binary(max_size=300))
def test_a_body_is_an_object_or_a_breach(body: bytes) -> None:
    with contextlib.suppress(BadFrame):
        assert isinstance(parse_object(body), dict)


def test_a_result_that_counts_less_than_came_is_refused() -> None:
    stdout = Capture(100)
    stdout.feed(b"abc")
    with pytest.raises(BadFrame):
        parse_result({**RESULT, "bytes": [2, 0]}, "x", stdout, Capture(100))
    assert parse_result({**RESULT, "bytes": [3, 0]}, "x", stdout, Capture(100)).stdout == "abc"
