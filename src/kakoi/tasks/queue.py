"""TaskQueue: keys of tasks that wait for somebody to do them, each by one at a time.

A key stays in the queue until its task is done. Who takes it has a lease, which must be renewed;
of somebody who is gone the lease runs out, and the next one may take the key. Nothing is moved from
one place to another, so nothing can be lost on the way. docs/adr/0015 says why it is built so.
"""

import asyncio
import re
from collections.abc import Awaitable
from dataclasses import dataclass, field
from typing import NoReturn, Protocol, TypeVar

from kakoi.errors import ConfigurationError, QueueError
from kakoi.runner.commands import check_type

_T = TypeVar("_T")
_KEY = re.compile(r"[^\x00-\x20\x7f]{1,2000}")
_LONGEST_LEASE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A task that is ours for a while. `attempt`: how often it was taken, this time included."""

    key: str
    attempt: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Size:
    """How many tasks wait, and how many are being done."""

    waiting: int
    taken: int


class TaskQueue(Protocol):
    """What a queue can do; QueueError if it cannot be used.

    `lease_s`: how long a lease holds without being renewed. `renew`, `done` and `give_back` of a
    lease that somebody else has by now are a QueueError, and change nothing.
    """

    lease_s: float

    async def put(self, key: str) -> bool:
        """Let a task wait. False if it is in the queue already, waiting or taken."""

    async def take(self, key: str | None = None) -> Lease | None:
        """The task that waits longest, or that of `key`; None if there is none that waits."""

    async def renew(self, lease: Lease) -> None:
        """Hold it for `lease_s` from then on."""

    async def done(self, lease: Lease) -> None:
        """Remove the task: whatever came of it, nobody has to do it again."""

    async def give_back(self, lease: Lease) -> None:
        """Let the task wait again, behind the others."""

    async def size(self) -> Size:
        """How much there is."""

    async def aclose(self) -> None:
        """Close its connections."""


async def keep(queue: TaskQueue, lease: Lease, work: Awaitable[_T]) -> _T:
    """Do `work` and renew the lease meanwhile. If it cannot be kept, the work is cancelled.

    It is cancelled when two thirds of the time have passed without a renewal, so that it has the
    rest of the time to end; then QueueError. The lease itself is left to the caller.
    """
    doing = asyncio.ensure_future(work)
    renewing = asyncio.ensure_future(_renew(queue, lease))
    try:
        await asyncio.wait([doing, renewing], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        await _ended(doing)
        return renewing.result()
    finally:
        await _ended(renewing)
        await _ended(doing)


async def _renew(queue: TaskQueue, lease: Lease) -> NoReturn:
    loop = asyncio.get_running_loop()
    pause_s = queue.lease_s / 3
    until = loop.time() + 2 * pause_s
    while True:
        await asyncio.sleep(pause_s if loop.time() + pause_s < until else 0.1 * pause_s)
        began = loop.time()
        try:
            async with asyncio.timeout_at(until):
                await queue.renew(lease)
        except QueueError as error:
            if error.details.get("lost") or loop.time() >= until:
                raise
        except TimeoutError:
            raise QueueError(f"the lease of {lease.key} could not be renewed in time") from None
        else:
            until = began + 2 * pause_s


async def _ended(task: "asyncio.Future[_T]") -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # Or asyncio complains that nobody wanted to know.


def lost(lease: Lease) -> QueueError:
    """That somebody else has the task by now."""
    return QueueError(
        f"the lease of {lease.key} ran out, and the task is no longer ours",
        details={"lost": True},
        hint="the machine was too busy to renew it, or slept",
    )


def check_key(key: str) -> str:
    """`key`, if it can be one."""
    check_type("key", key, str)
    if not _KEY.fullmatch(key):
        raise ConfigurationError(f"{key!r:.80} is no key of a task")
    return key


def check_lease_s(lease_s: float) -> float:
    """`lease_s`, if it is a sensible time."""
    if not 1.0 <= lease_s <= _LONGEST_LEASE_S:
        raise ConfigurationError(f"a lease of {lease_s!r:.40} s; it must be 1 second to a day")
    return lease_s
