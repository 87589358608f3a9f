"""The channel that is open at the moment: opened at first use, and again after it was lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from kakoi.errors import SandboxError
from kakoi.runner.commands import Channel
from kakoi.waiting import finish


@contextlib.asynccontextmanager
async def closed_on_failure(channel: Channel) -> AsyncIterator[Channel]:
    """The channel, for what has to be done before it is given out; closed if that fails."""
    try:
        yield channel
    except BaseException:
        await finish(channel.close())
        raise


class Connection:
    """Holds one channel. `open` makes a new one; it is called once at a time."""

    def __init__(self, open: Callable[[], Awaitable[Channel]]) -> None:
        self._open = open
        self._channel: Channel | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    async def channel(self) -> Channel:
        """A channel that works, as far as anyone knows."""
        channel = self._channel
        if channel is not None and not channel.lost:
            return channel
        async with self._lock:
            if self._closed:
                raise SandboxError("the sandbox has been cleaned up")
            if self._channel is not None and self._channel.lost:
                await self._channel.close()
                self._channel = None
            if self._channel is None:
                self._channel = await self._open()
            return self._channel

    async def close(self) -> None:
        """Close it for good. Never raises."""
        async with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
            if channel is not None:
                await channel.close()
