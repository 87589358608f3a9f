"""Additions to asyncio: waits that survive cancellation, blocking calls, a loop in a thread."""

import asyncio
import atexit
import concurrent.futures
import contextlib
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import cache
from queue import SimpleQueue
from typing import Any, Generic, Protocol, TypeVar

_T = TypeVar("_T")


async def finish(work: Awaitable[_T]) -> _T:
    """Return the result of `work`, and let it finish even if the caller is cancelled.

    A cancellation is raised afterwards, unless `work` itself raised.
    """
    task = asyncio.ensure_future(work)
    cancelled = await wait_through(task)
    result = task.result()
    if cancelled is not None:
        raise cancelled
    return result


async def wait_done(work: Awaitable[object]) -> None:
    """Wait until `work` is done; its result or error is not raised here.

    If the caller is cancelled, the cancellation is raised only when `work` is done.
    """
    cancelled = await wait_through(work)
    if cancelled is not None:
        raise cancelled


async def wait_through(
    work: Awaitable[object], *, on_cancel: Callable[[], object] | None = None
) -> asyncio.CancelledError | None:
    """Wait until `work` is done, even if the caller is cancelled meanwhile.

    Returns that cancellation, for the caller to raise when it has cleaned up. `on_cancel` is
    called once, at the first of them.
    """
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            if cancelled is None and on_cancel is not None:
                on_cancel()
            cancelled = error
    return cancelled


async def cancel_and_wait(task: "asyncio.Future[Any]") -> None:
    """Cancel the task and wait until it is done, however it ends."""
    task.cancel()
    await asyncio.wait([task])
    _mark_retrieved(task)


def _mark_retrieved(task: "asyncio.Future[Any]") -> None:
    """Keep asyncio from logging that nobody retrieved the exception."""
    if not task.cancelled():
        task.exception()


class BlockingCalls:
    """A thread that makes calls which can block forever, one at a time, without delaying exit.

    Not `asyncio.to_thread`: the interpreter waits for those threads when it exits. Not O_NONBLOCK:
    our standard streams are shared with the process that started us.
    """

    def __init__(self) -> None:
        self._calls: SimpleQueue[tuple[asyncio.Future[Any], Callable[..., Any], Any]]
        self._calls = SimpleQueue()
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._serve, daemon=True).start()

    async def call(self, function: Callable[..., _T], *args: object) -> _T:
        """Return or raise what `function` does. Cancelling stops the wait, not the call."""
        future: asyncio.Future[_T] = self._loop.create_future()
        self._calls.put((future, function, args))
        return await future

    def _serve(self) -> None:
        while True:
            future, function, args = self._calls.get()
            result, failure = None, None
            try:
                result = function(*args)
            except BaseException as error:  # Raised again where the call is awaited.
                failure = error
            with contextlib.suppress(RuntimeError):  # The loop is closed: the process is exiting.
                self._loop.call_soon_threadsafe(_answer, future, result, failure)


