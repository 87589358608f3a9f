"""A paused sandbox stands still and continues later; nothing stays frozen without its client."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from kakoi.backends.adapter import CanPause, SandboxAdapter
from kakoi.backends.probes import processes_outside
from kakoi.channel.api import Command
from kakoi.conformance.conftest import Opener
from kakoi.conformance.process_view import containers_of
from kakoi.conformance.sandbox_commands import TIMEOUT_S, wait_until
from kakoi.conformance.subjects import Subject
from kakoi.conformance.test_client_dies import client, take_away, until_up
from kakoi.errors import SandboxError, UnsupportedError

pytestmark = [pytest.mark.anyio, pytest.mark.needs("pauses", "jobs", "shares_workspace")]

# Long enough for thirty lines of COUNT.
QUIET_S = 0.3
COUNT = ": >up; while :; do echo >>count; sleep 0.01; done"


async def pause(sandbox: SandboxAdapter) -> None:
    assert isinstance(sandbox, CanPause)
    try:
        await sandbox.pause()
    except UnsupportedError as error:
        pytest.skip(f"{error}. {error.hint}")


async def resume(sandbox: SandboxAdapter) -> None:
    assert isinstance(sandbox, CanPause)
    await sandbox.resume()


async def wait_for_lines(workspace: Path, least: int) -> None:
    async def enough() -> bool:
        return counted(workspace) >= least

    await wait_until(enough, "the command continues")


def counted(workspace: Path) -> int:
    file = workspace / "count"
    return file.stat().st_size if file.exists() else 0


async def test_it_stands_still_and_goes_on(fresh: Opener, workspace: Path) -> None:
    async with fresh() as sandbox:
        await resume(sandbox)  # There is nothing to resume.
        channel = await sandbox.channel()
        job = await channel.start(Command(command=COUNT))
        await wait_for_lines(workspace, 3)
        await pause(sandbox)
        await pause(sandbox)
        before = counted(workspace)
        running = asyncio.ensure_future(sandbox.run(Command(command="echo after")))
        await asyncio.sleep(QUIET_S)
        assert counted(workspace) == before
        assert not running.done()
        await resume(sandbox)
        assert (await running).stdout == "after\n"
        await wait_for_lines(workspace, before + 3)
        await channel.stop_job(job)


async def test_a_paused_sandbox_can_be_cleaned_up(
    subject: Subject, available: None, workspace: Path, mark: str
) -> None:
    sandbox = subject.make(workspace)
    try:
        channel = await sandbox.channel()
        await channel.start(Command(command=f": >up; exec sleep {mark}"))
        await until_up(workspace)
        await pause(sandbox)
    finally:
        await asyncio.wait_for(sandbox.cleanup(), TIMEOUT_S)
    assert processes_outside(mark) == []
    assert containers_of(subject.engine, workspace) == []


@pytest.mark.slow("starts three containers one after the other")
async def test_nothing_stays_frozen_when_the_client_is_killed(
    subject: Subject, available: None, workspace: Path, mark: str
) -> None:
    sandbox = subject.make(workspace)
    try:
        await pause(sandbox)  # Skips the test where that is impossible.
    finally:
        await sandbox.cleanup()
    text = f"trap '' HUP TERM; setsid -f sleep {mark}; : >up; sleep {mark}"
    with client(subject, workspace, "paused", text) as process:
        assert process.stdout is not None
        assert (await asyncio.to_thread(process.stdout.readline)).strip() == "paused"
        process.kill()
        await asyncio.to_thread(process.wait, TIMEOUT_S)
    if subject.resume is None:

        async def dead() -> bool:
            return not processes_outside(mark)

        await wait_until(dead, "everything is dead")
    else:
        await find_running(subject, workspace)
    await take_away(subject, workspace)


async def find_running(subject: Subject, workspace: Path) -> None:
    """Check that a sandbox that outlived its client is not frozen, and remove it."""
    assert subject.resume is not None
    found: list[SandboxAdapter] = []

    async def is_found() -> bool:
        assert subject.resume is not None
        with contextlib.suppress(SandboxError):  # It stays frozen until that is noticed.
            found.append(await subject.resume(workspace))
        return bool(found)

    await wait_until(is_found, "it runs again")
    try:
        assert (await found[0].run(Command(command="echo hi"))).stdout == "hi\n"
    finally:
        await found[0].cleanup()
