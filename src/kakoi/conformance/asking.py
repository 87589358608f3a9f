"""How the tests ask a sandbox for things."""

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from kakoi.results import ExecutionResult
from kakoi.runner.commands import Command, Running
from kakoi.sandbox.adapter import SandboxAdapter

PATIENCE_S = 60.0


def new_mark() -> str:
    """A number of seconds that no other process of this machine sleeps: `sleep MARK`."""
    return f"300.{secrets.randbelow(10**12):012}"


async def said(sandbox: SandboxAdapter, text: str) -> str:
    """What a command prints that must succeed."""
    result = await sandbox.run(Command(command=text, timeout_s=PATIENCE_S))
    assert result.ok, result
    return result.stdout


async def seen(sandbox: SandboxAdapter, text: str, stdin: bytes | None = None) -> str:
    """The same for what is not itself under test: by the channel, which is open anyway."""
    channel = await sandbox.channel()
    result = await channel.run(Command(command=text, stdin=stdin, timeout_s=PATIENCE_S))
    assert result.ok, result
    return result.stdout


async def reset(sandbox: SandboxAdapter, *, has_jobs: bool) -> None:
    """Leave nothing of a test in a sandbox that others will use: neither jobs nor files."""
    channel = await sandbox.channel()
    if has_jobs:
        for job in await channel.list_jobs():
            if job.running:
                await channel.stop_job(job.id)
    # The one directory that a command owns in every sandbox is the one it begins in.
    remove = "rm -rf -- ..?* .[!.]* *"
    await seen(sandbox, f"{remove} 2>/dev/null || {{ chmod -R u+rwX . && {remove}; }}")


async def until(holds: Callable[[], Awaitable[bool]], what: str) -> None:
    """Ask again and again, for a bounded time, until it holds."""
    give_up = time.monotonic() + PATIENCE_S
    while not await holds():
        assert time.monotonic() < give_up, f"never: {what}"
        await asyncio.sleep(0.05)


async def until_exists(sandbox: SandboxAdapter, path: str) -> None:
    async def exists() -> bool:
        return await seen(sandbox, f"test -e '{path}' && echo yes || echo no") == "yes\n"

    await until(exists, f"{path} exists")


@asynccontextmanager
async def running(sandbox: SandboxAdapter, command: Command) -> AsyncIterator[Running]:
    channel = await sandbox.channel()
    async with channel.open(command) as opened:
        yield opened


class Reader:
    """Takes live output in, and waits for what it must contain."""

    def __init__(self, opened: Running) -> None:
        self._parts = opened.output()
        self.stdout = b""
        self.stderr = b""

    async def until(self, pattern: bytes) -> re.Match[bytes]:
        """Read on until stdout holds `pattern`; what is before the end of it is dropped."""
        async with asyncio.timeout(PATIENCE_S):
            while not (match := re.search(pattern, self.stdout)):
                await self._take(await anext(self._parts))
        self.stdout = self.stdout[match.end() :]
        return match

    async def to_the_end(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            async for part in self._parts:
                await self._take(part)

    async def _take(self, part: tuple[str, bytes]) -> None:
        if part[0] == "stdout":
            self.stdout += part[1]
        else:
            self.stderr += part[1]


async def result_of(opened: Running) -> ExecutionResult:
    async with asyncio.timeout(PATIENCE_S):
        return await opened.result()
