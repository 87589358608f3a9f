"""After `cleanup`, nothing of a sandbox is left: no process, container, mount or descriptor."""

import asyncio
import contextlib
import os
from pathlib import Path

import pytest

from kakoi.conformance.asking import PATIENCE_S, Reader, running, said, until
from kakoi.conformance.conftest import Opener
from kakoi.conformance.subjects import Subject, Traits
from kakoi.conformance.watching import (
    alive_outside,
    children,
    containers_of,
    descriptors,
    mounts_of,
    users_of,
)
from kakoi.errors import KakoiError, SandboxError
from kakoi.results import Reason
from kakoi.runner.commands import Command, TerminalSize
from kakoi.sandbox.adapter import SandboxAdapter

pytestmark = pytest.mark.anyio


def left(subject: Subject, workspace: Path) -> list[str]:
    """What there still is of the sandboxes on this workspace."""
    return [
        *users_of(workspace),
        *containers_of(subject.engine, workspace),
        *mounts_of(workspace),
    ]


async def use(sandbox: SandboxAdapter, traits: Traits, mark: str) -> None:
    """A bit of everything."""
    await said(sandbox, "echo hi")
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
        assert users_of(workspace) or containers_of(subject.engine, workspace) or not traits.jobs
    assert left(subject, workspace) == []
    assert alive_outside(mark) == []
    assert os.listdir(workspace) == []


@pytest.mark.slow("opens and closes several sandboxes")
async def test_no_descriptor_and_no_child_is_left(fresh: Opener, traits: Traits, mark: str) -> None:
    async with fresh() as sandbox:  # What is opened once for good is opened here.
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
        assert await said(sandbox, "echo hi") == "hi\n"
    assert left(subject, workspace) == []
    assert alive_outside(mark) == []


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
            return (workspace / "up").exists() or bool(alive_outside(mark))

        await until(is_up, "the command is up")
        async with running(sandbox, Command(command="echo up; cat", stdin_open=True)) as opened:
            await Reader(opened).until(b"up\n")
            await asyncio.wait_for(sandbox.cleanup(), PATIENCE_S)
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE_S)
        if not task.cancelled() and task.exception() is None:
            assert task.result().reason in (Reason.SANDBOX_LOST, Reason.CANCELLED)
    assert alive_outside(mark) == []
    assert left(subject, workspace) == []


async def test_a_cancellation_does_not_keep_anything_from_being_cleaned(
    subject: Subject, fresh: Opener, workspace: Path
) -> None:
    async with fresh() as sandbox:
        await said(sandbox, "echo hi")
        task = asyncio.create_task(sandbox.cleanup())
        await asyncio.sleep(0)
        while not task.done():
            task.cancel()
            await asyncio.wait([task], timeout=0.01)
    assert left(subject, workspace) == []


async def test_whoever_comes_after_the_end_leaves_nothing_either(
    subject: Subject, fresh: Opener, workspace: Path
) -> None:
    """Whether it is refused or served is up to the sandbox."""
    async with fresh() as sandbox:
        await said(sandbox, "echo hi")
        await sandbox.cleanup()
        with contextlib.suppress(KakoiError):
            await sandbox.run(Command(command="echo hi", timeout_s=PATIENCE_S))
    assert left(subject, workspace) == []


async def test_it_says_that_it_is_available_and_leaves_nothing(
    subject: Subject, fresh: Opener, workspace: Path
) -> None:
    async with fresh() as sandbox:
        assert await sandbox.availability()
        assert await sandbox.is_available()
    assert left(subject, workspace) == []
