"""The tests of this suite share a sandbox: what one leaves in it is gone before the next."""

import pytest

from kakoi.conformance.asking import PATIENCE_S, reset, said
from kakoi.conformance.watching import alive
from kakoi.runner.commands import Command
from kakoi.sandbox.adapter import SandboxAdapter

pytestmark = [pytest.mark.anyio, pytest.mark.needs("resident", "jobs")]


async def test_neither_jobs_nor_files_are_left_by_a_reset(
    sandbox: SandboxAdapter, mark: str
) -> None:
    channel = await sandbox.channel()
    text = "mkdir -p a/b .hidden ..odd; touch a/b/c .hidden/d -- -e; chmod 000 a/b/c; chmod 500 a/b"
    await said(sandbox, text)
    job = await channel.start(
        Command(command=["sh", "-c", "(setsid sleep $0 &); echo up; sleep $0", mark])
    )
    await channel.read_output(job, "stdout", wait_s=PATIENCE_S)
    assert await said(sandbox, "ls -A | wc -l") != "0\n"
    await reset(sandbox, has_jobs=True)
    assert await said(sandbox, "ls -A") == ""
    assert await alive(sandbox, mark) == []
    assert not any(each.running for each in await channel.list_jobs())
