"""Package registries in the real formats of pip, npm, go, cargo and maven, in one small server in a
container.

Each has one package, whose content is `genuine`. The server logs each package download.
"""

import base64
import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.tasks.hosting import PYTHON, a_repository, docker, wait_until

# Its only argument is the content to serve. Its file system can also have an index of crates and
# Debian's maven plugins. Clients revalidate pages and cache packages. The server learns its own
# name, which replaces @HOST@, only from the request.
SERVER = """
import base64, hashlib, http.server, json, pathlib, sys
files = json.loads(sys.argv[1])
folders = {"/maven/": "/usr/share/maven-repo", "/index/": "/srv/index"}
def find(path):
    if path in files:
        kind, data = files[path]
        return kind, base64.b64decode(data)
    if path.endswith(".sha1"):
        kind, data = find(path.removesuffix(".sha1"))
        return kind and "text", hashlib.sha1(data).hexdigest().encode()
    for prefix, folder in folders.items():
        found = pathlib.Path(folder, path.removeprefix(prefix))
        if path.startswith(prefix) and found.is_file():
            return "file", found.read_bytes()
    return None, b""
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        kind, body = find(self.path.partition("?")[0].rstrip("/"))
        body = body.replace(b"@HOST@", self.headers["Host"].encode())
        print("fetched" if kind == "package" else "asked", self.path, flush=True)
        self.send_response(200 if kind else 404)
        types = {"json": "application/json", "html": "text/html", "text": "text/plain"}
        self.send_header("Content-Type", types.get(kind, "application/octet-stream"))
        self.send_header("Cache-Control", "max-age=86400" if kind == "package" else "no-cache")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
print("up", flush=True)
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""
# A path, with the kind and the bytes of its content.
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
    about = {
        "name": "shared-thing",
        "version": "1.0.0",
        "scripts": {"postinstall": "touch /workspace/tmp/script-was-run"},
    }
    files = {"package.json": json.dumps(about), "index.js": "module.exports = 'genuine'\n"}
    return a_tarball({f"package/{name}": text for name, text in files.items()})


def a_tarball(files: Mapping[str, str]) -> bytes:
    return gzip.compress(a_tar({name: text.encode() for name, text in files.items()}))


def a_tar(files: Mapping[str, bytes]) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return data.getvalue()


NODE_PACKAGE = a_node_package()  # Built once, because its bytes contain the time of compression.
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


_ANY_VERSION = """!ruby/object:Gem::Requirement
  requirements:
  - - ">="
    - !ruby/object:Gem::Version
      version: '0'"""
GEM = """--- !ruby/object:Gem::Specification
name: shared-thing
version: !ruby/object:Gem::Version
  version: 1.0.0
platform: ruby
authors: [a]
date: 2024-01-01 00:00:00.000000000 Z
dependencies: []
executables: []
extensions: []
extra_rdoc_files: []
files: [lib/shared-thing.rb]
licenses: []
metadata: {}
require_paths: [lib]
required_ruby_version: ANY
required_rubygems_version: ANY
requirements: []
specification_version: 4
summary: shared
test_files: []
""".replace("ANY", _ANY_VERSION)


def a_gem() -> bytes:
    code = {"lib/shared-thing.rb": "SHARED = 'genuine'\n"}
    return a_tar({"metadata.gz": gzip.compress(GEM.encode()), "data.tar.gz": a_tarball(code)})


def gem_files() -> Files:
    gem = a_gem()
    info = f"---\n1.0.0 |checksum:{hashlib.sha256(gem).hexdigest()}\n".encode()
    digest = hashlib.md5(info, usedforsecurity=False).hexdigest()
    versions = f"created_at: 2024-01-01T00:00:00Z\n---\nshared-thing 1.0.0 {digest}\n"
    return {
        "/gems/versions": ("text", versions.encode()),
        "/gems/info/shared-thing": ("text", info),
        "/gems/gems/shared-thing-1.0.0.gem": ("package", gem),
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


CRATE = a_tarball(
    {
        "shared-thing-1.0.0/Cargo.toml": '[package]\nname = "shared-thing"\nversion = "1.0.0"\n',
        "shared-thing-1.0.0/src/lib.rs": 'pub const WORD: &str = "genuine";\n',
    }
)
CRATE_SUM = hashlib.sha256(CRATE).hexdigest()


def cargo_files() -> Files:
    return {"/crates/shared-thing/1.0.0/download": ("package", CRATE)}


def an_index_of_crates(folder: Path, host: str) -> Path:
    """Create an index as a git repository, cargo's original format, which it still supports."""
    about = {"name": "shared-thing", "vers": "1.0.0", "deps": [], "cksum": CRATE_SUM}
    more = {"features": {}, "yanked": False}
    files = {
        "config.json": json.dumps({"dl": f"http://{host}/crates"}),
        "sh/ar/shared-thing": json.dumps({**about, **more}) + "\n",
    }
    a_repository(folder, files)
    # Git needs these files to clone from a plain file server.
    subprocess.run(["git", "update-server-info"], cwd=folder, check=True, timeout=60)
    return folder / ".git"


