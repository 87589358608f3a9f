"""Programs of ours that mount something for a container, and hold it while that is started."""

import asyncio
import contextlib
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

from kakoi.errors import SandboxError
from kakoi.process.stream import Launch, ProcessStream

_PROGRAMS = os.path.join(os.path.dirname(os.path.dirname(__file__)), "process")
# What such a program has to say about a failure, by the first words of its lines; and all of it.
Failure = Callable[[Mapping[str, str], str], SandboxError]


@contextlib.asynccontextmanager
async def mounting(
    program: str, order: Sequence[str], *, timeout_s: float, failure: Failure
) -> AsyncIterator[None]:
    """Have a program of kakoi/process mount what `order` says, until the block ends.

    It takes the order, says one byte when all is mounted, and unmounts when we let go.
    """
    argv = [sys.executable, "-I", "-S", os.path.join(_PROGRAMS, program)]
    stream = ProcessStream(Launch(argv=argv, env={"LANG": "C.UTF-8"}))
    try:
        if not await _is_mounted(stream, order, timeout_s):
            lines = dict(line.partition(": ")[::2] for line in stream.stderr.splitlines())
            raise failure(lines, stream.stderr)
        yield
    finally:
        await stream.end(grace_s=timeout_s)  # Killed, it would leave the mount behind.


async def _is_mounted(stream: ProcessStream, order: Sequence[str], timeout_s: float) -> bool:
    loop = asyncio.get_running_loop()
    spec = os.fsencode("\0".join(order))
    said = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(timeout_s):
            await loop.sock_sendall(stream.socket, b"%010d" % len(spec) + spec)
            said = await loop.sock_recv(stream.socket, 1)
            if not said:
                await stream.wait()
    return bool(said)
