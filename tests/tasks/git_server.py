"""Git over HTTP, to run in a separate container: `python3 -c <this> <token>`.

/open/NAME.git      for everyone
/private/NAME.git   needs the token, with any user name
/away/HOST/...      a redirect to http://HOST/...
/hang/...           never answers
/stall/NAME.git     sends half of each pack, and then nothing
/last/NAME.git      sends half of a pack, and then the server exits
/broken/...         answers with status 503
/seen               every Authorization header received, one per line
"""

import base64
import gzip
import http.server
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence

ROOT = "/srv/git"
TOKEN = sys.argv[1]
SEEN: list[str] = []


class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        given = self.headers.get("Authorization", "")
        if path == "/seen":
            self.reply(200, "\n".join(SEEN).encode())
            return
        SEEN.append(f"{path} {given}".strip())
        kind, _, rest = path[1:].partition("/")
        if kind == "hang":
            threading.Event().wait()
        if kind == "away":
            host, _, rest = rest.partition("/")
            self.reply(302, b"", Location=f"http://{host}/{rest}?{query}")
        elif kind == "private" and not self.knows(given):
            self.reply(401, b"", **{"WWW-Authenticate": 'Basic realm="git"'})
        elif kind in ("open", "private", "cut", "stall", "last"):
            make(rest.partition(".git")[0])
            self.git(f"/{rest}", query)
        else:
            self.reply(503 if kind == "broken" else 404, b"")

    do_POST = do_GET  # noqa: N815 - the names are http.server's

    def knows(self, given: str) -> bool:
        scheme, _, word = given.partition(" ")
        return scheme == "Basic" and base64.b64decode(word).decode().endswith(f":{TOKEN}")

    def git(self, path: str, query: str) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        env = {
            **os.environ,
            "GIT_PROJECT_ROOT": ROOT,
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n") if line)
        self.reply(int(headers.pop("Status", "200").split()[0]), content, **headers)

    def reply(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        is_cut = self.path.startswith("/cut/") and self.command == "POST"
        is_stalled = self.path.startswith("/stall/") and len(content) > 100_000
        is_last = self.path.startswith("/last/") and len(content) > 100_000
        is_half = is_cut or is_stalled or is_last
        self.wfile.write(content[: len(content) // 2] if is_half else content)
        if is_stalled:
            threading.Event().wait()
        if is_last:  # Later connections are refused.
            self.server.shutdown()
            self.server.server_close()


def commit(
    branch: str, number: int, parent: str = "", files: Sequence[tuple[str, str]] = ()
) -> str:
    """Return a commit for `git fast-import` that adds its own file."""
    name = f"{branch}-{number}"
    text = f"commit refs/heads/{branch}\ncommitter A <a@b> {number} +0000\ndata 1\nx\n"
    text += f"from refs/heads/{parent}\n" if parent else ""
    for path, content in ((f"{name}.txt", name), *files):
        text += f"M 644 inline {path}\ndata {len(content)}\n{content}\n"
    return text


def repository(name: str, stream: str, head: str = "main") -> None:
    path = f"{ROOT}/{name}.git"
    subprocess.run(["git", "init", "-q", "--bare", "-b", head, path], check=True)
    subprocess.run(["git", "-C", path, "fast-import", "--quiet"], input=stream.encode(), check=True)


def branches(shared: int, apart: int) -> str:
    text = "".join(commit("main", number) for number in range(1, shared + 1))
    text += "".join(
        commit("feature", number, "main" if number == 1 else "") for number in range(1, apart + 1)
    )
    return text + "".join(commit("main", shared + number) for number in range(1, apart + 1))


DEPENDENCIES = [("requirements.txt", "# none"), ("go.mod", "module x"), ("package.json", "{}")]
RECIPES: dict[str, Callable[[], str]] = {
    "project": lambda: branches(5, 2),
    "trunk": lambda: commit("trunk", 1) + commit("trunk", 2) + commit("other", 1),
    "sixty": lambda: branches(3, 60),
    "sixhundred": lambda: branches(3, 600),
    "needy": lambda: commit("main", 1, files=DEPENDENCIES),
    "strangers": lambda: commit("main", 1) + commit("feature", 1),
    "heavy": lambda: commit("main", 1, files=[("big", os.urandom(1 << 21).hex())]),
}
TURN = threading.Lock()


def make(name: str) -> None:
    """Create a repository on its first request."""
    with TURN:
        if name in RECIPES and not os.path.exists(f"{ROOT}/{name}.git"):
            repository(name, RECIPES[name](), "trunk" if name == "trunk" else "main")


print("up", flush=True)
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
threading.Event().wait()
