"""Waiting: to the end although we are cancelled, and aside for what may never end."""

import asyncio
import contextlib
import threading
from collections.abc import Awaitable, Callable
from queue import SimpleQueue
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


class Aside:
    """A thread for calls that may block for ever, one at a time. It keeps nobody from exiting.

    Not `asyncio.to_thread`: that is waited for at the end. And not O_NONBLOCK: our standard streams
    are shared with whoever started us.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], Any]]
        self._calls = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._serve, daemon=True).start()

    async def call(self, function: Callable[..., _T], *args: object) -> _T:
        """What `function` returns or raises. Cancelling does not stop it; nobody waits then."""
        future: asyncio.Future[_T] = self._loop.create_future()
        self._calls.put((future, function, args))
        return await future

    def _serve(self) -> None:
        while True:
            future, function, args = self._calls.get()
            result, failure = None, None
            try:
                result = function(*args)
            except BaseException as error:  # It is raised again where it is awaited.
                failure = error
            with contextlib.suppress(RuntimeError):  # The loop is closed: we are exiting.
                self._loop.call_soon_threadsafe(_answer, future, result, failure)


def _answer(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)
