"""The runner's event loop: ready descriptors and timers.

Not asyncio: importing it would take longer than starting the whole runner. Standard library
only, Python >= 3.8.
"""

from __future__ import annotations

import heapq
import select
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

READ = select.EPOLLIN
WRITE = select.EPOLLOUT
_LONGEST_WAIT_S = 3600.0  # The kernel counts milliseconds, in 31 bits.
_MANY_TIMERS = 256


class Timer:
    """A call that is due at a given time, unless it is cancelled first."""

    __slots__ = ("callback", "when")

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback: Callable[[], None] | None = callback

    def __lt__(self, other: Timer) -> bool:
        return self.when < other.when

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Calls the handlers of ready descriptors and due timers, once per `turn`."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._timers: list[Timer] = []
        self._too_many = _MANY_TIMERS

    def watch(self, fd: int, events: int, handler: Callable[[int], None]) -> None:
        """Call `handler` with the events of `fd` when it is ready; 0 events: only when it ends."""
        if fd in self._handlers:
            self._epoll.modify(fd, events)
        else:
            self._epoll.register(fd, events)
        self._handlers[fd] = handler

    def forget(self, fd: int) -> None:
        """Stop watching; must be called before the descriptor is closed."""
        if self._handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def after(self, seconds: float, callback: Callable[[], None]) -> Timer:
        timer = Timer(time.monotonic() + seconds, callback)
        if len(self._timers) > self._too_many:  # Most were cancelled long before their time.
            self._timers = [each for each in self._timers if each.callback is not None]
            heapq.heapify(self._timers)
            self._too_many = max(_MANY_TIMERS, 2 * len(self._timers))
        heapq.heappush(self._timers, timer)
        return timer

    def turn(self) -> None:
        """Wait until a descriptor is ready or a timer is due, and call the handlers."""
        while self._timers and self._timers[0].callback is None:
            heapq.heappop(self._timers)
        wait_s = -1.0
        if self._timers:
            wait_s = min(max(0.0, self._timers[0].when - time.monotonic()), _LONGEST_WAIT_S)
        for fd, events in self._epoll.poll(wait_s, 64):
            handler = self._handlers.get(fd)  # An earlier handler of this turn may have closed it.
            if handler is not None:
                handler(events)
        now = time.monotonic()
        while self._timers and self._timers[0].when <= now:
            callback = heapq.heappop(self._timers).callback
            if callback is not None:
                callback()
