"""Downloads that tasks share: a copy for each, and no way from a task to another's."""

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kakoi.errors import SandboxError
from kakoi.tasks.dependencies import FOLDERS, PackageCache, install_steps
from tests.engine import containers
from tests.tasks.conftest import Make
from tests.tasks.hosting import a_repository, a_task, docker
from tests.tasks.registries import Registry, start_registry

pytestmark = pytest.mark.anyio


@pytest.fixture
def registry(owner: str, tmp_path: Path) -> Iterator[Registry]:
    started = start_registry(owner, tmp_path)
    yield started
    docker("rm", "-f", "-v", started.name)


@pytest.fixture
def registry_with_plugins(owner: str, tmp_path: Path, tools_image: str) -> Iterator[Registry]:
    started = start_registry(owner, tmp_path, tools_image)
    yield started
    docker("rm", "-f", "-v", started.name)


@pytest.fixture
def image_with_go(full_image: str, registry: Registry) -> Iterator[str]:
    """The full image, as a user has it whose go asks a registry of their own."""
    name = f"kakoi-test-registry:{uuid.uuid4()}"
    text = (
        f"FROM {full_image}\nENV GOPROXY=http://{registry.host}/go GOSUMDB=off GOFLAGS=-mod=mod\n"
    )
    docker("build", "--quiet", "--label", "kakoi.owner=test", "--tag", name, "-", stdin=text)
    yield name
    docker("image", "rm", name)


@dataclass(frozen=True)
class Kind:
    """A package manager: its cache, the step for a project, and what uses the package there."""

    name: str
    step: str
    use: str

    def files(self, registry: Registry) -> dict[str, str]:
        return {
            "requirements.txt": registry.python,
            "package.json": registry.node,
            "package-lock.json": registry.locked_node,
            "go.mod": registry.go,
            "Cargo.toml": registry.rust,
            "Cargo.lock": registry.locked_rust,
            "pom.xml": registry.java,
        }[self.step]


NODE = "cd project && node -p 'require(\"shared-thing\")'"
KINDS = [
    Kind(
        "pip", "requirements.txt", "~/.venv/bin/python -c 'import shared_thing as x; print(x.word)'"
    ),
    Kind("npm", "package.json", NODE),
    pytest.param(
        Kind("npm", "package-lock.json", NODE),
        marks=pytest.mark.extended("repetition: the same manager with a lock file"),
    ),
]
GO = Kind("go", "go.mod", "cd project && GOPROXY=off go run . 2>&1")
RUST = "cd project && cargo run --offline --quiet"
JAR = "~/.m2/repository/test/shared/shared-thing/1.0/shared-thing-1.0.jar"
MORE_KINDS = [
    Kind("cargo", "Cargo.toml", RUST),
    Kind("cargo", "Cargo.lock", RUST),
    Kind("mvn", "pom.xml", f"cd tmp && python3 -m zipfile -e {JAR} . && cat word.txt"),
]
# In every file, under every name; and a package that was packed is unpacked by nobody.
POISON = """
import os, pathlib, sys
changed = 0
for folder, folders, files in os.walk(os.path.expanduser("~/" + sys.argv[1])):
    for name in files:
        path = pathlib.Path(folder, name)
        path.chmod(0o644)
        path.write_bytes(path.read_bytes()[::-1] + b"evil")
        changed += 1
print(changed)
"""


@pytest.mark.requirement("A-045")
@pytest.mark.parametrize("kind", KINDS, ids=["pip", "npm", "npm with a lock file"])
@pytest.mark.slow("three environments, and a package manager in each")
async def test_a_task_has_what_was_downloaded_before_and_cannot_change_it_for_the_next(
    make: Make, image: str, registry: Registry, tmp_path: Path, kind: Kind
) -> None:
    await downloads_once(make, image, registry, tmp_path, kind)


@pytest.mark.extended("toolchain: go")
@pytest.mark.slow("three environments, and a compiler in each")
async def test_go_has_what_was_downloaded_before_too(
    make: Make, image_with_go: str, registry: Registry, tmp_path: Path
) -> None:
    await downloads_once(make, image_with_go, registry, tmp_path, GO)


@pytest.mark.extended("toolchains: cargo and maven, in an image of their own")
@pytest.mark.slow("three environments, and a compiler in each")
@pytest.mark.parametrize("kind", MORE_KINDS, ids=[each.step for each in MORE_KINDS])
async def test_cargo_and_maven_have_what_was_downloaded_before_too(
    make: Make, tools_image: str, registry_with_plugins: Registry, tmp_path: Path, kind: Kind
) -> None:
    await downloads_once(make, tools_image, registry_with_plugins, tmp_path, kind)


