"""The POSIX-sh path: sandboxes without Python. What every sandbox must do is in kakoi.conformance
(posix_box.py runs it); here is what only this path has."""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from kakoi.backends.probes import new_mark, processes_outside
from kakoi.channel.api import MIB, Channel, Command, TerminalSize
from kakoi.channel.posix.channel import PosixChannel, open_posix_channel
from kakoi.conformance.process_view import peak_memory, reset_peak_memory
from kakoi.conformance.sandbox_commands import Reader
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.results import Reason
from tests.channel.posix_box import Inside, docker, remove_container, start_container
from tests.process.trees import client_environment

pytestmark = pytest.mark.anyio

PATIENCE_S = 60.0
BUSYBOX, DEBIAN = "kakoi-test:busybox", "kakoi-test:python"
# Each has the same for the test's own use; without them a shell cannot keep processes.
INITS = {"tini": ("--init",), "none": ()}


def need_docker() -> None:
    try:
        docker("image", "inspect", BUSYBOX, DEBIAN)
    except (subprocess.CalledProcessError, FileNotFoundError):
        required = "docker" in os.environ.get("KAKOI_REQUIRE", "").split(",")
        report = pytest.fail if required else pytest.skip
        report("no Docker engine with the test images: scripts/engine start; scripts/engine images")


# The conformance tests are run by busybox in the default tier.
_AGAIN = pytest.mark.extended("repetition: the same words, read by another shell")


@pytest.fixture(
    scope="module",
    params=[pytest.param(BUSYBOX, id="busybox", marks=_AGAIN), pytest.param(DEBIAN, id="dash")],
)
def container(request: pytest.FixtureRequest) -> Iterator[str]:
    """Shared: our shell is busybox's, or dash with a bash for the commands."""
    need_docker()
    started = start_container(request.param, "--init")
    yield started
    remove_container(started)


@pytest.fixture
def fresh() -> Iterator[Callable[..., str]]:
    """Starts containers of busybox that the test may ruin."""
    need_docker()
    started: list[str] = []

    def start(*flags: str) -> str:
        started.append(start_container(BUSYBOX, *flags))
        return started[-1]

    yield start
    for each in started:
        remove_container(each)


@contextlib.asynccontextmanager
async def opened(container: str) -> AsyncIterator[PosixChannel]:
    channel = await open_posix_channel(Inside(container))
    try:
        yield channel
    finally:
        await asyncio.wait_for(channel.close(), PATIENCE_S)


@pytest.fixture
async def channel(container: str) -> AsyncIterator[PosixChannel]:
    async with opened(container) as channel:
        yield channel


@pytest.fixture
def mark() -> str:
    return new_mark()


async def said(channel: Channel, text: str) -> str:
    result = await channel.run(Command(command=text, timeout_s=PATIENCE_S))
    assert result.ok, result
    return result.stdout


async def until(holds: Callable[[], object]) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < give_up, "it never happened"
        await asyncio.sleep(0.02)


# --- What is judged is what runs -------------------------------------------------------------


async def test_the_shell_of_the_image_runs_the_text(channel: PosixChannel, container: str) -> None:
    found = docker("exec", container, "sh", "-c", "test -x /bin/bash && echo bash || echo sh")
    words = {"bash": "bash 0 bash\n", "sh": "sh 0 \n"}
    assert await said(channel, 'echo "${0##*/} $# ${BASH_VERSION:+bash}"') == words[found]


async def test_variables_of_the_container_that_change_a_shell_are_cleared() -> None:
    need_docker()
    names = (
        "BASH_ENV ENV PROMPT_COMMAND PS4 BASH_XTRACEFD BASH_COMPAT POSIXLY_CORRECT GLOBIGNORE"
        " EXECIGNORE CDPATH BASH_LOADABLES_PATH"
    ).split()
    settings = [f"{name}=/hijack" for name in names]
    settings += ["SHELLOPTS=noglob:xtrace", "BASHOPTS=extdebug", "BASH_FUNC_ls%%=() { echo no; }"]
    flags = [word for setting in settings for word in ("-e", setting)]
    for image in (BUSYBOX, DEBIAN):
        container = start_container(image, "--init", *flags, "-e", "k_base=theirs")
        try:
            async with opened(container) as channel:
                result = await channel.run(Command(command="env; echo /et*; type ls"))
                found = {line.partition("=")[0] for line in result.stdout.splitlines()}
                assert found.isdisjoint({*names, "SHELLOPTS", "BASHOPTS", "KAKOI_SH", "OLDPWD"})
                assert "BASH_FUNC" not in result.stdout
                assert "/etc\n" in result.stdout
                assert result.stderr == ""
        finally:
            remove_container(container)