def _answer(future: "asyncio.Future[Any]", result: object, error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


_EXIT_S = 20.0


class _Threads(concurrent.futures.ThreadPoolExecutor):
    """The threads of the background loop. While Python exits, calls are made where they are asked
    for: threads can no longer be started then, but exit handlers can still use the loop."""

    def submit(
        self, function: Callable[..., _T], /, *args: Any, **named: Any
    ) -> "concurrent.futures.Future[_T]":
        try:
            return super().submit(function, *args, **named)
        except RuntimeError:
            future: concurrent.futures.Future[_T] = concurrent.futures.Future()
            try:
                future.set_result(function(*args, **named))
            except BaseException as error:
                future.set_exception(error)
            return future


class ClosedAtExit(Protocol):
    """Something to close at exit."""

    async def close(self) -> None:
        """Close it; it may be opened again."""

    async def end(self) -> None:
        """Close it for good."""


class Background:
    """An event loop in a thread: `run` for blocking callers, `arun` for callers in another loop."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_Threads(thread_name_prefix="kakoi"))
        self._thread = threading.Thread(target=self._serve, name="kakoi", daemon=True)
        self._thread.start()
        self._held: weakref.WeakSet[ClosedAtExit] = weakref.WeakSet()
        self._unwatched: set[_UnderWay[Any]] = set()
        self._is_over = False
        atexit.register(self._close)

    def run(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` in the loop and wait for it. If the wait is interrupted, `work` ends first."""
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("a blocking call from the background loop would wait for itself")
        if sys.is_finalizing():  # Such as in `__del__` of a global: the thread has stopped.
            work.close()
            raise RuntimeError("Python has shut down; nothing can be run")
        under_way = _UnderWay(work, self._loop)
        try:
            return under_way.done.result()
        except BaseException:
            if not under_way.done.done():  # Ctrl-C here, not an error in `work`.
                under_way.cancel()
                concurrent.futures.wait([under_way.done])
            raise

    async def arun(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run `work` in the loop and await it in the caller's. Cancelling ends `work` first."""
        under_way = _UnderWay(work, self._loop)
        waiter = asyncio.wrap_future(under_way.done)
        cancelled = await wait_through(waiter, on_cancel=under_way.cancel)
        if cancelled is not None:
            _mark_retrieved(waiter)
            raise cancelled
        return waiter.result()

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """Run `work` in the loop without waiting for it."""
        under_way = _UnderWay(work, self._loop)
        self._unwatched.add(under_way)  # A reference, or it could be garbage collected.
        under_way.done.add_done_callback(lambda _done: self._unwatched.discard(under_way))

    def hold(self, slot: "ClosedAtExit") -> None:
        """Close `slot` at exit, if it still exists."""
        if self._is_over:
            raise RuntimeError("Python is shutting down; nothing can be opened")
        self._held.add(slot)

    def release(self) -> None:
        """Close everything held open and wait for that. A later use opens it again."""
        closing = [_UnderWay(slot.close(), self._loop).done for slot in list(self._held)]
        closing += [under_way.done for under_way in list(self._unwatched)]
        concurrent.futures.wait(closing, timeout=_EXIT_S)

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _close(self) -> None:
        """At exit, close everything that was opened and refuse to open more.

        The loop keeps running: an exit handler that runs after this one may still need it.
        """
        if self._process != os.getpid():  # A forked child: loop and resources are the parent's.
            return
        self._is_over = True
        closing = [_UnderWay(slot.end(), self._loop).done for slot in list(self._held)]
        concurrent.futures.wait(closing, timeout=_EXIT_S)


# Threads that ask for the loop at the same time get the same one. Reentrant: a finalizer that runs
# while the lock is held may need the loop to close something.
_choosing = threading.RLock()


def background() -> Background:
    """Return the loop of this process. A forked child gets its own: it has no other threads."""
    with _choosing:
        _follow_forks()
        return _of_this_process()


@cache
def _of_this_process() -> Background:
    return Background()


@cache
def _follow_forks() -> None:
    # Held during the fork: a thread that holds it does not exist in the child to release it.
    os.register_at_fork(
        before=_choosing.acquire, after_in_parent=_choosing.release, after_in_child=_in_child
    )


def _in_child() -> None:
    _of_this_process.cache_clear()
    _choosing.release()


class _UnderWay(Generic[_T]):
    """Work in the loop of another thread. `done` is set when the work has ended, never before."""

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
        self._task.add_done_callback(self._report_if_never_started)

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

    def _report_if_never_started(self, _task: "asyncio.Task[None]") -> None:
        """A task that is cancelled before its first step never enters its coroutine."""
        if not self.done.done():
            self._work.close()
            self.done.set_exception(asyncio.CancelledError())


class LazyResource(Generic[_T]):
    """A resource that is opened in the background loop on first use, and kept open.

    `opener` must not refer to this object, or it would never be garbage collected.
    """

    def __init__(self, opener: Callable[[], AbstractAsyncContextManager[_T]]) -> None:
        self._opener = opener
        self._slot: _Slot[_T] | None = None

    async def get(self) -> _T:
        """Return the resource, opening it if needed. Await this in the background loop."""
        # After a fork, the slot belongs to the parent and its loop.
        if self._slot is None or self._slot.process != os.getpid():
            self._slot = slot = _Slot(self._opener)
            background().hold(slot)
            weakref.finalize(self, _close_later, slot).atexit = False
        return await self._slot.get()

    async def close(self) -> None:
        """Close it; the next use opens it again. Await this in the background loop."""
        slot, self._slot = self._slot, None
        if slot is not None and slot.process == os.getpid():
            await slot.close()


class _Slot(Generic[_T]):
    """What a `LazyResource` has opened; it can be closed when that object no longer exists."""

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
                raise RuntimeError("Python is shutting down; nothing can be opened")
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
        """Close it for good."""
        self._is_over = True
        await self.close()


def _close_later(slot: _Slot[Any]) -> None:
    if slot.process == os.getpid():
        background().start(slot.close())
