"""Registries of packages in the real formats of pip, npm and go, as one small server in a container.

Each has one package, whose only word is `genuine`. The server notes each package that is fetched.
"""

import base64
import hashlib
import io
import json
import tarfile
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

from tests.tasks.hosting import PYTHON, docker, wait_until

# What it serves is its only argument. A page may be asked for again and again; a package is kept by
# whoever has it. HOST is known to those who ask only.
SERVER = """
import base64, http.server, json, sys
files = json.loads(sys.argv[1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        kind, data = files.get(self.path.rstrip("/"), (None, ""))
        body = base64.b64decode(data).replace(b"@HOST@", self.headers["Host"].encode())
        print("fetched" if kind == "package" else "asked", self.path, flush=True)
        self.send_response(200 if kind else 404)
        types = {"package": "application/octet-stream", "html": "text/html"}
        self.send_header("Content-Type", types.get(kind, "application/json"))
        self.send_header("Cache-Control", "max-age=86400" if kind == "package" else "no-cache")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
print("up", flush=True)
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""
# A path, and what is there: its kind and its bytes.
Files = Mapping[str, tuple[str, bytes]]
WHEEL = "shared_thing-1.0-py3-none-any.whl"


def a_wheel() -> bytes:
    data = io.BytesIO()
    info = "shared_thing-1.0.dist-info"
    files = {
        "shared_thing.py": "word = 'genuine'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: shared-thing\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    lines = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=")
        lines.append(f"{name},sha256={digest.decode()},{len(text)}")
    files[f"{info}/RECORD"] = "\n".join([*lines, f"{info}/RECORD,,", ""])
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()


def pip_files() -> Files:
    page = f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode()
    return {"/simple/shared-thing": ("html", page), f"/files/{WHEEL}": ("package", a_wheel())}


def a_node_package() -> bytes:
    data = io.BytesIO()
    about = {
        "name": "shared-thing",
        "version": "1.0.0",
        "scripts": {"postinstall": "touch /workspace/tmp/script-was-run"},
    }
    files = {"package.json": json.dumps(about), "index.js": "module.exports = 'genuine'\n"}
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in files.items():
            entry = tarfile.TarInfo(f"package/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return data.getvalue()


NODE_PACKAGE = a_node_package()  # Once: its bytes have the time of compression in them.
NODE_INTEGRITY = "sha512-" + base64.b64encode(hashlib.sha512(NODE_PACKAGE).digest()).decode()
NODE_PATH = "/npm/shared-thing/-/shared-thing-1.0.0.tgz"


def npm_files() -> Files:
    version = {
        "name": "shared-thing",
        "version": "1.0.0",
        "hasInstallScript": True,
        "dist": {"tarball": f"http://@HOST@{NODE_PATH}", "integrity": NODE_INTEGRITY},
    }
    page = {
        "name": "shared-thing",
        "dist-tags": {"latest": "1.0.0"},
        "versions": {"1.0.0": version},
    }
    return {
        "/npm/shared-thing": ("json", json.dumps(page).encode()),
        NODE_PATH: ("package", NODE_PACKAGE),
    }


def go_files() -> Files:
    data, module = io.BytesIO(), "module example.test/shared\n\ngo 1.18\n"
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in (
            ("go.mod", module),
            ("shared.go", 'package shared\n\nconst Word = "genuine"\n'),
        ):
            archive.writestr(f"example.test/shared@v1.0.0/{name}", text)
    about = json.dumps({"Version": "v1.0.0", "Time": "2024-01-01T00:00:00Z"})
    at = "/go/example.test/shared/@v"
    return {
        f"{at}/list": ("text", b"v1.0.0\n"),
        f"{at}/v1.0.0.info": ("json", about.encode()),
        f"{at}/v1.0.0.mod": ("text", module.encode()),
        f"{at}/v1.0.0.zip": ("package", data.getvalue()),
    }


@dataclass(frozen=True)
class Registry:
    """The server, and what projects that use it look like."""

    name: str
    host: str

    @property
    def requirements(self) -> str:
        host = self.host.partition(":")[0]
        return f"--index-url http://{self.host}/simple\n--trusted-host {host}\nshared-thing==1.0\n"

    @property
    def python(self) -> dict[str, str]:
        return {"requirements.txt": self.requirements}

    @property
    def node(self) -> dict[str, str]:
        about = {"name": "p", "version": "1.0.0", "dependencies": {"shared-thing": "1.0.0"}}
        return {
            "package.json": json.dumps(about),
            ".npmrc": f"registry=http://{self.host}/npm/\naudit=false\nfund=false\n",
        }

    @property
    def locked_node(self) -> dict[str, str]:
        files = self.node
        lock = {
            "name": "p",
            "version": "1.0.0",
            "lockfileVersion": 3,
            "requires": True,
            "packages": {
                "": json.loads(files["package.json"]),
                "node_modules/shared-thing": {
                    "version": "1.0.0",
                    "resolved": f"http://{self.host}{NODE_PATH}",
                    "integrity": NODE_INTEGRITY,
                    "hasInstallScript": True,
                },
            },
        }
        return {**files, "package-lock.json": json.dumps(lock)}

    @property
    def go(self) -> dict[str, str]:
        program = (
            'package main\n\nimport "example.test/shared"\n\nfunc main() { print(shared.Word) }\n'
        )
        return {
            "go.mod": "module example.test/p\n\ngo 1.18\n\nrequire example.test/shared v1.0.0\n",
            "main.go": program,
        }

    def fetched(self) -> int:
        """How many packages it has handed out."""
        return docker("logs", self.name).split().count("fetched")


def start_registry(owner: str) -> Registry:
    name = f"kakoi-registry-{uuid.uuid4()}"
    served = {
        path: (kind, base64.b64encode(data).decode())
        for path, (kind, data) in {**pip_files(), **npm_files(), **go_files()}.items()
    }
    args = ["run", "-d", "--name", name, "--label", f"kakoi.owner={owner}", PYTHON]
    docker(*args, "python3", "-c", SERVER, json.dumps(served))
    wait_until(lambda: "up" in docker("logs", name))
    form = "{{.NetworkSettings.IPAddress}}"
    return Registry(name, docker("container", "inspect", "--format", form, name) + ":8080")