async def test_bytes_of_every_value_arrive_in_words_and_variables(channel: PosixChannel) -> None:
    word = bytes(range(1, 256)).decode("utf-8", "surrogateescape")
    for command in (
        Command(command=["printf", "%s", word], max_output_bytes=0, spill_bytes=MIB),
        Command(command='printf %s "$WORD"', env={"WORD": word}, max_output_bytes=0),
    ):
        result = await channel.run(command)
        part = await channel.read_output(result.id, "stdout")
        assert part.data == bytes(range(1, 256))


async def test_a_program_whose_name_looks_like_a_variable_is_run(
    channel: PosixChannel, mark: str
) -> None:
    path = f"/tmp/{mark}=x"
    await channel.write_file(path, b"#!/bin/sh\necho $A $1\n", mode=0o755)
    result = await channel.run(Command(command=[path, "b=c"], env={"A": "a"}))
    assert (result.stdout, result.stderr) == ("a b=c\n", "")


async def test_a_command_finds_nothing_of_ours_in_its_arguments(channel: PosixChannel) -> None:
    """`pkill -f sleep` must not find us: our text is full of such words."""
    listed = await said(channel, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "stop_below" not in listed
    assert "KAKOI_SH" in listed


# --- Endings that only a shell has -----------------------------------------------------------


async def test_a_status_above_128_and_a_signal_are_told_apart(channel: PosixChannel) -> None:
    for number in (2, 9, 13, 15):
        left = await channel.run(Command(command=f"exit {128 + number}"))
        assert (left.reason, left.exit_code) == (Reason.EXITED, 128 + number)
        killed = await channel.run(Command(command=["sh", "-c", f"kill -{number} $$"]))
        assert (killed.reason, killed.signal) == (Reason.SIGNALLED, number)


async def test_many_at_once_are_told_apart_too_as_far_as_a_shell_can(
    channel: PosixChannel, mark: str
) -> None:
    """From some number on, the process that says how a command ended is saved."""
    text = "until [ -e /tmp/$0 ]; do sleep 0.2; done; exit 137"
    waiting = [
        asyncio.create_task(channel.run(Command(command=["sh", "-c", text, mark])))
        for _ in range(36)
    ]
    await until(lambda: len(processes_outside(mark)) >= 36)
    left = await channel.run(Command(command="exit 137"))
    killed = await channel.run(Command(command=["sh", "-c", "kill -9 $$"]))
    text = "echo up; exec sleep $0"
    async with channel.open(Command(command=["sh", "-c", text, mark])) as sleeper:
        # Before it says so, the signal could meet the shell that is to start it.
        assert await anext(aiter(sleeper.output())) == ("stdout", b"up\n")
        await sleeper.signal(signal.SIGTERM)
        ended = await sleeper.result()
    await channel.write_file(f"/tmp/{mark}", b"")
    results = await asyncio.gather(*waiting)
    assert {(result.reason, result.exit_code) for result in results} == {(Reason.EXITED, 137)}
    assert (left.reason, left.exit_code) == (Reason.EXITED, 137)
    assert (killed.reason, killed.signal) == (Reason.SIGNALLED, 9)
    assert (ended.reason, ended.signal) == (Reason.SIGNALLED, 15)


async def test_processor_time_is_reported_in_hundredths_of_a_second(channel: PosixChannel) -> None:
    text = "i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done"
    result = await channel.run(Command(command=text))
    assert result.cpu_ms >= 10
    assert result.max_rss_bytes == 0


async def test_running_out_of_memory_is_the_reason(fresh: Callable[..., str]) -> None:
    async with opened(fresh("--init", "--memory", "64m", "--memory-swap", "64m")) as channel:
        text = "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done"
        result = await channel.run(Command(command=["sh", "-c", text], timeout_s=PATIENCE_S))
        assert result.reason is Reason.OUT_OF_MEMORY
        assert await said(channel, "echo hi") == "hi\n"


async def test_a_fork_bomb_is_ended_though_there_is_no_room_for_a_process(
    fresh: Callable[..., str], mark: str
) -> None:
    async with opened(fresh("--init", "--pids-limit", "60")) as channel:
        await said(channel, "true")
        # Each keeps trying; bounded by the limit, and in time, should it be left behind. Some shells
        # exit when they cannot fork, so most of the room is taken before it begins.
        full = "for i in 1 2 3 4 5; do for j in 1 2 3 4 5 6 7; do sleep $0 & done; done"
        text = "bomb() { bomb & while ! (bomb &) 2>/dev/null; do :; done; sleep $0; }; bomb"
        command = Command(command=["sh", "-c", f"{full}; ({text}) 2>/dev/null; sleep $0", mark])
        async with channel.open(command) as running:
            await until(lambda: len(processes_outside(mark)) > 40)
            running.end(Reason.TIMED_OUT)
            assert (await running.result()).reason is Reason.TIMED_OUT
        assert processes_outside(mark) == []
        assert await said(channel, "echo hi") == "hi\n"


async def test_single_bytes_that_nobody_reads_become_few_pieces(channel: PosixChannel) -> None:
    running = channel.open(Command(command="true"))
    for _ in range(1000):
        await running.on_data("stdout", b"o")
    await running.on_data("stderr", b"e")
    assert len(running._output_buffer) == 2


async def test_who_finds_no_room_for_a_process_was_never_started(
    fresh: Callable[..., str], mark: str
) -> None:
    async with opened(fresh("--init", "--pids-limit", "12")) as channel:
        await said(channel, "true")
        sleepers = Command(
            command=["sh", "-c", "sleep $0 & sleep $0 & sleep $0 & echo up; wait", mark]
        )
        async with channel.open(sleepers) as running:
            await Reader(running).until(b"up\n")
            result = await channel.run(Command(command="(sleep 1; :) | (sleep 1; :)"))
            assert result.reason in (Reason.NEVER_STARTED, Reason.EXITED)
            assert result.exit_code != 0
        assert await said(channel, "echo hi") == "hi\n"


# --- Somebody kills a shell of ours ----------------------------------------------------------

# Everybody above the command, from the nearest.
ABOVE = """
above=$PPID chain=
while [ "${above:-0}" -gt 1 ]; do
    chain="$chain $above"
    above=$(sed -n 's/^PPid:[[:space:]]*//p' /proc/$above/status)
done
set -- $chain
"""


@pytest.mark.parametrize("victims", ["$1", "$2", "$3", "$1 $2 $3"])
async def test_who_kills_its_keepers_ends_with_them(
    channel: PosixChannel, mark: str, victims: str
) -> None:
    text = f"(setsid sleep $0 &); (env -i setsid sleep $0 &); {ABOVE} kill -9 {victims}; sleep $0"
    result = await channel.run(Command(command=["sh", "-c", text, mark], timeout_s=PATIENCE_S))
    assert (result.reason, result.exit_code) == (Reason.SANDBOX_LOST, 125)
    assert "killed its keeper" in result.error
    assert processes_outside(mark) == []
    assert not channel.lost
    assert await said(channel, "echo hi") == "hi\n"


def sleepers(mark: str) -> list[str]:
    """The programs, without the shells that started them."""
    found = [line.split()[:2] for line in processes_outside(mark)]
    return sorted(words[0] for words in found if words[1] == "sleep")


async def test_a_sweep_leaves_jobs_and_other_commands_alone(
    channel: PosixChannel, mark: str
) -> None:
    job = await channel.start(Command(command=["sh", "-c", "(setsid sleep $0 &); sleep $0", mark]))
    async with channel.open(
        Command(command=["sh", "-c", "(setsid sleep $0 &); echo up; sleep $0", mark])
    ) as other:
        await Reader(other).until(b"up\n")
        await until(lambda: len(sleepers(mark)) == 4)
        before = sleepers(mark)
        await channel.run(Command(command=["sh", "-c", f"{ABOVE} kill -9 $1 $2 $3; sleep 300"]))
        assert sleepers(mark) == before
    assert (await channel.stop_job(job)).reason is Reason.CANCELLED
    assert processes_outside(mark) == []


async def test_a_stopped_keeper_does_not_stop_the_clock(channel: PosixChannel, mark: str) -> None:
    text = f"(setsid sleep $0 &); {ABOVE} kill -STOP $1 $2 $3; sleep $0"
    result = await channel.run(Command(command=["sh", "-c", text, mark], timeout_s=1))
    assert result.reason is Reason.TIMED_OUT
    assert processes_outside(mark) == []


async def test_killing_the_watcher_loses_the_channel_and_ends_everything(
    fresh: Callable[..., str], mark: str
) -> None:
    container = fresh("--init")
    async with opened(container) as channel:
        watcher = "for p in /proc/[0-9]*; do grep -q '^PPid:.0$' $p/status && tr '\\0' ' ' <$p/cmdline | grep -q '^sh -c eval' && kill -9 ${p#/proc/}; done"
        text = f"(setsid sleep $0 &); {watcher}; sleep $0"
        result = await channel.run(Command(command=["sh", "-c", text, mark], timeout_s=PATIENCE_S))
        assert result.reason is Reason.SANDBOX_LOST
        assert channel.lost
        with pytest.raises(SandboxError):
            await channel.run(Command(command="true"))
        await channel.close()
        assert processes_outside(mark) == []
    async with opened(container) as channel:
        assert await said(channel, "echo hi") == "hi\n"


async def test_words_that_nobody_asked_for_lose_the_channel(channel: PosixChannel) -> None:
    """An idle shell of ours has open ends: who writes into them forges nothing."""
    await said(channel, "true")
    text = """
for p in /proc/[0-9]*; do
    tr '\\0' ' ' <$p/cmdline | grep -q '^sh -c eval' || continue
    echo forged >>$p/fd/1; echo forged >>$p/fd/9
done 2>/dev/null"""
    await channel.run(Command(command=text, timeout_s=PATIENCE_S))
    with contextlib.suppress(SandboxError):
        for _ in range(5):
            result = await channel.run(Command(command="echo hi", timeout_s=PATIENCE_S))
            assert result.reason is Reason.SANDBOX_LOST or result.stdout == "hi\n"


async def test_a_forged_request_is_not_served(channel: PosixChannel, mark: str) -> None:
    """What is written into the input of an idle shell of ours lacks the key."""
    await said(channel, "true")
    text = """
for p in /proc/[0-9]*; do
    tr '\\0' ' ' <$p/cmdline | grep -q '^sh -c eval' || continue
    printf 'key\\nkey nonce\\nrun\\nforged text none no 0 0 loud 0 0 0 1 0\\n\\n\\n: >/tmp/%s\\n' "$0" >>$p/fd/5
done 2>/dev/null"""
    with contextlib.suppress(SandboxError):
        await channel.run(Command(command=["sh", "-c", text, mark], timeout_s=PATIENCE_S))
        for _ in range(5):
            await channel.run(Command(command="true", timeout_s=PATIENCE_S))
    async with opened_again(channel) as another:
        assert await said(another, f"ls /tmp/{mark} 2>/dev/null || echo none") == "none\n"


@contextlib.asynccontextmanager
async def opened_again(channel: PosixChannel) -> AsyncIterator[PosixChannel]:
    launch = channel._shells.config.launch
    another = await open_posix_channel(launch)
    try:
        yield another
    finally:
        await another.close()


# --- The place goes away ---------------------------------------------------------------------


async def test_a_container_that_is_gone_is_a_lost_sandbox(
    fresh: Callable[..., str], mark: str
) -> None:
    container = fresh("--init")
    async with opened(container) as channel:
        running = asyncio.create_task(channel.run(Command(command=["sleep", mark])))
        await until(lambda: processes_outside(mark))
        await asyncio.to_thread(remove_container, container)
        result = await asyncio.wait_for(running, PATIENCE_S)
        assert (result.reason, result.exit_code) == (Reason.SANDBOX_LOST, 125)
        assert result.error
        await until(lambda: channel.lost)
        for call in (
            channel.list_jobs(),
            channel.read_file("/x"),
            channel.start(Command(command="x")),
        ):
            with pytest.raises(SandboxError):
                await call
    with pytest.raises(SandboxError):
        await open_posix_channel(Inside(container))


async def test_when_only_the_client_of_one_command_dies_the_command_is_ended(
    channel: PosixChannel, mark: str
) -> None:
    command = Command(command=["sh", "-c", "(setsid sleep $0 &); echo up; sleep $0", mark])
    async with channel.open(command) as running:
        await Reader(running).until(b"up\n")
        assert running._shell is not None
        os.kill(running._shell._stream.pid, signal.SIGKILL)
        result = await running.result()
    assert result.reason is Reason.SANDBOX_LOST
    assert processes_outside(mark) == []
    assert await said(channel, "echo hi") == "hi\n"


CLIENT = """
import asyncio, sys
from tests.channel.posix_box import Inside
from kakoi.channel.api import Command
from kakoi.channel.posix.channel import open_posix_channel

async def main(container, mark):
    channel = await open_posix_channel(Inside(container))
    print(await channel.start(Command(command=["sh", "-c", "echo up; sleep $0", mark + "1"])))
    text = "(setsid sleep $0 &); (env -i setsid sleep $0 &); trap '' TERM HUP; sleep $0"
    await channel.run(Command(command=["sh", "-c", text, mark + "2"]))

asyncio.run(main(*sys.argv[1:]))
"""


def client(*arguments: str) -> "subprocess.Popen[str]":
    """Another process of ours, in which a channel is open."""
    path = f"{client_environment()['PYTHONPATH']}:{Path(__file__).parents[2]}"
    argv = [sys.executable, "-u", "-c", CLIENT, *arguments]
    env = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, text=True)


