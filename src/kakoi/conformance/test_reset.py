"""The tests of this suite share a sandbox, which is reset after each test."""

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import Command
from kakoi.conformance.process_view import alive
from kakoi.conformance.sandbox_commands import TIMEOUT_S, output_of, reset

pytestmark = [pytest.mark.anyio, pytest.mark.needs("resident", "jobs")]


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
