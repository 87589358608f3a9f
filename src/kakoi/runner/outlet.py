"""Network access for a sandbox without a network: loopback sockets that are served from outside.

The runner opens the sockets inside and passes them out: a proxy outside accepts the connections of
one, and a name server answers the queries on the others. The runner keeps copies: connections wait
while nobody serves them, and the next client that asks gets the same sockets. Standard library
only, Python >= 3.8.
"""

from __future__ import annotations

# Not `socket`: its enums would take a good part of our start-up time.
import _socket as socket
import os

from kakoi.runner import rights as passed
from kakoi.runner.contexts import closing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kakoi.runner.clients import Request

# Fixed, so that stored settings that name it stay valid.
PORT = 13128
NAME_PORT = 53
_HOST = "127.0.0.1"
_BACKLOG = 128
_PATIENCE_S = 5.0


class OutletSocket:
    """The sockets, opened on the first request."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._names: list[socket.socket] = []

    def hand_over(self, request: Request, order: dict[str, Any]) -> None:
        """Send the sockets to the listener at `path`, with the `token` that identifies us.

        First the proxy's; then those of the name server, UDP and TCP. If we are not allowed to bind
        its port, our network namespace follows instead, for a process that is.
        An OSError becomes the answer.
        """
        if self._listener is None or not _listens(self._listener):
            if self._listener is not None:
                self._listener.close()
            self._listener = _listener(PORT)
        namespace = -1
        try:
            self._open_names()
        except OSError:
            namespace = os.open("/proc/self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        fds = [self._listener.fileno(), *(each.fileno() for each in self._names)]
        try:
            _send(order, fds if namespace < 0 else [*fds, namespace])
        finally:
            if namespace >= 0:
                os.close(namespace)
        request.answer({})

    def _open_names(self) -> None:
        if self._names and _listens(self._names[1]):
            return
        while self._names:
            self._names.pop().close()
        # Without SO_REUSEADDR, which would let commands bind the same port and read the queries.
        queries = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            queries.bind((_HOST, NAME_PORT))
            self._names = [queries, _listener(NAME_PORT)]
        except BaseException:
            queries.close()
            raise


def _listener(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((_HOST, port))
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


def _send(order: dict[str, Any], fds: list[int]) -> None:
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    with closing(line):
        line.settimeout(_PATIENCE_S)
        line.connect(order["path"])
        message = order["token"].encode()
        rights = passed.pack(fds)
        line.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])


def _listens(listener: socket.socket) -> bool:
    """Does it still listen? A process that received it may have shut it down."""
    return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
