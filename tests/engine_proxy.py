"""A socket in front of the Docker engine, where chosen requests fail or are never answered."""

import contextlib
import re
import socket
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.engine import DEFAULT

_REQUEST = re.compile(rb"([A-Z]+) (?:/v\d+\.\d+)?(/[^\s?]*)\S* HTTP/1")
_BUSY = b'{"message":"device or resource busy"}'
_FAILURE = (
    b"HTTP/1.1 409 Conflict\r\nContent-Type: application/json\r\nConnection: close\r\n"
    b"Content-Length: %d\r\n\r\n%s" % (len(_BUSY), _BUSY)
)


@dataclass
class EngineProxy:
    """`held`, `failing`: expressions for requests such as `DELETE /containers/NAME`."""

    path: Path
    held: str = "(?!)"
    failing: str = "(?!)"
    requests: list[str] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def address(self) -> str:
        return f"unix://{self.path}"

    def matching(self, expression: str) -> int:
        """Return the number of requests so far that match."""
        return sum(bool(re.match(expression, each)) for each in self.requests)

    @contextlib.contextmanager
    def listening(self) -> Iterator["EngineProxy"]:
        proxy = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                with contextlib.suppress(OSError):
                    proxy.serve(self.request)

        class Server(socketserver.ThreadingUnixStreamServer):
            daemon_threads = True

        with Server(str(self.path), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield self
            finally:
                self.ended.set()
                server.shutdown()

    def serve(self, client: socket.socket) -> None:
        with socket.socket(socket.AF_UNIX) as engine:
            engine.connect(DEFAULT.removeprefix("unix://"))
            back = threading.Thread(target=_copy, args=(engine, client), daemon=True)
            back.start()
            while data := client.recv(65536):
                if found := _REQUEST.match(data):
                    words = b" ".join(found.groups()).decode()
                    self.requests.append(words)
                    if re.match(self.held, words):
                        self.ended.wait()
                        return
                    if re.match(self.failing, words):
                        client.sendall(_FAILURE)
                        return
                engine.sendall(data)
            engine.shutdown(socket.SHUT_WR)
            back.join()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
