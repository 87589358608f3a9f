"""Reading and writing a descriptor that others share: they may have made it non-blocking."""

import os
import select


def write_whole(fd: int, data: bytes | memoryview) -> None:
    """Write all of it, however long that takes."""
    view = memoryview(data)
    while view:
        try:
            view = view[os.write(fd, view) :]
        except BlockingIOError:
            _wait(fd, select.POLLOUT)


def read_some(fd: int, most: int) -> bytes:
    """What is there, after waiting until something is; nothing at its end."""
    while True:
        try:
            return os.read(fd, most)
        except BlockingIOError:
            _wait(fd, select.POLLIN)


def _wait(fd: int, event: int) -> None:
    # Polled: `select` knows no descriptor beyond 1023.
    waiting = select.poll()
    waiting.register(fd, event)
    waiting.poll()
