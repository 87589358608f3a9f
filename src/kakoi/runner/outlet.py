"""The way out of a sandbox that has no network: a socket on its loopback, served from outside.

The runner opens it inside and hands it over; whoever is outside accepts what comes in, and goes on
from there. The runner keeps its copy: while nobody serves it, connections wait, and the next one
to ask is given the same socket. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import array
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from kakoi.runner.clients import Request

# Always the same: what was written down about it stays true.
PORT = 13128
_BACKLOG = 128
_PATIENCE_S = 5.0


class Outlet:
    """The socket, once somebody has asked for it."""

    def __init__(self) -> None:
        self._listener: socket.socket | None = None

    def hand_over(self, request: Request, order: dict[str, Any]) -> None:
        """Give it to who waits at `path`, with the `token` by which it knows us.

        OSError is an answer.
        """
        if self._listener is None or not _listens(self._listener):
            if self._listener is not None:
                self._listener.close()
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", PORT))
            listener.listen(_BACKLOG)
            self._listener = listener
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.settimeout(_PATIENCE_S)
            line.connect(order["path"])
            rights = array.array("i", [self._listener.fileno()])
            message = order["token"].encode()
            line.sendmsg([message], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        request.answer({})


def _listens(listener: socket.socket) -> bool:
    """Whoever it was handed to can have shut it down for all."""
    return bool(listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