async def test_commands_die_with_our_process_and_jobs_do_not(container: str, mark: str) -> None:
    with client(container, mark) as process:
        assert process.stdout is not None
        job = (await asyncio.to_thread(process.stdout.readline)).strip()
        await until(lambda: len(processes_outside(mark + "2")) >= 4)
        process.kill()
    await until(lambda: not processes_outside(mark + "2"))
    assert processes_outside(mark + "1")
    async with opened(container) as channel:
        assert job in [info.id for info in await channel.list_jobs() if info.running]
        part = await channel.read_output(job, "stdout", wait_s=PATIENCE_S)
        assert part.data == b"up\n"
        # The same id is the same job, also for another client.
        assert await channel.start(Command(command="echo again", id=job)) == job
        assert (await channel.stop_job(job)).reason is Reason.CANCELLED
    assert processes_outside(mark + "1") == []


# --- At most once ----------------------------------------------------------------------------


async def test_an_id_is_not_run_again_by_another_channel(container: str, mark: str) -> None:
    command = Command(command=f"echo x >>/tmp/{mark}")
    async with opened(container) as one, opened(container) as two:
        assert (await one.run(command)).ok
        assert (await one.run(command)).ok
        with pytest.raises(ConfigurationError, match="run before"):
            await two.run(command)
        with pytest.raises(ConfigurationError, match="run before"):
            one.open(command)
        assert await said(one, f"cat /tmp/{mark}") == "x\n"


