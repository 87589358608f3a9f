"""TaskQueue: the keys of waiting tasks, each handled by one consumer at a time.

A key stays in the queue until its task is done. A consumer that takes it gets a lease, which it
must renew. If the consumer is gone, the lease expires, and another one can take the key. Nothing
moves from one place to another, so nothing can be lost on the way. docs/adr/0015 gives the reasons.
"""

import asyncio
from collections.abc import Awaitable
from dataclasses import field
from typing import NoReturn, Protocol, TypeVar

from kakoi._support.asyncio import cancel_and_wait
from kakoi._support.late import dataclass, pattern
from kakoi.channel.api import check_type
from kakoi.errors import ConfigurationError, QueueError

_T = TypeVar("_T")
_KEY = pattern(r"[^\x00-\x20\x7f]{1,2000}")
_LONGEST_LEASE_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """The right to handle a task for a while. `attempt`: how often it was taken so far."""

    key: str
    attempt: int
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class QueueSize:
    """How many tasks wait, and how many are leased."""

    waiting: int
    taken: int


class TaskQueue(Protocol):
    """A queue of tasks. Its methods raise QueueError if the queue cannot be used.

    `lease_s`: how long a lease lasts without renewal. `renew`, `done` and `give_back` raise
    QueueError and change nothing if the lease has passed to another consumer.
    """

    lease_s: float

    async def put(self, key: str) -> bool:
        """Add a task. False if it is already in the queue, waiting or taken."""

    async def take(self, key: str | None = None) -> Lease | None:
        """Take the task that has waited longest, or that of `key`; None if none waits."""

    async def renew(self, lease: Lease) -> None:
        """Extend the lease to `lease_s` from now."""

    async def done(self, lease: Lease) -> None:
        """Remove the task, whatever its result: it will not be handled again."""

    async def give_back(self, lease: Lease) -> None:
        """Put the task back at the end of the queue."""

    async def size(self) -> QueueSize:
        """The number of waiting and taken tasks."""

    async def aclose(self) -> None:
        """Close the connections."""


async def run_with_lease(queue: TaskQueue, lease: Lease, work: Awaitable[_T]) -> _T:
    """Await `work` and renew the lease meanwhile. If renewal fails, cancel the work.

    The work is cancelled after two thirds of `lease_s` without a renewal, which leaves it the rest
    to end; then QueueError is raised. Ending the lease itself is up to the caller.
    """
    doing = asyncio.ensure_future(work)
    renewing = asyncio.ensure_future(_renew(queue, lease))
    try:
        await asyncio.wait([doing, renewing], return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        await cancel_and_wait(doing)
        return renewing.result()
    finally:
        await cancel_and_wait(renewing)
        await cancel_and_wait(doing)


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
            raise QueueError(f"cannot renew the lease of {lease.key} in time") from None
        else:
            until = began + 2 * pause_s


def lease_lost(lease: Lease) -> QueueError:
    """The error for a lease that another consumer may have taken over."""
    return QueueError(
        f"the lease of {lease.key} expired, and another consumer may have the task",
        details={"lost": True},
        hint="the machine was too busy to renew it, or was suspended",
    )


def check_key(key: str) -> str:
    """`key`, if it is valid; else ConfigurationError."""
    check_type("key", key, str)
    if not _KEY.fullmatch(key):
        raise ConfigurationError(f"invalid task key: {key!r:.80}")
    return key


def check_lease_s(lease_s: float) -> float:
    """`lease_s`, if it is in range; else ConfigurationError."""
    if not 1.0 <= lease_s <= _LONGEST_LEASE_S:
        raise ConfigurationError(f"the lease is {lease_s!r:.40} s; it must be 1 second to a day")
    return lease_s
