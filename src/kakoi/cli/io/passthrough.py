"""Connects a running command to the standard streams and the terminal of this process."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from typing import Final

from kakoi._support.asyncio import BlockingCalls
from kakoi._support.files import read_some
from kakoi.channel.api import RunningCommand
from kakoi.cli.io.terminal import Screen, raw_terminal, terminal_size
from kakoi.errors import KakoiError
from kakoi.results import ExecutionResult

_CHUNK: Final = 64 * 1024
_FDS: Final = {"stdout": 1, "stderr": 2}


class TerminalInput:
    """The standard input of this process.

    A read that was cancelled loses nothing: its bytes go to the next one.
    """

    def __init__(self) -> None:
        self._aside = BlockingCalls()
        self._reading: asyncio.Task[bytes] | None = None

    async def read(self) -> bytes:
        """The next bytes; empty at the end, and if stdin cannot be read (a directory)."""
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
    running: RunningCommand, *, stdin: TerminalInput | None, terminal: bool, shown: bool = True
) -> ExecutionResult:
    """Connect the standard streams to a running command until it ends.

    `shown`: print its output. `terminal`: the command runs on a terminal, so every key goes to it
    if we have a terminal as well, and its escape sequences reach ours unchanged.
    OutputClosed: the reader of the output is gone.
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


async def _feed(running: RunningCommand, stdin: TerminalInput) -> None:
    with contextlib.suppress(KakoiError):  # A lost sandbox is reported as the result.
        while data := await stdin.read():
            await running.write(data)
        await running.close_stdin()


async def _show(running: RunningCommand, *, shown: bool, raw: bool) -> None:
    aside = BlockingCalls()
    screens = {stream: Screen(fd, raw=raw) for stream, fd in _FDS.items()}
    async with contextlib.aclosing(running.output()) as output:  # type: ignore[type-var]
        async for stream, data in output:
            if shown:
                await aside.call(screens[stream].write, data)
    for screen in screens.values():
        await aside.call(screen.end)


@contextlib.contextmanager
def _resizing(running: RunningCommand) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    async def send_size() -> None:
        # The command may have ended meanwhile.
        with contextlib.suppress(OSError, KakoiError):
            await running.resize(terminal_size())

    def resize() -> None:
        task = asyncio.ensure_future(send_size())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop.add_signal_handler(signal.SIGWINCH, resize)
    resize()  # The size may have changed since the command was built.
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGWINCH)
        for task in tasks:
            task.cancel()