async def test_a_job_that_two_ask_for_reads_its_input_once(container: str) -> None:
    command = Command(command="cat", stdin=b"first\n", stdin_open=True)
    async with opened(container) as one, opened(container) as two:
        await asyncio.gather(*(each.start(command) for each in (one, two, one, two)))
        await two.write_stdin(command.id, b"second\n", close=True)
        result = await one.wait_job(command.id, wait_s=PATIENCE_S)
        assert result is not None
        assert result.ok
        assert (await two.read_output(command.id, "stdout")).data == b"first\nsecond\n"


# --- Jobs ------------------------------------------------------------------------------------


async def test_input_that_a_job_does_not_read_waits_and_can_be_cancelled(
    channel: PosixChannel, mark: str
) -> None:
    command = Command(command=["sh", "-c", "sleep $0", mark], stdin_open=True)
    job = await channel.start(command)
    writing = asyncio.create_task(channel.write_stdin(job, bytes(MIB)))
    done, _ = await asyncio.wait([writing], timeout=1)
    assert not done
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(writing, PATIENCE_S)
    again = asyncio.create_task(channel.write_stdin(job, bytes(MIB)))
    await asyncio.sleep(0)
    await channel.stop_job(job)
    with pytest.raises(BrokenPipeError):
        await asyncio.wait_for(again, PATIENCE_S)


