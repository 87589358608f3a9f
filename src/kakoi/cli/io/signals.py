"""Signals that end kakoi: they cancel the work, and everything is closed in order."""

import asyncio
import contextlib
import signal
from collections.abc import Iterator
from typing import Any, Final

_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """While `caught` is open, the first Ctrl-C (or TERM, HUP) cancels the work.

    Later ones change nothing: the end is already under way, and hurrying it would leave something
    behind.
    """

    def __init__(self) -> None:
        self.received: int | None = None
        self._work: asyncio.Task[Any] | None = None

    def cancel_on_signal(self, work: "asyncio.Task[Any]") -> None:
        """Cancel this task when a signal comes, or at once if one has come."""
        self._work = work
        if self.received is not None:
            work.cancel()

    @contextlib.contextmanager
    def caught(self) -> Iterator[None]:
        """Handle the signals inside this block; after it they are ignored, because kakoi exits."""
        loop = asyncio.get_running_loop()

        def handle(number: int, _frame: object) -> None:
            loop.call_soon_threadsafe(self._on_signal, number)

        # A signal that was ignored when kakoi started stays ignored: `nohup`, or `&` in a script.
        handled = [each for each in _ENDING if signal.getsignal(each) is not signal.SIG_IGN]
        # Not loop.add_signal_handler: when it lets go of SIGINT, there is a moment for a traceback.
        for number in handled:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number in handled:
                signal.signal(number, signal.SIG_IGN)  # Everything has ended, and kakoi exits.

    def _on_signal(self, number: int) -> None:
        if self.received is None:
            self.received = number
            if self._work is not None:
                self._work.cancel()
