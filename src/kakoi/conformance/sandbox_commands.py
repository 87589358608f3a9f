"""Helpers that run commands in a sandbox for the tests."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from kakoi.backends.adapter import SandboxAdapter
from kakoi.channel.api import Command, RunningCommand
from kakoi.results import ExecutionResult

TIMEOUT_S = 60.0


async def output_of(sandbox: SandboxAdapter, text: str) -> str:
    """Run a command that must succeed, and return its output."""
    result = await sandbox.run(Command(command=text, timeout_s=TIMEOUT_S))
    assert result.ok, result
    return result.stdout


async def channel_output(sandbox: SandboxAdapter, text: str, stdin: bytes | None = None) -> str:
    """Like `output_of`, for a command that is not itself under test: uses the open channel."""
    channel = await sandbox.channel()
    result = await channel.run(Command(command=text, stdin=stdin, timeout_s=TIMEOUT_S))
    assert result.ok, result
    return result.stdout


async def reset(sandbox: SandboxAdapter, *, has_jobs: bool) -> None:
    """Remove the jobs and files of a test from a sandbox that other tests will use."""
    channel = await sandbox.channel()
    if has_jobs:
        for job in await channel.list_jobs():
            if job.running:
                await channel.stop_job(job.id)
    # The only directory that a command owns in every sandbox is its initial directory.
    remove = "rm -rf -- ..?* .[!.]* *"
    await channel_output(sandbox, f"{remove} 2>/dev/null || {{ chmod -R u+rwX . && {remove}; }}")


async def wait_until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Poll until `holds` returns true, and fail after TIMEOUT_S."""
    give_up = time.monotonic() + TIMEOUT_S
    while not await holds():
        assert time.monotonic() < give_up, f"never: {what}"
        await asyncio.sleep(0.05)


async def wait_until_exists(sandbox: SandboxAdapter, path: str) -> None:
    async def exists() -> bool:
        return await channel_output(sandbox, f"test -e '{path}' && echo yes || echo no") == "yes\n"

    await wait_until(exists, f"{path} exists")


@asynccontextmanager
async def running(sandbox: SandboxAdapter, command: Command) -> AsyncIterator[RunningCommand]:
    channel = await sandbox.channel()
    async with channel.open(command) as opened:
        yield opened


class Reader:
    """Reads live output and waits for a pattern in it."""

    def __init__(self, opened: RunningCommand) -> None:
        self._parts = opened.output()
        self.stdout = b""
        self.stderr = b""

    async def until(self, pattern: bytes) -> re.Match[bytes]:
        """Read until stdout contains `pattern`; drops everything up to the end of the match."""
        async with asyncio.timeout(TIMEOUT_S):
            while not (match := re.search(pattern, self.stdout)):
                await self._take(await anext(self._parts))
        self.stdout = self.stdout[match.end() :]
        return match

    async def to_the_end(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            async for part in self._parts:
                await self._take(part)

    async def _take(self, part: tuple[str, bytes]) -> None:
        if part[0] == "stdout":
            self.stdout += part[1]
        else:
            self.stderr += part[1]


async def result_of(opened: RunningCommand) -> ExecutionResult:
    async with asyncio.timeout(TIMEOUT_S):
        return await opened.result()