async def test_a_job_keeps_default_signals_and_its_own_group(channel: PosixChannel) -> None:
    text = "grep -E '^Sig(Blk|Ign):' /proc/self/status; kill -INT $$; echo after"
    job = await channel.start(Command(command=["sh", "-c", text]))
    result = await channel.wait_job(job, wait_s=PATIENCE_S)
    assert result is not None
    assert (result.reason, result.signal) == (Reason.SIGNALLED, signal.SIGINT)
    lines = (await channel.read_output(job, "stdout")).data.splitlines()
    assert [int(line.split()[1], 16) & ~(0b11 << 31) for line in lines] == [0, 0]


async def test_output_of_a_job_is_seen_before_it_fills_a_buffer(channel: PosixChannel) -> None:
    command = Command(command="printf a; read -r x; printf b; read -r x", stdin_open=True)
    job = await channel.start(command)
    first = await channel.read_output(job, "stdout", wait_s=PATIENCE_S)
    assert (first.data, first.ended) == (b"a", False)
    await channel.write_stdin(job, b"\n")
    second = await channel.read_output(job, "stdout", offset=1, wait_s=PATIENCE_S)
    assert second.data == b"b"
    await channel.stop_job(job)


@pytest.mark.parametrize("spill", [0, 1, 4095, 4097, 10_000])
async def test_the_bound_of_a_jobs_output_is_exact(channel: PosixChannel, spill: int) -> None:
    text = "i=0; while [ $i -lt 2000 ]; do echo 12345678; i=$((i + 1)); done"
    job = await channel.start(Command(command=text, spill_bytes=spill))
    result = await channel.wait_job(job, wait_s=PATIENCE_S)
    assert result is not None
    assert result.stdout_bytes == 18_000
    part = await channel.read_output(job, "stdout")
    assert (part.data, part.ended) == ((b"12345678\n" * 2000)[:spill], True)
    assert part.lost_bytes == 18_000 - spill


