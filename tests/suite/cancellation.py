"""Fails a test that ends with a cancellation, or that leaves one behind in its task.

All tests of a worker that share an asynchronous fixture run in one task. If a cancellation ended
it, every later test would fail; and with a cancellation that nobody took back, `asyncio.timeout`
raises CancelledError instead of TimeoutError before Python 3.11.3.
"""

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    if inspect.iscoroutinefunction(pyfuncitem.obj):
        pyfuncitem.obj = _guarded(pyfuncitem.obj)
    return (yield)


def _guarded(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    @functools.wraps(test)
    async def guarded(**fixtures: object) -> None:
        assert not _take_back(), "a fixture left a cancellation in the task of the tests"
        try:
            await test(**fixtures)
        except asyncio.CancelledError as error:
            _take_back()
            raise AssertionError("the test ended with a cancellation") from error
        finally:
            left = _take_back()
        assert not left, f"the test left {left} cancellation(s) in its task"

    return guarded


def _take_back() -> int:
    """Take back all cancellations of this task, and return their number."""
    task = asyncio.current_task()
    assert task is not None
    number = task.cancelling()
    while task.cancelling():
        task.uncancel()
    return number
