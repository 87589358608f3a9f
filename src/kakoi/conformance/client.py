"""A client of its own, for tests that kill it.

    python -m kakoi.conformance.client NAME WORKSPACE {run|job} < command

It runs the lines on its standard input as `sh -c` in the sandbox. A job's id is printed, and then
the client waits to be killed.
"""

import asyncio
import signal
import sys
from pathlib import Path

from kakoi.conformance.subjects import subject_named
from kakoi.runner.commands import Command


async def serve(name: str, workspace: Path, how: str, text: str) -> None:
    sandbox = subject_named(name).make(workspace)
    command = Command(command=["sh", "-c", text])
    if how == "job":
        channel = await sandbox.channel()
        print(await channel.start(command), flush=True)
        await asyncio.Event().wait()
    await sandbox.run(command)


if __name__ == "__main__":
    # Whoever was started in the background ignores it, and so would we.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio.run(serve(sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.stdin.read()))