async def test_a_job_says_where_it_ended(channel: PosixChannel, mark: str) -> None:
    folder = f"/tmp/{mark}\nx"
    await channel.run(Command(command=["mkdir", folder]))
    command = Command(command='cd "$WHERE"; exit 4', env={"WHERE": folder}, report_shell=True)
    result = await channel.wait_job(await channel.start(command), wait_s=PATIENCE_S)
    assert result is not None
    assert (result.exit_code, result.cwd) == (4, folder)


async def test_forged_files_of_jobs_are_not_evaluated(channel: PosixChannel, mark: str) -> None:
    base = channel._shells.config.base
    job = await channel.start(Command(command="echo hi"))
    await channel.wait_job(job, wait_s=PATIENCE_S)
    evil = f"a[$(: >/tmp/{mark})]"
    await channel.write_file(f"{base}/{job},stdout,lost", f"{evil}\n".encode())
    for name, words in (("evil", f"{evil} 1 1 {evil}"), ("short", ""), ("first", "1 1 1 1")):
        await channel.write_file(f"{base}/{name},job", f"{words}\nlabel\n".encode())
        await channel.write_file(f"{base}/{name},end", b"x" * 10_000 + b"\n")
        with pytest.raises(ConfigurationError):
            await channel.stop_job(name)
    assert (await channel.read_output(job, "stdout")).data == b"hi\n"
    assert job in [info.id for info in await channel.list_jobs()]
    assert await said(channel, f"ls /tmp/{mark} 2>/dev/null || echo none") == "none\n"
    await said(channel, f"rm -f {base}/evil,* {base}/short,* {base}/first,*")


async def test_what_a_sandbox_cannot_do_is_refused_in_words(
    channel: PosixChannel, fresh: Callable[..., str]
) -> None:
    with pytest.raises(ConfigurationError, match="terminal"):
        await channel.start(Command(command="true", terminal=TerminalSize()))
    async with opened(fresh()) as bare:
        with pytest.raises(SandboxError, match="init") as failure:
            await bare.start(Command(command="true"))
        assert "--init" in failure.value.hint


# --- Without an init of our own --------------------------------------------------------------


async def test_without_an_init_commands_take_turns_and_leave_nothing(
    fresh: Callable[..., str], mark: str
) -> None:
    async with opened(fresh()) as channel:
        text = "(setsid sleep $0 &); (env -i setsid sleep $0 &); sleep $0 & echo hi"
        command = ["sh", "-c", f"{text}; exit 3", mark]
        results = await asyncio.gather(*(channel.run(Command(command=command)) for _ in range(4)))
        assert {(result.exit_code, result.stdout) for result in results} == {(3, "hi\n")}
        assert min(result.leftovers_ended for result in results) >= 3
        assert processes_outside(mark) == []
        late = await channel.run(
            Command(command=[*command[:2], f"{text}; sleep $0", mark], timeout_s=1)
        )
        assert late.reason is Reason.TIMED_OUT
        assert processes_outside(mark) == []
        killed = await channel.run(Command(command=["sh", "-c", "kill -9 $$"]))
        assert (killed.reason, killed.signal) == (Reason.SIGNALLED, 9)
        lost = await channel.run(
            Command(command=["sh", "-c", "(setsid sleep $0 &); kill -9 $PPID; sleep $0", mark])
        )
        assert lost.reason is Reason.SANDBOX_LOST
        assert processes_outside(mark) == []


