"""A git server on loopback that implements just enough of the protocol to be hostile."""

import contextlib
import struct
import threading
import zlib
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WAIT_S = 60.0
COMMIT = "0123456789abcdef0123456789abcdef01234567"
Wire = Callable[["Asked"], None]


class Asked(BaseHTTPRequestHandler):
    """A request, with the building blocks of hostile responses."""

    released: threading.Event

    def begin(self, kind: str = "", status: int = 200, **headers: str) -> None:
        """Begin a response of unknown length."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(status)
        self.send_header("Content-Type", f"application/x-git-upload-pack-{kind}")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def flood(self, data: bytes, most: int = 1 << 30) -> int:
        """Repeat the data until the client disconnects, at most `most` bytes. Returns the size."""
        sent = 0
        with contextlib.suppress(OSError):
            while sent < most:
                self.wfile.write(data)
                sent += len(data)
        return sent

    def drip(self) -> None:
        """Send a byte now and then: no single wait is long, but the total is."""
        with contextlib.suppress(OSError):
            while not self.released.wait(0.05):
                self.wfile.write(b"0")

    def log_message(self, *_: object) -> None: ...


class HostileGit:
    """Answers the request for the list of refs, and the request that follows it."""

    def __init__(self, refs: Wire | None = None, pack: Wire | None = None) -> None:
        self.seen: list[tuple[str, str]] = []
        self._released = threading.Event()
        server = self

        class Handler(Asked):
            released = self._released

            def do_GET(self) -> None:
                given = self.headers.get("Authorization", "")
                server.seen.append((f"{self.command} {self.path}", given))
                wire = pack if self.command == "POST" else refs or one_ref
                assert wire is not None
                wire(self)

            do_POST = do_GET  # noqa: N815 - http.server's name

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.url = f"http://{self.host}/team/project.git"

    @contextlib.contextmanager
    def serving(self) -> Iterator["HostileGit"]:
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            self._released.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join(WAIT_S)


def packet(text: str) -> bytes:
    data = text.encode()
    return b"%04x" % (len(data) + 4) + data


def one_ref(asked: Asked) -> None:
    asked.begin("advertisement")
    asked.wfile.write(packet("# service=git-upload-pack\n") + b"0000")
    asked.wfile.write(packet(f"{COMMIT} HEAD\0symref=HEAD:refs/heads/main shallow\n"))
    asked.wfile.write(packet(f"{COMMIT} refs/heads/main\n") + b"0000")


def endless_refs(asked: Asked) -> None:
    asked.begin("advertisement")
    asked.wfile.write(packet("# service=git-upload-pack\n") + b"0000")
    asked.wfile.write(packet(f"{COMMIT} HEAD\0shallow\n"))
    asked.flood(b"".join(packet(f"{COMMIT} refs/heads/{number:08}\n") for number in range(2000)))


def endless_pack(asked: Asked) -> None:
    """Send a pack of a million valid files."""
    asked.begin("result")
    blob = bytes(60_000)
    size = len(blob)
    head = bytearray([0x30 | 0x80 | size & 15])
    size >>= 4
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    asked.wfile.write(packet("NAK\n") + b"PACK" + struct.pack(">II", 2, 1_000_000))
    asked.flood(bytes(head) + zlib.compress(blob, 0))


def bomb(asked: Asked) -> None:
    """Send a pack of one file that is compressed a thousandfold."""
    asked.begin("result")
    size = 1 << 28
    head = bytearray([0x30 | 0x80 | size & 15])
    size >>= 4
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    asked.wfile.write(packet("NAK\n") + b"PACK" + struct.pack(">II", 2, 1) + bytes(head))
    packer = zlib.compressobj(9)
    with contextlib.suppress(OSError):
        for _ in range(1 << 8):
            asked.wfile.write(packer.compress(bytes(1 << 20)))
        asked.wfile.write(packer.flush() + bytes(20))


def dripping(asked: Asked) -> None:
    asked.begin("advertisement")
    asked.drip()


def redirect(target: str) -> Wire:
    def wire(asked: Asked) -> None:
        asked.begin("x", 307, **{"Location": target, "Content-Length": "0"})

    return wire


def says(text: str) -> Wire:
    """Return a response that refuses with the given text."""

    def wire(asked: Asked) -> None:
        asked.begin("advertisement")
        asked.wfile.write(packet("# service=git-upload-pack\n") + b"0000" + packet(f"ERR {text}"))

    return wire


def asks_for_password(asked: Asked) -> None:
    if asked.headers.get("Authorization"):
        one_ref(asked)
    else:
        asked.begin("x", 401, **{"WWW-Authenticate": 'Basic realm="x"', "Content-Length": "0"})
