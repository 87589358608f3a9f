"""A client in its own process, for tests that kill it.

    python -m kakoi.conformance.client NAME WORKSPACE {run|job|paused} < command

It runs the text on its stdin with `sh -c` in the sandbox. For a job, it prints the job's id and
waits to be killed. `paused` starts a job, which creates the file `up`, and pauses the sandbox then.
"""

import asyncio
import signal
import sys
from pathlib import Path

from kakoi.backends.adapter import CanPause
from kakoi.channel.api import Command
from kakoi.conformance.sandbox_commands import wait_until
from kakoi.conformance.subjects import subject_named


async def until_exists(file: Path) -> None:
    async def exists() -> bool:
        return await asyncio.to_thread(file.exists)

    await wait_until(exists, f"there is {file}")


async def serve(name: str, workspace: Path, how: str, text: str) -> None:
    sandbox = subject_named(name).make(workspace)
    command = Command(command=["sh", "-c", text])
    if how == "job":
        channel = await sandbox.channel()
        print(await channel.start(command), flush=True)
        await asyncio.Event().wait()
    if how == "paused":
        assert isinstance(sandbox, CanPause)
        await (await sandbox.channel()).start(command)
        await until_exists(workspace / "up")
        await sandbox.pause()
        print("paused", flush=True)
        await asyncio.Event().wait()
    await sandbox.run(command)


if __name__ == "__main__":
    # A process started in the background ignores SIGINT, and we would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.stdin.read()))
