"""A command on our own streams, and our signals end it."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Any, Final

from kakoi.cli.screen import Screen
from kakoi.cli.terminal import raw_terminal, terminal_size
from kakoi.descriptors import read_some
from kakoi.errors import KakoiError
from kakoi.results import ExecutionResult
from kakoi.runner.commands import Running
from kakoi.waiting import Aside

_CHUNK: Final = 64 * 1024
_FDS: Final = {"stdout": 1, "stderr": 2}
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


# --- Signals ---------------------------------------------------------------------------------


class Signals:
    """While open, the first Ctrl-C (or TERM, HUP) cancels the work, and later ones change nothing:
    the end is on its way by then, and hurrying it would leave something behind."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._work: asyncio.Task[Any] | None = None

    def end(self, work: "asyncio.Task[Any]") -> None:
        """Cancel this when a signal comes, or now, if one has come."""
        self._work = work
        if self.received is not None:
            work.cancel()

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()

        def hear(number: int, _frame: object) -> None:
            loop.call_soon_threadsafe(self._on_signal, number)

        # What was ignored when we were started stays so: `nohup`, or `&` in a script.
        ours = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]
        # Not the loop's own way: when it lets go of SIGINT, there is a moment for a traceback.
        for number in ours:
            signal.signal(number, hear)
        try:
            yield
        finally:
            for number in ours:
                signal.signal(number, signal.SIG_IGN)  # All has ended, and we exit.

    def _on_signal(self, number: int) -> None:
        if self.received is None:
            self.received = number
            if self._work is not None:
                self._work.cancel()


# --- Bytes -----------------------------------------------------------------------------------


class Input:
    """Our standard input. What was read and not taken is there for the next who asks."""

    def __init__(self) -> None:
        self._aside = Aside()
        self._reading: asyncio.Task[bytes] | None = None

    async def read(self) -> bytes:
        """The next bytes; none at its end, and if it cannot be read, as a directory can't."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._aside.call(_read))
        data = await asyncio.shield(self._reading)
        self._reading = None
        return data


def _read() -> bytes:
    try:
        return read_some(0, _CHUNK)
    except OSError:
        return b""


async def pass_through(
    running: Running, *, stdin: Input | None, terminal: bool, shown: bool = True
) -> ExecutionResult:
    """Connect our streams to a running command until it ends; `shown`: its output is ours.

    `terminal`: it runs on one, so every key of ours is the command's, if we have one, too, and
    what it tells its terminal to do, ours does.
    OutputClosed: nobody reads what it writes.
    """
    with contextlib.ExitStack() as stack:
        if stdin is not None:
            feeding = asyncio.ensure_future(_feed(running, stdin))
            stack.callback(feeding.cancel)
        if terminal:
            stack.enter_context(_resizing(running))
        if terminal and stdin is not None and os.isatty(0):
            stack.enter_context(raw_terminal(0))
        await _show(running, shown=shown, raw=terminal)
        return await running.result()


async def _feed(running: Running, stdin: Input) -> None:
    with contextlib.suppress(KakoiError):  # A lost sandbox is told as the result.
        while data := await stdin.read():
            await running.write(data)
        await running.close_stdin()


async def _show(running: Running, *, shown: bool, raw: bool) -> None:
    aside = Aside()
    screens = {stream: Screen(fd, raw=raw) for stream, fd in _FDS.items()}
    async with contextlib.aclosing(running.output()) as output:  # type: ignore[type-var]
        async for stream, data in output:
            if shown:
                await aside.call(screens[stream].write, data)
    for screen in screens.values():
        await aside.call(screen.end)


@contextlib.contextmanager
def _resizing(running: Running) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def tell() -> None:
        # It may have ended meanwhile.
        with contextlib.suppress(OSError, KakoiError):
            await running.resize(terminal_size())

    def resize() -> None:
        task = asyncio.ensure_future(tell())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGWINCH, resize)
    resize()  # It may have changed since the command was written down.
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for task in tasks:
            task.cancel()
