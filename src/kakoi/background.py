"""One event loop in a thread of its own: for callers that have none, or leave theirs.

What is opened there (a sandbox, a gate) outlives the loop of the caller, and can be used by a
blocking call inside a running loop. It is closed when its holder is collected, and at exit.
"""

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import cache
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
_EXIT_S = 20.0


class Background:
    """The loop. `run` is for blocking callers, `arun` for those in another loop."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="kakoi", daemon=True)
        self._thread.start()
        self._held: weakref.WeakSet[_Slot[Any]] = weakref.WeakSet()
        self._unwatched: set[_UnderWay[Any]] = set()
        self._is_over = False
        atexit.register(self._close)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do `work` there and wait for it. If the wait is interrupted, so is the work, first."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call from the background loop would wait for itself")
        under_way = _UnderWay(work, self._loop)
        try:
            return under_way.done.result()
        except BaseException:
            if not under_way.done.done():  # Ctrl-C here, not a failure there.
                under_way.cancel()
                concurrent.futures.wait([under_way.done])
            raise

    async def arun(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Do `work` there and await it here. Cancelling ends the work before it returns."""
        under_way = _UnderWay(work, self._loop)
        waiter = asyncio.wrap_future(under_way.done)
        try:
            return await asyncio.shield(waiter)
        except asyncio.CancelledError:
            under_way.cancel()
            while not waiter.done():
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.wait([waiter])
            waiter.exception()  # Seen.
            raise

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Do `work` there, and do not wait."""
        under_way = _UnderWay(work, self._loop)
        self._unwatched.add(under_way)  # Or nobody would keep it until it is done.
        under_way.done.add_done_callback(lambda _done: self._unwatched.discard(under_way))

    def hold(self, slot: "_Slot[Any]") -> None:
        """Close `slot` at exit, if it is still there."""
        if self._is_over:
            raise RuntimeError("Python is ending; nothing is opened any more")
        self._held.add(slot)

    def release(self) -> None:
        """Close all that is held open, and wait for that. What is used again is opened anew."""
        closing = [_UnderWay(slot.close(), self._loop).done for slot in list(self._held)]
        closing += [under_way.done for under_way in list(self._unwatched)]
        concurrent.futures.wait(closing, timeout=_EXIT_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _close(self) -> None:
        """At exit: nothing that was opened is left behind, and nothing is opened any more.

        The loop goes on: who wanted to close something at exit may have his turn after us.
        """
        if self._process != os.getpid():  # A child: the loop, and what is open, are its parent's.
            return
        self._is_over = True
        closing = [_UnderWay(slot.end(), self._loop).done for slot in list(self._held)]
        concurrent.futures.wait(closing, timeout=_EXIT_S)


# Threads that come first at the same time get the same loop. Taken again by a thread that has it:
# what is collected meanwhile may want the loop to be closed in.
_choosing = threading.RLock()


def background() -> Background:
    """The one loop of this process. After a fork the child gets its own: threads do not follow."""
    with _choosing:
        _follow_forks()
        return _of_this_process()


@cache
def _of_this_process() -> Background:
    return Background()


@cache
def _follow_forks() -> None:
    # Held over the fork: a thread that has it and does not follow would never give it back.
    os.register_at_fork(
        before=_choosing.acquire, after_in_parent=_choosing.release, after_in_child=_in_child
    )


def _in_child() -> None:
    _of_this_process.cache_clear()
    _choosing.release()


class _UnderWay(Generic[_T]):
    """Work in the loop of another thread. `done` is told its end, and nothing before it."""

    def __init__(self, work: Coroutine[Any, Any, _T], loop: asyncio.AbstractEventLoop) -> None:
        self.done: concurrent.futures.Future[_T] = concurrent.futures.Future()
        self._work = work
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        loop.call_soon_threadsafe(self._start)

    def cancel(self) -> None:
        self._loop.call_soon_threadsafe(self._cancel)

    def _start(self) -> None:
        self._task = self._loop.create_task(self._carry())
        self._task.add_done_callback(self._tell_if_never_begun)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def _carry(self) -> None:
        try:
            result = await self._work
        except BaseException as error:
            self.done.set_exception(error)
        else:
            self.done.set_result(result)

    def _tell_if_never_begun(self, _task: "asyncio.Task[None]") -> None:
        """Cancelled before its first step, a task never gets into its coroutine."""
        if not self.done.done():
            self._work.close()
            self.done.set_exception(asyncio.CancelledError())


class Held(Generic[_T]):
    """Something that is opened in the background at its first use, and kept open.

    `opener` must not lead back to the holder: it would never be collected.
    """

    def __init__(self, opener: Callable[[], AbstractAsyncContextManager[_T]]) -> None:
        self._opener = opener
        self._slot: _Slot[_T] | None = None

    async def get(self) -> _T:
        """It, opened if need be. To be awaited in the background loop."""
        # Of the parent, after a fork: it has the loop that ours came from.
        if self._slot is None or self._slot.process != os.getpid():
            self._slot = slot = _Slot(self._opener)
            there = background()
            there.hold(slot)
            weakref.finalize(self, _let_go, slot).atexit = False
        return await self._slot.get()

    async def close(self) -> None:
        """Close it; the next use opens it anew. To be awaited in the background loop."""
        slot, self._slot = self._slot, None
        if slot is not None and slot.process == os.getpid():
            await slot.close()


class _Slot(Generic[_T]):
    """What a `Held` has opened, so that it can be closed when its holder is gone."""

    def __init__(self, opener: Callable[[], AbstractAsyncContextManager[_T]]) -> None:
        self.process = os.getpid()
        self._opener = opener
        self._lock = asyncio.Lock()
        self._stack: contextlib.AsyncExitStack | None = None
        self._value: _T | None = None
        self._is_over = False

    async def get(self) -> _T:
        async with self._lock:
            if self._is_over:
                raise RuntimeError("Python is ending; nothing is opened any more")
            if self._stack is None:
                stack = contextlib.AsyncExitStack()
                self._value = await stack.enter_async_context(self._opener())
                self._stack = stack
            assert self._value is not None  # noqa: S101 - it was opened
            return self._value

    async def close(self) -> None:
        async with self._lock:
            stack, self._stack = self._stack, None
            if stack is not None:
                await stack.aclose()

    async def end(self) -> None:
        """Close it, and open it never again."""
        self._is_over = True
        await self.close()


def _let_go(slot: _Slot[Any]) -> None:
    if slot.process == os.getpid():
        background().start(slot.close())
