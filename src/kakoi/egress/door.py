"""Accepting connections at a socket that somebody else holds, too: the sandbox.

Whoever shares a listening socket can make it block, and take a connection that was announced to
us. So nothing is called on it but `accept`, in a thread of its own; what that gives is ours alone.
"""

import asyncio
import contextlib
import os
import select
import socket
import threading
from collections.abc import Callable

from kakoi.errors import SandboxError
from kakoi.waiting import finish

_JOIN_S = 2.0
_PAUSE_MS = 50


def check_listener(listener: socket.socket) -> None:
    """SandboxError if it is no socket that streams come in at."""
    try:
        is_listening = listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        family = listener.getsockopt(socket.SOL_SOCKET, socket.SO_DOMAIN)
        kind = listener.getsockopt(socket.SOL_SOCKET, socket.SO_TYPE)
    except OSError:
        is_listening = family = kind = 0
    families = (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX)
    if not is_listening or kind != socket.SOCK_STREAM or family not in families:
        raise SandboxError("what the sandbox has handed over is no socket to listen at")


class Door:
    """Hands every connection at `listener` to `take`, on the loop; at most `most` at once.

    The others wait in the kernel. `leave` is to be called when one has ended. Closes `listener`.
    """

    def __init__(
        self, listener: socket.socket, take: Callable[[socket.socket], None], *, most: int
    ) -> None:
        check_listener(listener)
        # Others may accept there, too: whoever attaches. A connection that they take first must
        # not leave us waiting.
        listener.setblocking(False)
        self._listener = listener
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._room = threading.Semaphore(most)
        self._waking, self._wake = os.pipe()
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="kakoi-door", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """A connection has ended: there is room for another."""
        self._room.release()

    async def close(self) -> None:
        """Take no more."""
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
        if self._thread.is_alive():  # Somebody made it block. It ends when there is no door at all.
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._thread.join()

    def _work(self) -> None:
        while True:
            self._room.acquire()  # Released by `leave`, from another thread.
            connection = self._accept()
            if connection is None:
                return
            try:
                self._loop.call_soon_threadsafe(self._take, connection)
            except RuntimeError:  # The loop is over.
                connection.close()
                return

    def _accept(self) -> socket.socket | None:
        """The next connection; None at the end."""
        # Polled: `select` knows no descriptor beyond 1023.
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
                # No descriptors at this moment, or the sandbox has shut the door itself.
                end.poll(_PAUSE_MS)