async def downloads_once(
    make: Make, its_image: str, registry: Registry, tmp_path: Path, kind: Kind
) -> None:
    repository = a_repository(tmp_path / "p", kind.files(registry))
    cache = PackageCache(tmp_path / "cache")
    filler = make(image=its_image, install_dependencies=False)
    (step,) = install_steps(list(kind.files(registry)))
    assert step.file == kind.step
    async with filler.open(a_task(repository)) as info:
        gate = filler.find(info.container_id).gate
        assert await cache.fill(gate, step.file, step.command) == cache.sizes()[kind.name] > 0
        # Nothing of what was downloaded has been run.
        assert docker("exec", info.name, "ls", "/workspace/tmp").find("script-was-run") == -1
    assert registry.fetched() == 1
    kept = (tmp_path / "cache" / f"{kind.name}.tar").read_bytes()
    manager = make(image=its_image, cache=cache)
    for number in range(2):
        async with manager.open(a_task(repository)) as info:
            assert [each.ok for each in info.installed] == [True], info.installed
            inside = ["exec", "-u", "agent", "-w", "/workspace", info.name]
            assert docker(*inside, "sh", "-c", kind.use) == "genuine", number
            # It does what it can to what the next one could be given.
            assert int(docker(*inside, "python3", "-c", POISON, FOLDERS[kind.name])) > 0
            mounts = json.loads(docker("inspect", "--format", "{{json .Mounts}}", info.name))
            assert [each for each in mounts if "cache" in each["Destination"]] == []
            assert [each for each in mounts if str(tmp_path) in each["Source"]] == []
    assert registry.fetched() == 1  # Nobody had to download it again.
    assert (tmp_path / "cache" / f"{kind.name}.tar").read_bytes() == kept


@pytest.mark.slow("a package manager installs")
async def test_a_broken_or_strange_cache_costs_a_task_nothing_but_time(
    make: Make,
    image: str,
    registry: Registry,
    tmp_path: Path,
    owner: str,
) -> None:
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "pip.tar").write_bytes(b"no archive" * 1000)
    repository = a_repository(tmp_path / "p", {"requirements.txt": registry.requirements})
    manager = make(image=image, cache=PackageCache(tmp_path / "cache"))
    async with manager.open(a_task(repository)) as info:
        assert [each.ok for each in info.installed] == [True], info.installed
    assert registry.fetched() == 1
    assert containers(owner) == [registry.name]


@pytest.mark.slow("a package manager tries again before it gives up")
async def test_what_cannot_be_downloaded_leaves_the_cache_as_it_was(
    make: Make,
    image: str,
    tmp_path: Path,
) -> None:
    cache = PackageCache(tmp_path / "cache")
    repository = a_repository(tmp_path / "p", {"requirements.txt": "shared-thing\n"})
    manager = make(image=image, install_dependencies=False, network="none")
    async with manager.open(a_task(repository)) as info:
        gate = manager.find(info.container_id).gate
        (step,) = install_steps(["requirements.txt"])
        with pytest.raises(SandboxError, match="pip download"):
            await cache.fill(gate, step.file, step.command)
        with pytest.raises(SandboxError, match="cannot download the packages"):
            await cache.fill(gate, "Gemfile", "bundle install")
    assert cache.sizes() == {}


@pytest.mark.slow("a container")
async def test_no_requirements_make_pip_run_code_where_it_is_to_download(
    make: Make, image: str, tmp_path: Path
) -> None:
    marker = "/workspace/tmp/script-was-run"
    files = {
        "requirements.txt": "--no-binary :all:\n./evil\n",
        "evil/setup.py": f"open({marker!r}, 'w')\n",
        "pip.py": f"open({marker!r}, 'w')\n",
    }
    manager = make(image=image, install_dependencies=False, network="none")
    async with manager.open(a_task(a_repository(tmp_path / "p", files))) as info:
        environment = manager.find(info.container_id)
        channel = await environment.adapter.channel()
        (step,) = install_steps(["requirements.txt"])
        cache = PackageCache(tmp_path / "cache")
        with pytest.raises(SandboxError, match="only wheels are installed"):
            await cache.fill(environment.gate, step.file, step.command)
        with pytest.raises(FileNotFoundError):
            await channel.stat_file(marker)


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
    assert PackageCache(tmp_path).sizes() == {}
    assert kakoi("list") == ""
