"""When the client is killed, its commands die. Jobs survive where the sandbox promises it."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kakoi.backends.probes import processes_outside
from kakoi.channel.api import Command
from kakoi.conformance.process_view import alive, containers_of, mounts_of, processes_using
from kakoi.conformance.sandbox_commands import TIMEOUT_S, wait_until
from kakoi.conformance.subjects import Subject

pytestmark = [pytest.mark.anyio, pytest.mark.needs("shares_workspace")]

GROWTH = {
    "a command": "",
    "daemons": "for i in 1 2 3 4 5; do (setsid sleep MARK & env -i setsid sleep MARK &); done",
    "a deaf command": "trap '' HUP INT QUIT TERM PIPE; sleep MARK &",
    "a flood": "yes MARK &",
}


@contextmanager
def client(
    subject: Subject, workspace: Path, how: str, text: str
) -> Iterator["subprocess.Popen[str]"]:
    """Start a client in another process, with an open sandbox on `workspace`."""
    script = "import runpy, sys; sys.path[:] = sys.argv.pop(1).split(':'); runpy.run_module("
    script += "'kakoi.conformance.client', run_name='__main__', alter_sys=True)"
    path = ":".join(sys.path)
    process = subprocess.Popen(
        [sys.executable, "-c", script, path, subject.name, str(workspace), how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(text)
    process.stdin.close()
    try:
        yield process
    finally:
        process.kill()
        process.wait(TIMEOUT_S)
        process.stdout.close()


async def until_up(workspace: Path) -> None:
    async def is_up() -> bool:
        return (workspace / "up").exists()

    await wait_until(is_up, "the command is up")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("kind", GROWTH)
async def test_its_commands_die_with_our_process(
    subject: Subject,
    available: None,
    workspace: Path,
    mark: str,
    kind: str,
    number: signal.Signals,
) -> None:
    text = f"{GROWTH[kind]}\n: >up\nsleep MARK\n".replace("MARK", mark)
    with client(subject, workspace, "run", text) as process:
        await until_up(workspace)
        assert processes_outside(mark)
        process.send_signal(number)
        await asyncio.to_thread(process.wait, TIMEOUT_S)

        async def nothing_is_left() -> bool:
            return not processes_outside(mark)

        await wait_until(nothing_is_left, "everything of the command is dead")
    await take_away(subject, workspace)


async def take_away(subject: Subject, workspace: Path) -> None:
    """Clean up a container that outlived its client, and wait until everything else is gone."""
    if subject.resume is not None and containers_of(subject.engine, workspace):
        await (await subject.resume(workspace)).cleanup()

    async def nothing_is_left() -> bool:
        return not (
            processes_using(workspace)
            + containers_of(subject.engine, workspace)
            + mounts_of(workspace)
        )

    await wait_until(nothing_is_left, "the sandbox is gone")


@pytest.mark.needs("jobs")
async def test_jobs_live_on_or_die_as_it_is_claimed(
    subject: Subject, available: None, workspace: Path, mark: str
) -> None:
    begin = f"(setsid sleep {mark} &)\necho first\n: >up\n"
    text = f"{begin}read -r line <pipe\necho $line\nsleep {mark}\n"
    os.mkfifo(workspace / "pipe")
    (workspace / "pipe").chmod(0o666)
    with client(subject, workspace, "job", text) as process:
        assert process.stdout is not None
        job = (await asyncio.to_thread(process.stdout.readline)).strip()
        await until_up(workspace)
        process.kill()
        await asyncio.to_thread(process.wait, TIMEOUT_S)
    if subject.resume is None:

        async def dead() -> bool:
            return not processes_outside(mark)

        await wait_until(dead, "the job is dead")
    else:
        await find_again(subject, workspace, job, mark)
    await take_away(subject, workspace)


async def find_again(subject: Subject, workspace: Path, job: str, mark: str) -> None:
    """Check that another client finds the job with its output so far, and can continue it."""
    assert subject.resume is not None
    sandbox = await subject.resume(workspace)
    try:
        channel = await sandbox.channel()
        assert [(info.id, info.running) for info in await channel.list_jobs()] == [(job, True)]
        part = await channel.read_output(job, "stdout", wait_s=TIMEOUT_S)
        assert part.data == b"first\n"
        await channel.run(Command(command="echo second >pipe", timeout_s=TIMEOUT_S))
        part = await channel.read_output(job, "stdout", offset=6, wait_s=TIMEOUT_S)
        assert part.data == b"second\n"
        # The same id is the same job, even for another client.
        await channel.start(Command(command="echo never >wrong", id=job))
        await channel.stop_job(job)
        assert await alive(sandbox, mark) == []
        assert not (workspace / "wrong").exists()
    finally:
        await sandbox.cleanup()


@pytest.mark.needs("survives_client")
async def test_a_second_client_shares_the_place_with_the_first(
    subject: Subject, available: None, workspace: Path, mark: str
) -> None:
    assert subject.resume is not None
    one = subject.make(workspace)
    try:
        channel = await one.channel()
        job = await channel.start(Command(command=["sh", "-c", "echo up; sleep $0", mark]))
        two = await subject.resume(workspace)
        other = await two.channel()
        try:
            assert (await other.read_output(job, "stdout", wait_s=TIMEOUT_S)).data == b"up\n"
            pairs = [(each, number) for number in range(20) for each in (one, two)]
            results = await asyncio.gather(
                *(each.run(Command(command=f"echo {number}")) for each, number in pairs)
            )
            assert [int(result.stdout) for result in results] == [number for _, number in pairs]
        finally:
            await other.close()
        # The second client has left, which must not affect the first.
        assert (await one.run(Command(command="echo hi"))).stdout == "hi\n"
        assert await channel.wait_job(job, wait_s=0.01) is None
        await channel.stop_job(job)
    finally:
        await one.cleanup()
    await take_away(subject, workspace)
