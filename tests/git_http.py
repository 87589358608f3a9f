"""A git server over HTTP or HTTPS on loopback that wants a credential, in this process."""

import base64
import contextlib
import gzip
import http.server
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

USER, SECRET = "ann", "a-made-up-secret"
AUTHORIZATION = "Basic " + base64.b64encode(f"{USER}:{SECRET}".encode()).decode()
WAIT_S = 60.0


@dataclass
class GitServer:
    """`root`: the folder of its bare repositories. `asked`: each request, with its credential."""

    root: Path
    port: int = 0
    scheme: str = "http"
    asked: list[tuple[str, str]] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def make(self, name: str) -> str:
        """Make a repository that can be pushed to; return its address."""
        path = self.root / name
        for words in (["init", "-q", "--bare", str(path)], ["-C", str(path), "config", *RECEIVE]):
            subprocess.run(["git", *words], check=True, timeout=WAIT_S)
        return f"{self.scheme}://{self.host}/{name}"

    def log(self, name: str, ref: str = "main") -> str:
        argv = ["git", "-C", str(self.root / name), "log", "--format=%an %s", ref]
        return subprocess.run(argv, capture_output=True, text=True, timeout=WAIT_S).stdout


RECEIVE = ("http.receivepack", "true")


def _backend(
    root: Path, method: str, target: str, kind: str, body: bytes
) -> tuple[int, dict[str, str], bytes]:
    """Let git answer; return status, headers and content."""
    path, _, query = target.partition("?")
    own = {
        "GIT_PROJECT_ROOT": str(root),
        "GIT_HTTP_EXPORT_ALL": "1",
        "PATH_INFO": path,
        "QUERY_STRING": query,
        "REQUEST_METHOD": method,
        "CONTENT_TYPE": kind,
        "CONTENT_LENGTH": str(len(body)),
        "REMOTE_USER": USER,
    }
    argv, environ = ["git", "http-backend"], {**os.environ, **own}
    done = subprocess.run(argv, input=body, env=environ, capture_output=True, timeout=WAIT_S)
    head, _, content = done.stdout.partition(b"\r\n\r\n")
    headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
    return int(headers.pop("Status", "200").split()[0]), headers, content


def _handler(server: GitServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            given = self.headers.get("Authorization", "")
            server.asked.append((f"{self.command} {self.path}", given))
            body = self.body()
            if given != AUTHORIZATION:
                self.answer(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"")
                return
            kind = self.headers.get("Content-Type", "")
            self.answer(*_backend(server.root, self.command, self.path, kind, body))

        do_POST = do_GET  # noqa: N815 - http.server's name

        def body(self) -> bytes:
            found = b""
            if self.headers.get("Transfer-Encoding") == "chunked":
                while size := int(self.rfile.readline(), 16):
                    found += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
            else:
                found = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            return gzip.decompress(found) if self.headers.get("Content-Encoding") else found

        def answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(content))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    return Handler


@contextlib.contextmanager
def git_server(root: Path, certificate: Path | None = None) -> Iterator[GitServer]:
    """Serve `root`; with a certificate and its key in one file, by TLS."""
    root.mkdir(parents=True, exist_ok=True)
    found = GitServer(root, scheme="https" if certificate else "http")
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(found))
    httpd.daemon_threads = True
    found.port = httpd.server_address[1]
    if certificate is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        httpd.socket = context.wrap_socket(httpd.socket, server_side=True)
    thread = threading.Thread(target=httpd.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield found
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join(WAIT_S)


def make_certificate(folder: Path) -> Path:
    """Make a certificate for 127.0.0.1 and its key, in one file."""
    folder.mkdir(exist_ok=True)
    file = folder / "server.pem"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    files = ["-nodes", "-days", "2", "-keyout", str(file), "-out", str(folder / "ca.pem")]
    subprocess.run([*argv, *files, *subject], check=True, capture_output=True, timeout=WAIT_S)
    with file.open("a") as both:
        both.write((folder / "ca.pem").read_text())
    return file
