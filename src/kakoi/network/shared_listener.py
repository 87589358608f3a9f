"""Accepts connections on a listening socket that is shared with the sandbox.

The other side of a shared socket can make it block, and take a connection that was announced to us.
So only `accept` is called on it, in a separate thread; the connection it returns is ours alone.
"""

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable

from kakoi._support.asyncio import finish
from kakoi.errors import SandboxError

_JOIN_S = 2.0
_PAUSE_MS = 50


def check_listener(listener: socket.socket) -> None:
    """Raise SandboxError if it is not a listening stream socket."""
    try:
        is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        family = listener.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)
        kind = listener.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
    except OSError:
        is_listening = family = kind = 0
    families = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
    if not is_listening or kind != socket.SOCK_STREAM or family not in families:
        raise SandboxError("the sandbox did not hand over a listening socket")


class SharedListener:
    """Passes every connection on `listener` to `take`, on the event loop; at most `most` at once.

    Others wait in the kernel. Call `release` when a connection has ended. Closes `listener`.
    """

    def __init__(
        self, listener: socket.socket, take: Callable[[socket.socket], None], *, most: int
    ) -> None:
        check_listener(listener)
        # Other processes can accept on it as well. If they take a connection first, we must not
        # block.
        listener.setblocking(False)
        self._listener = listener
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._room = threading.Semaphore(most)
        self._waking, self._wake = os.pipe()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="kakoi-listener", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Report that a connection has ended, so that another can be accepted."""
        self._room.release()

    async def close(self) -> None:
        """Stop accepting connections."""
        if self._closing:
            return
        self._closing = True
        self._room.release()
        os.write(self._wake, b"x")
        try:
            await finish(asyncio.to_thread(self._join))
        finally:
            self._listener.close()
            for fd in (self._waking, self._wake):
                os.close(fd)

    def _join(self) -> None:
        self._thread.join(_JOIN_S)
        if self._thread.is_alive():  # It was made to block. Shutting the socket down ends it.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join()

    def _work(self) -> None:
        while True:
            self._room.acquire()  # Released by `release`, from another thread.
            connection = self._accept()
            if connection is None:
                return
            try:
                self._loop.call_soon_threadsafe(self._take, connection)
            except RuntimeError:  # The event loop is closed.
                connection.close()
                return

    def _accept(self) -> socket.socket | None:
        """Return the next connection; None once closed."""
        # `poll`, because `select` does not support descriptors above 1023.
        end = select.poll()
        end.register(self._waking, select.POLLIN)
        waiting = select.poll()
        waiting.register(self._listener, select.POLLIN)
        waiting.register(self._waking, select.POLLIN)
        while True:
            waiting.poll()
            if self._closing:
                return None
            try:
                return self._listener.accept()[0]
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                continue
            except OSError:
                # Out of descriptors right now, or the sandbox has shut the socket down itself.
                end.poll(_PAUSE_MS)
