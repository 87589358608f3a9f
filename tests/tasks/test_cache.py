"""Downloads that tasks share: a copy for each, and no way from a task to another's."""

import base64
import hashlib
import io
import json
import subprocess
import sys
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kakoi.errors import SandboxError
from kakoi.tasks.caching import FOLDERS, Cache
from kakoi.tasks.dependencies import Step, steps_for
from tests.tasks.conftest import Make
from tests.tasks.hosting import PYTHON, a_repository, a_task, containers, docker, wait_until

pytestmark = pytest.mark.anyio

# One package, one page about it, and a note of each file that was fetched.
SERVER = """
import http.server, sys, base64
wheel = base64.b64decode(sys.argv[1])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        page = b'<a href="/files/shared_thing-1.0-py3-none-any.whl">shared_thing-1.0-py3-none-any.whl</a>'
        body = wheel if self.path.startswith("/files/") else page
        print("fetched" if body is wheel else "asked", flush=True)
        self.send_response(200)
        self.send_header("Content-Type", "application/zip" if body is wheel else "text/html")
        self.send_header("Cache-Control", "max-age=86400" if body is wheel else "no-cache")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *words):
        pass
print("up", flush=True)
http.server.ThreadingHTTPServer(("", 8080), Handler).serve_forever()
"""


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


@dataclass(frozen=True)
class Index:
    name: str
    host: str

    @property
    def requirements(self) -> str:
        return f"--index-url http://{self.host}:8080/simple\n--trusted-host {self.host}\nshared-thing==1.0\n"

    def fetched(self) -> int:
        return docker("logs", self.name).split().count("fetched")


@pytest.fixture
def index(owner: str) -> Iterator[Index]:
    name = f"kakoi-index-{uuid.uuid4()}"
    wheel = base64.b64encode(a_wheel()).decode()
    args = ["run", "-d", "--name", name, "--label", f"kakoi.owner={owner}", PYTHON]
    docker(*args, "python3", "-c", SERVER, wheel)
    form = "{{.NetworkSettings.IPAddress}}"
    wait_until(lambda: "up" in docker("logs", name))
    yield Index(name, docker("container", "inspect", "--format", form, name))
    docker("rm", "-f", "-v", name)


POISON = """
import os, pathlib
for folder, folders, files in os.walk(os.path.expanduser("~/.cache/pip")):
    for name in files:
        path = pathlib.Path(folder, name)
        path.chmod(0o644)
        path.write_bytes(path.read_bytes().replace(b"genuine", b"evil!!!"))
"""
USE = "~/.venv/bin/python -c 'import shared_thing; print(shared_thing.word)'"


async def test_a_task_has_what_was_downloaded_before_and_cannot_change_it_for_the_next(
    make: Make,
    image: str,
    index: Index,
    tmp_path: Path,
) -> None:
    repository = a_repository(tmp_path / "p", {"requirements.txt": index.requirements})
    cache = Cache(tmp_path / "cache")
    filler = make(image=image, install_dependencies=False)
    (step,) = steps_for(["requirements.txt"])
    async with filler.open(a_task(repository)) as info:
        channel = await filler.find(info.container_id).adapter.channel()
        assert await cache.fill(channel, step) == cache.sizes()["pip"] > 0
    assert index.fetched() == 1
    kept = (tmp_path / "cache" / "pip.tar").read_bytes()
    manager = make(image=image, cache=cache)
    for number in range(3):
        async with manager.open(a_task(repository)) as info:
            assert [each.ok for each in info.installed] == [True], info.installed
            word = docker("exec", "-u", "agent", info.name, "sh", "-c", USE)
            assert word == "genuine", number
            docker("exec", "-u", "agent", info.name, "python3", "-c", POISON)
            stays = docker(
                "exec",
                "-u",
                "agent",
                info.name,
                "sh",
                "-c",
                "grep -rl evil!!! ~/.cache/pip | wc -l",
            )
            assert int(stays) >= 1  # It has done what it could.
            mounts = json.loads(docker("inspect", "--format", "{{json .Mounts}}", info.name))
            assert [each for each in mounts if "cache" in each["Destination"]] == []
            assert [each for each in mounts if str(tmp_path) in each["Source"]] == []
    assert index.fetched() == 1  # Nobody had to download it again.
    assert (tmp_path / "cache" / "pip.tar").read_bytes() == kept


async def test_a_broken_or_strange_cache_costs_a_task_nothing_but_time(
    make: Make,
    image: str,
    index: Index,
    tmp_path: Path,
    owner: str,
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "pip.tar").write_bytes(b"no archive" * 1000)
    repository = a_repository(tmp_path / "p", {"requirements.txt": index.requirements})
    manager = make(image=image, cache=Cache(tmp_path / "cache"))
    async with manager.open(a_task(repository)) as info:
        assert [each.ok for each in info.installed] == [True], info.installed
    assert index.fetched() == 1
    assert containers(owner) == [index.name]


async def test_what_cannot_be_downloaded_leaves_the_cache_as_it_was(
    make: Make,
    image: str,
    tmp_path: Path,
) -> None:
    cache = Cache(tmp_path / "cache")
    repository = a_repository(tmp_path / "p", {"requirements.txt": "shared-thing\n"})
    manager = make(image=image, install_dependencies=False, network="none")
    async with manager.open(a_task(repository)) as info:
        channel = await manager.find(info.container_id).adapter.channel()
        (step,) = steps_for(["requirements.txt"])
        with pytest.raises(SandboxError, match="pip download"):
            await cache.fill(channel, step)
        with pytest.raises(SandboxError, match="nobody here knows"):
            await cache.fill(channel, Step("Gemfile", "bundle install"))
    assert cache.sizes() == {}


def test_the_cache_has_a_place_for_each_manager_and_is_listed_and_forgotten(tmp_path: Path) -> None:
    assert set(FOLDERS) == {"pip", "npm", "go", "cargo", "mvn"}
    (tmp_path / "pip.tar").write_bytes(b"x" * 2048)
    (tmp_path / "config.yaml").write_text(f"packages: {{cache_dir: {tmp_path}}}\n")
    words = [sys.executable, "-m", "kakoi", "cache"]

    def kakoi(*more: str) -> str:
        argv = [*words, *more, "--config", str(tmp_path / "config.yaml")]
        return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=60).stdout

    assert kakoi("list").split() == ["pip", "2", "KiB"]
    assert kakoi("list", "--json") == '{\n  "pip": 2048\n}\n'
    kakoi("clear")
    assert Cache(tmp_path).sizes() == {}
    assert kakoi("list") == ""
