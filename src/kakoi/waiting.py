"""Waits that a cancellation does not cut short: what has to be over is over when they return."""

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

_T = TypeVar("_T")


async def finish(work: Awaitable[_T]) -> _T:
    """Await `work` to its end, even if we are cancelled meanwhile; that is raised afterwards.

    Its own failure comes first.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    try:
        await over(task)
    except asyncio.CancelledError as error:
        cancelled = error
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


async def over(task: "asyncio.Future[Any]") -> None:
    """Wait until it is over, however it ends; if we are cancelled, that is raised only then."""
    interruption: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            interruption = error
    if interruption is not None:
        raise interruption


async def cancel(task: "asyncio.Future[Any]") -> None:
    """Cancel it, and wait until it is over, however it ends."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()  # Seen, whatever it was.
