"""After `cleanup`, nothing of a sandbox is left: no process, container, mount or descriptor."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.backends.probes import processes_outside
from kakoi.channel.api import Command, TerminalSize
from kakoi.conformance.conftest import Opener
from kakoi.conformance.process_view import (
    alive,
    children,
    containers_of,
    descriptors,
    mounts_of,
    processes_using,
)
from kakoi.conformance.sandbox_commands import (
    TIMEOUT_S,
    Reader,
    output_of,
    reset,
    running,
    wait_until,
)
from kakoi.conformance.subjects import Subject, Traits
from kakoi.errors import KakoiError, SandboxError
from kakoi.results import Reason

pytestmark = pytest.mark.anyio


def left(subject: Subject, workspace: Path) -> list[str]:
    """Return what is left of the sandboxes on this workspace."""
    return [
        *processes_using(workspace),
        *containers_of(subject.engine, workspace),
        *mounts_of(workspace),
    ]


async def use(sandbox: SandboxAdapter, traits: Traits, mark: str) -> None:
    """Use a bit of every feature."""
    await output_of(sandbox, "echo hi")
    await sandbox.run(Command(command=["sh", "-c", "(setsid sleep $0 &)", mark]))
    await sandbox.run(Command(command=["sleep", mark], timeout_s=0.2))
    await sandbox.run(Command(command=["kakoi-no-such-program"]))
    await sandbox.run(Command(command="head -c 3000000 /dev/zero", stdin=bytes(3_000_000)))
    if traits.terminal:
        await sandbox.run(Command(command="stty size", terminal=TerminalSize()))
    if traits.jobs:
        channel = await sandbox.channel()
        await channel.start(Command(command=["sleep", mark]))
        await channel.start(Command(command="echo hi"))
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.2):
            await sandbox.run(Command(command=["sleep", mark]))


@pytest.mark.slow("opens and closes several sandboxes")
async def test_nothing_is_left_after_the_end(
    subject: Subject, fresh: Opener, workspace: Path, traits: Traits, mark: str
) -> None:
    async with fresh() as sandbox:
        await use(sandbox, traits, mark)
        assert (
            processes_using(workspace)
            or containers_of(subject.engine, workspace)
            or not traits.jobs
        )
    assert left(subject, workspace) == []
    assert processes_outside(mark) == []
    assert os.listdir(workspace) == []


@pytest.mark.slow("opens and closes several sandboxes")
async def test_no_descriptor_and_no_child_is_left(fresh: Opener, traits: Traits, mark: str) -> None:
    async with fresh() as sandbox:  # Opens everything that is opened only once per process.
        await use(sandbox, traits, mark)
    before = descriptors(), children()
    async with fresh() as sandbox:
        await use(sandbox, traits, mark)
    assert (descriptors(), children()) == before


async def test_a_lost_sandbox_leaves_nothing_either(
    subject: Subject, fresh: Opener, workspace: Path, mark: str
) -> None:
    async with fresh() as sandbox:
        channel = await sandbox.channel()
        async with channel.open(Command(command=["sh", "-c", "echo up; sleep $0", mark])) as opened:
            await Reader(opened).until(b"up\n")
            await channel.close()
            assert channel.lost
            with pytest.raises(SandboxError):
                await channel.list_jobs()
        assert await output_of(sandbox, "echo hi") == "hi\n"
    assert left(subject, workspace) == []
    assert processes_outside(mark) == []


async def test_a_sandbox_that_was_never_used_has_nothing_to_clean(
    subject: Subject, fresh: Opener, workspace: Path
) -> None:
    async with fresh() as sandbox:
        assert sandbox.name
        await sandbox.cleanup()
        await sandbox.cleanup()
    assert left(subject, workspace) == []


async def test_cleaning_up_ends_what_still_runs(
    subject: Subject, fresh: Opener, workspace: Path, mark: str
) -> None:
    async with fresh() as sandbox:
        command = Command(command=["sh", "-c", "(setsid sleep $0 &); : >up; sleep $0", mark])
        task = asyncio.create_task(sandbox.run(command))

        async def is_up() -> bool:
            return (workspace / "up").exists() or bool(processes_outside(mark))

        await wait_until(is_up, "the command is up")
        async with running(sandbox, Command(command="echo up; cat", stdin_open=True)) as opened:
            await Reader(opened).until(b"up\n")
            await asyncio.wait_for(sandbox.cleanup(), TIMEOUT_S)
        task.cancel()
        await asyncio.wait([task], timeout=TIMEOUT_S)
        if not task.cancelled() and task.exception() is None:
            assert task.result().reason in (Reason.SANDBOX_LOST, Reason.CANCELLED)
    assert processes_outside(mark) == []
    assert left(subject, workspace) == []


async def test_a_cancellation_does_not_keep_anything_from_being_cleaned(
    subject: Subject, fresh: Opener, workspace: Path
) -> None:
    async with fresh() as sandbox:
        await output_of(sandbox, "echo hi")
        task = asyncio.create_task(sandbox.cleanup())
        await asyncio.sleep(0)
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=0.01)
    assert left(subject, workspace) == []


async def test_a_call_after_the_end_leaves_nothing_behind(
    subject: Subject, fresh: Opener, workspace: Path
) -> None:
    """The sandbox decides whether it refuses or runs the command."""
    async with fresh() as sandbox:
        await output_of(sandbox, "echo hi")
        await sandbox.cleanup()
        with contextlib.suppress(KakoiError):
            await sandbox.run(Command(command="echo hi", timeout_s=TIMEOUT_S))
    assert left(subject, workspace) == []


async def test_it_says_that_it_is_available_and_leaves_nothing(
    subject: Subject, fresh: Opener, workspace: Path
) -> None:
    async with fresh() as sandbox:
        assert await sandbox.availability()
        assert await sandbox.is_available()
    assert left(subject, workspace) == []


@pytest.mark.needs("resident", "jobs")
async def test_neither_jobs_nor_files_are_left_by_a_reset(
    sandbox: SandboxAdapter, mark: str
) -> None:
    channel = await sandbox.channel()
    text = "mkdir -p a/b .hidden ..odd; touch a/b/c .hidden/d -- -e; chmod 000 a/b/c; chmod 500 a/b"
    await output_of(sandbox, text)
    job = await channel.start(
        Command(command=["sh", "-c", "(setsid sleep $0 &); echo up; sleep $0", mark])
    )
    await channel.read_output(job, "stdout", wait_s=TIMEOUT_S)
    assert await output_of(sandbox, "ls -A | wc -l") != "0\n"
    await reset(sandbox, has_jobs=True)
    assert await output_of(sandbox, "ls -A") == ""
    assert await alive(sandbox, mark) == []
    assert not any(each.running for each in await channel.list_jobs())
