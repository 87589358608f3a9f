"""Stops a test that hangs. The failure shows the stacks of every thread and every task.

The limits are many times what any test needs, even on a busy machine. Setup has the longest limit,
because the first test that needs an image waits for its build.
"""

import asyncio
import faulthandler
import gc
import io
import signal
import sys
import threading
import traceback
from collections.abc import Generator
from types import FrameType

import pytest

LIMITS_S = {"setup": 1800, "call": 300, "teardown": 300}
# For a thread that no signal reaches: the process exits, and xdist reports the test and goes on.
_LAST_RESORT_S = 60


def dump() -> str:
    """Return the stacks of all threads, and of all tasks of all event loops."""
    out = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        out.write(f"--- thread {names.get(ident, ident)}\n")
        traceback.print_stack(frame, file=out)
    for task in _tasks():
        out.write(f"--- task {task.get_name()}\n")
        task.print_stack(file=out)
    return out.getvalue()


def _tasks() -> list["asyncio.Task[object]"]:
    loops = [each for each in gc.get_objects() if isinstance(each, asyncio.AbstractEventLoop)]
    return [task for loop in loops if not loop.is_closed() for task in asyncio.all_tasks(loop)]


class _Hung(BaseException):
    """Not an Exception, so that no code under test can catch it and keep waiting."""


def _limited(item: pytest.Item, phase: str) -> Generator[None, object, object]:
    limit_s = item.config.getoption("hang_limit") or LIMITS_S[phase]

    def give_up(number: int, frame: FrameType | None) -> None:
        raise _Hung(f"{item.nodeid}: {phase} took more than {limit_s} s\n{dump()}")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        return (yield)
    except _Hung as hung:
        raise TimeoutError(str(hung)) from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--hang-limit", type=float, metavar="SECONDS", help="for each phase of each test"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Set one last resort for all phases: each needs a thread, and there are ten thousand tests."""
    limit_s = item.config.getoption("hang_limit") or max(LIMITS_S.values())
    faulthandler.dump_traceback_later(limit_s * 3 + _LAST_RESORT_S, exit=True, file=2)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _limited(item, "setup"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _limited(item, "call"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from _limited(item, "teardown"))