def maven_files() -> Files:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("word.txt", "genuine")
    at = "/maven/test/shared/shared-thing/1.0/shared-thing-1.0"
    about = a_pom("test.shared", "shared-thing", "1.0")
    return {f"{at}.pom": ("text", about.encode()), f"{at}.jar": ("package", data.getvalue())}


def a_pom(group: str, name: str, version: str, more: str = "") -> str:
    return (
        f"<project><modelVersion>4.0.0</modelVersion><groupId>{group}</groupId>"
        f"<artifactId>{name}</artifactId><version>{version}</version>{more}</project>\n"
    )


@dataclass(frozen=True)
class Registry:
    """The server, and the files of projects that use it."""

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
    def yarn(self) -> dict[str, str]:
        lock = (
            "# yarn lockfile v1\n\n\nshared-thing@1.0.0:\n"
            f'  version "1.0.0"\n  resolved "http://{self.host}{NODE_PATH}"\n'
            f"  integrity {NODE_INTEGRITY}\n"
        )
        return {**self.node, "yarn.lock": lock}

    @property
    def ruby(self) -> dict[str, str]:
        gemfile = f'source "http://{self.host}/gems"\ngem "shared-thing", "1.0.0"\n'
        return {"Gemfile": gemfile}

    @property
    def go(self) -> dict[str, str]:
        program = (
            'package main\n\nimport "example.test/shared"\n\nfunc main() { print(shared.Word) }\n'
        )
        return {
            "go.mod": "module example.test/p\n\ngo 1.18\n\nrequire example.test/shared v1.0.0\n",
            "main.go": program,
        }

    @property
    def rust(self) -> dict[str, str]:
        about = '[package]\nname = "p"\nversion = "1.0.0"\nedition = "2021"\n'
        return {
            "Cargo.toml": f'{about}[dependencies]\nshared-thing = "1.0.0"\n',
            "src/main.rs": 'fn main() { println!("{}", shared_thing::WORD); }\n',
            # This server only has files, without git's server program. The git client can use them.
            ".cargo/config.toml": (
                '[source.crates-io]\nreplace-with = "ours"\n'
                f'[source.ours]\nregistry = "http://{self.host}/index"\n'
                "[net]\ngit-fetch-with-cli = true\n"
            ),
        }

    @property
    def locked_rust(self) -> dict[str, str]:
        # Cargo's name for its own registry, whatever replaces it.
        source = "registry+https://github.com/rust-lang/crates.io-index"
        lock = (
            'version = 3\n\n[[package]]\nname = "p"\nversion = "1.0.0"\n'
            'dependencies = [\n "shared-thing",\n]\n\n'
            '[[package]]\nname = "shared-thing"\nversion = "1.0.0"\n'
            f'source = "{source}"\nchecksum = "{CRATE_SUM}"\n'
        )
        return {**self.rust, "Cargo.lock": lock}

    @property
    def java(self) -> dict[str, str]:
        uses = (
            "<packaging>pom</packaging><dependencies><dependency><groupId>test.shared</groupId>"
            "<artifactId>shared-thing</artifactId><version>1.0</version></dependency></dependencies>"
            # Debian has the other plugins in the versions that maven uses by default.
            "<build><pluginManagement><plugins><plugin><artifactId>maven-site-plugin</artifactId>"
            "<version>3.12.1</version></plugin></plugins></pluginManagement></build>"
        )
        settings = (
            "<settings><mirrors><mirror><id>ours</id><mirrorOf>*</mirrorOf>"
            f"<url>http://{self.host}/maven</url></mirror></mirrors></settings>\n"
        )
        return {
            "pom.xml": a_pom("test", "p", "1", uses),
            ".mvn/maven.config": "--settings\n.mvn/settings.xml\n",
            ".mvn/settings.xml": settings,
        }

    def fetched(self) -> int:
        """Return the number of packages downloaded."""
        return docker("logs", self.name).split().count("fetched")


def start_registry(owner: str, folder: Path, image: str = PYTHON) -> Registry:
    """Start the server.

    `image`: for maven, one with Debian's plugins. `folder`: for generated files.
    """
    name = f"kakoi-registry-{uuid.uuid4()}"
    kinds = (pip_files(), npm_files(), gem_files(), go_files(), cargo_files(), maven_files())
    served = {
        path: (kind, base64.b64encode(data).decode())
        for files in kinds
        for path, (kind, data) in files.items()
    }
    args = ["run", "-d", "--name", name, "--label", f"kakoi.owner={owner}", image]
    docker(*args, "python3", "-c", SERVER, json.dumps(served))
    wait_until(lambda: "up" in docker("logs", name))
    form = "{{.NetworkSettings.IPAddress}}"
    host = docker("container", "inspect", "--format", form, name) + ":8080"
    docker("cp", str(an_index_of_crates(folder / "crates", host)), f"{name}:/srv/index")
    return Registry(name, host)
