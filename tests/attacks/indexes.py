"""A package index on loopback, in the real formats of pip and npm. It can be hostile."""

import base64
import contextlib
import hashlib
import http.server
import io
import json
import threading
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tests.tasks.registries import a_tarball

Handler = http.server.BaseHTTPRequestHandler
Answer = bytes | Callable[[Handler], None]


@dataclass
class Index:
    """The answers by path, the requested paths, and the credentials received."""

    host: str
    answers: dict[str, Answer] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    given: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    @property
    def pip_settings(self) -> str:
        return f"[global]\nindex-url = {self.url}/simple\nretries = 0\ntimeout = 20\n"

    def add_files(self, project: str, files: Mapping[str, bytes]) -> None:
        """Add a project with these files to the Python index."""
        page = "".join(f'<a href="/files/{name}">{name}</a>' for name in files)
        self.answers[f"/simple/{project}"] = page.encode()
        self.answers |= {f"/files/{name}": data for name, data in files.items()}

    def add_node(self, name: str, files: Mapping[str, str] | None = None, **about: object) -> None:
        """Add a package to the npm registry. `about` goes into its package.json and its page."""
        manifest = {"name": name, "version": "1.0.0", **about}
        inside = {"package.json": json.dumps(manifest), "index.js": "", **(files or {})}
        data = a_tarball({f"package/{path}": text for path, text in inside.items()})
        digest = base64.b64encode(hashlib.sha512(data).digest()).decode()
        tarball = f"/tarballs/{name}-1.0.0.tgz"
        dist = {"tarball": f"{self.url}{tarball}", "integrity": f"sha512-{digest}"}
        scripts = {"hasInstallScript": True} if "scripts" in about else {}
        versions = {"1.0.0": {**manifest, **scripts, "dist": dist}}
        page = {"name": name, "dist-tags": {"latest": "1.0.0"}, "versions": versions}
        self.answers |= {f"/{name}": json.dumps(page).encode(), tarball: data}


def a_wheel(
    name: str,
    *,
    requires: Sequence[str] = (),
    said: str | None = None,
    files: Mapping[str, str] | None = None,
) -> dict[str, bytes]:
    """Return the wheel of version 1.0 by file name. `said`: a different name for its metadata."""
    module, info = name.replace("-", "_"), f"{name.replace('-', '_')}-1.0.dist-info"
    needs = "".join(f"Requires-Dist: {each}\n" for each in requires)
    about = f"Metadata-Version: 2.1\nName: {said or name}\nVersion: 1.0\n{needs}"
    form = "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    texts = {
        f"{module}.py": "word = 'genuine'\n",
        **(files or {}),
        f"{info}/METADATA": about,
        f"{info}/WHEEL": form,
        f"{info}/entry_points.txt": f"[console_scripts]\n{name} = {module}:word.title\n",
    }
    record = "".join(f"{path},,\n" for path in (*texts, f"{info}/RECORD"))
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in {**texts, f"{info}/RECORD": record}.items():
            archive.writestr(path, text)
    return {f"{module}-1.0-py3-none-any.whl": data.getvalue()}


def a_source(name: str, marker: str) -> dict[str, bytes]:
    """Return a source distribution that creates `marker` if any of its code runs."""
    folder, run = f"{name}-1.0", f"open({marker!r}, 'w')\n"
    files = {
        f"{folder}/PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{folder}/setup.py": run,
    }
    return {f"{name}-1.0.tar.gz": a_tarball(files)}


@contextlib.contextmanager
def an_index(address: str = "127.0.0.1") -> Iterator[Index]:
    class Serving(Handler):
        def do_GET(self) -> None:  # noqa: N802
            path = self.path.partition("?")[0].rstrip("/").replace("%2f", "/")
            index.asked.append(path)
            if credential := self.headers.get("Authorization"):
                index.given.append(credential)
            answer = index.answers.get(path)
            with contextlib.suppress(OSError):  # The client may have disconnected.
                if callable(answer):
                    answer(self)
                else:
                    answer_with(self, answer or b"", 404 if answer is None else 200)

        def log_message(self, format: str, *words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer((address, 0), Serving)
    server.daemon_threads = True
    index = Index(f"{address}:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield index
    finally:
        server.shutdown()
        server.server_close()
        thread.join(60)


def answer_with(handler: Handler, data: bytes, status: int = 200, **headers: str) -> None:
    is_page = data.startswith((b"<", b"{"))
    page = "application/json" if data.startswith(b"{") else "text/html"
    handler.send_response(status)
    handler.send_header("Content-Type", page if is_page else "application/octet-stream")
    handler.send_header("Content-Length", str(len(data)))
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(data)
