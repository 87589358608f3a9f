"""The current channel of a sandbox: opened on first use, and reopened after it was lost."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable

from kakoi._support.asyncio import finish
from kakoi.channel.api import Channel, check_type
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.results import ExecutionResult, Reason

_LONGEST_S = 2.0**31
_LEAST_S = 0.001


@contextlib.asynccontextmanager
async def closed_on_failure(channel: Channel) -> AsyncIterator[Channel]:
    """Close the channel if the block fails: for setup before the channel is returned."""
    try:
        yield channel
    except BaseException:
        await finish(channel.close())
        raise


class Deadline:
    """When a sandbox ends by itself: `lifetime_s` after it was first opened; None: never.

    The sandbox enforces it with means of its own. Here we only know about it.
    """

    def __init__(self, lifetime_s: float | None = None) -> None:
        check_type("lifetime_s", lifetime_s, int, float, type(None))
        if lifetime_s is not None and not 0 < lifetime_s < _LONGEST_S:
            raise ConfigurationError(
                f"lifetime_s is {lifetime_s}; it must be a number of seconds above zero"
            )
        self.lifetime_s = lifetime_s
        self._end_s: float | None = None

    def begin(self) -> None:
        """The sandbox is opened. Only the first time counts."""
        if self._end_s is None and self.lifetime_s is not None:
            self._end_s = time.monotonic() + self.lifetime_s

    @property
    def left_s(self) -> float | None:
        """How long it still has, never zero; None: for ever."""
        if self._end_s is None:
            return self.lifetime_s
        return max(self._end_s - time.monotonic(), _LEAST_S)

    @property
    def is_over(self) -> bool:
        """Whether the sandbox has ended, or is about to."""
        return self._end_s is not None and time.monotonic() >= self._end_s

    def check(self) -> None:
        """Raise SandboxError if it is over."""
        if self.is_over:
            raise SandboxError(
                self._ended,
                details={"lifetime_s": self.lifetime_s},
                hint="open a new sandbox; `lifetime` says how long it lasts",
            )

    def explained(self, result: ExecutionResult) -> ExecutionResult:
        """The result of a command, which says so if the sandbox ended for this reason."""
        if result.reason is Reason.SANDBOX_LOST and self.is_over:
            return dataclasses.replace(result, error=self._ended)
        return result

    @property
    def _ended(self) -> str:
        return f"the lifetime of the sandbox ({self.lifetime_s:g} s) has ended"


class Connection:
    """Holds one channel. `open` makes a new one; calls to it never overlap.

    `deadline`: after it, there is no channel any more.
    """

    def __init__(
        self, open: Callable[[], Awaitable[Channel]], deadline: Deadline | None = None
    ) -> None:
        self._open = open
        self._deadline = deadline or Deadline()
        self._channel: Channel | None = None
        self._lock = asyncio.Lock()
        self._closed = False

    async def channel(self) -> Channel:
        """Return a channel that is not known to be lost."""
        self._deadline.check()
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
                self._deadline.begin()
                self._channel = await self._open()
            return self._channel

    @contextlib.asynccontextmanager
    async def exclusive(self) -> AsyncIterator[Channel | None]:
        """Yield the channel, if there is one; none is opened until the block ends.

        If the block closes the channel, the next call of `channel` opens a new one.
        """
        async with self._lock:
            if self._closed:
                raise SandboxError("the sandbox has been cleaned up")
            yield self._channel

    async def close(self) -> None:
        """Close it for good. Never raises."""
        async with self._lock:
            self._closed = True
            channel, self._channel = self._channel, None
            if channel is not None:
                await channel.close()