# --- Files and output ------------------------------------------------------------------------


async def test_a_full_disk_does_not_keep_commands_from_running(fresh: Callable[..., str]) -> None:
    """Whoever filled it has to be able to clean up."""
    async with opened(fresh("--init", "--tmpfs", "/tmp:size=1m,uid=1000")) as channel:
        filled = await channel.run(Command(command="cat /dev/zero >/tmp/full; echo done"))
        assert filled.stdout == "done\n"
        assert await said(channel, "echo hi") == "hi\n"
        result = await channel.run(Command(command="kill -9 $$"))
        assert result.exit_code == 137
        with pytest.raises(OSError, match="space"):
            await channel.write_file("/tmp/more", bytes(MIB))
        long = await channel.run(Command(command="head -c 100000 /dev/zero", max_output_bytes=10))
        assert long.stdout_bytes == 100_000
        part = await channel.read_output(long.id, "stdout")
        assert part.lost_bytes + part.next_offset == 100_000
        assert await said(channel, "rm /tmp/full; echo ok") == "ok\n"
        await channel.write_file("/tmp/more", b"x")


async def test_nothing_of_a_draft_is_left_when_its_write_is_cancelled(
    channel: PosixChannel, mark: str
) -> None:
    await said(channel, f"mkdir /tmp/{mark}")
    for turns in (0, 3, 10, 30, 100):
        path = f"/tmp/{mark}/file"
        await channel.write_file(path, b"old")
        task = asyncio.create_task(channel.write_file(path, bytes(16 * MIB)))
        for _ in range(turns):
            await asyncio.sleep(0.001)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert await said(channel, f"ls -A /tmp/{mark}") == "file\n"


@pytest.mark.extended("size: floods of 64 MiB are in the conformance suite")
@pytest.mark.slow("a shell passes a gigabyte on")
async def test_a_gigabyte_leaves_our_memory_flat(container: str) -> None:
    size = 1024 * MIB
    async with opened(container) as channel:
        await said(channel, "true")
        before = reset_peak_memory()
        text = "dd if=/dev/zero bs=1048576 count=1024 2>/dev/null"
        command = Command(command=text, spill_bytes=MIB, timeout_s=240)
        result = await channel.run(command)
        assert peak_memory() - before < 30 * MIB
        assert (result.exit_code, result.stdout_bytes, len(result.stdout)) == (0, size, MIB)


async def test_old_records_are_forgotten(channel: PosixChannel) -> None:
    for _ in range(3):
        await asyncio.gather(*(channel.run(Command(command=["true"])) for _ in range(100)))
    await channel._shells.order("prune")
    names = {
        info.name.partition(",")[0]
        for info in await channel.list_files(channel._shells.config.base)
    }
    assert len(names) < 250  # Those of jobs that still run stay, however old.


# --- Nothing leaks ---------------------------------------------------------------------------


async def test_a_closed_channel_leaves_no_process_task_or_descriptor(
    container: str, mark: str, nothing_leaks: None
) -> None:
    channel = await open_posix_channel(Inside(container))
    await channel.run(Command(command="head -c 3000000 /dev/zero", max_output_bytes=10))
    await channel.run(Command(command=["cat"], stdin=bytes(MIB)))
    await channel.run(Command(command="stty size", terminal=TerminalSize()))
    await channel.run(Command(command=["sleep", mark], timeout_s=0.1))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await channel.run(Command(command=["sleep", mark]))
    running = asyncio.create_task(channel.run(Command(command=["sleep", mark])))
    await until(lambda: processes_outside(mark))
    await channel.close()
    await channel.close()
    assert (await running).reason is Reason.SANDBOX_LOST
    assert processes_outside(mark) == []


async def test_a_channel_that_cannot_be_opened_leaves_nothing(nothing_leaks: None) -> None:
    need_docker()
    with pytest.raises(SandboxError, match="no shell could be started"):
        await open_posix_channel(Inside("kakoi-no-such-container"))
