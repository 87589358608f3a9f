"""A task's dependencies from a hostile index: none of its answers runs code, hides what came, passes
for a success, or goes on for ever. In real containers, which see the loopback of this machine."""

import dataclasses
import json
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from kakoi.backends.adapter import Limits
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import Tag
from kakoi.channel.api import Command
from kakoi.errors import SandboxError
from kakoi.gate import Gate
from kakoi.packages.allowlist import AllowlistConfig, parse
from kakoi.policy.profiles import load_policy
from kakoi.tasks.checkout import PROJECT, TEMPORARY, WORKSPACE
from kakoi.tasks.dependencies import (
    InstalledDependencies,
    PackageCache,
    install_dependencies,
    install_steps,
)
from kakoi.tasks.environment import EnvironmentOptions
from tests.attacks.indexes import Index, a_source, a_wheel, an_index
from tests.attacks.test_packages import bomb, drip, redirect
from tests.tasks.conftest import engine, image, owner  # noqa: F401 - fixtures
from tests.tasks.hosting import a_repository

pytestmark = pytest.mark.anyio
LISTS = AllowlistConfig(
    pip=parse("pip", "shared-thing\n"), npm=parse("npm", "shared-thing\n@scope/thing\n")
)
MARKER = f"{TEMPORARY}/ran"
CODE = f"open({MARKER!r}, 'w')\n"
ESCAPES = "\x1b]0;owned\x07\x1b[2J\u202e"


@pytest.fixture
def index() -> Iterator[Index]:
    with an_index() as index:
        yield index


@dataclasses.dataclass(frozen=True)
class Project:
    """An environment whose package managers ask the index."""

    adapter: DockerAdapter

    @property
    def gate(self) -> Gate:
        return Gate(load_policy(roots=[WORKSPACE]), self.adapter, cwd=PROJECT)

    async def install(
        self, files: dict[str, str], *, lists: AllowlistConfig | None = LISTS, timeout_s: float = 60
    ) -> tuple[InstalledDependencies, ...]:
        """Of a project with these files, in a home without packages."""
        await self.sh(
            "find . -mindepth 1 -delete; rm -rf ~/.venv/lib/*/site-packages/*thing* ~/.npm"
        )
        channel = await self.adapter.channel()
        for name, text in files.items():
            if "/" in name:
                await self.sh(f"mkdir -p {os.path.dirname(name)}")
            await channel.write_file(f"{PROJECT}/{name}", text.encode())
        done = await install_dependencies(self.gate, lists, task_uuid="t", timeout_s=timeout_s)
        for each in done:
            assert all(line.isprintable() for line in each.output.split("\n")), each.output
            assert len(each.output) <= 25_000
        assert "ran" not in (await self.sh(f"ls {TEMPORARY}")).split()
        return done

    async def sh(self, text: str) -> str:
        return (await self.adapter.run(Command(command=text, cwd=PROJECT))).stdout


@pytest.fixture
async def project(index: Index, image: str, owner: str) -> AsyncIterator[Project]:  # noqa: F811
    options = EnvironmentOptions(image=image, network="host", limits=Limits(cpus=1.0))
    env = {
        "PIP_CONFIG_FILE": f"{TEMPORARY}/pip.conf",
        "npm_config_registry": f"{index.url}/",
        "npm_config_fetch_retries": "0",
    }
    config = dataclasses.replace(options.container, env={**options.container.env, **env})
    adapter = DockerAdapter(config, lifetime="sandbox", tag=Tag(owner=owner))
    try:
        channel = await adapter.channel()
        await channel.write_file(env["PIP_CONFIG_FILE"], index.pip_settings.encode())
        yield Project(adapter)
    finally:
        await adapter.cleanup()


def by_a_source_elsewhere(index: Index) -> None:
    index.add_files("evil", a_source("evil", MARKER))
    needs = [f"evil @ {index.url}/files/evil-1.0.tar.gz"]
    index.add_files("shared-thing", a_wheel("shared-thing", requires=needs))


def by_another_name(index: Index) -> None:
    index.add_files("shared-thing", a_wheel("shared-thing", said="evil"))


def by_escapes(index: Index) -> None:
    needs = [f"evil{ESCAPES}"]
    index.add_files("shared-thing", a_wheel("shared-thing", requires=needs))


PIP_TRICKS: dict[Callable[[Index], None], str] = {
    by_a_source_elsewhere: "only wheels are installed",
    by_another_name: "another package",
    by_escapes: "\\x1b]0;",
}


@pytest.mark.slow("pip runs for each trick")
async def test_no_python_index_runs_code_or_passes_for_a_success(
    project: Project, index: Index
) -> None:
    """Nor does any module of the project run, whatever its name; and all that came is named."""
    needs = [f"brought-along-{'by-a-thing-' * 9}{number}" for number in range(10, 34)]
    for name in needs:
        index.add_files(name, a_wheel(name))
    index.add_files("shared-thing", a_wheel("shared-thing", requires=needs))
    names = ("venv", "ensurepip", "types", "logging", "pip", "sitecustomize", "zipfile", "email")
    files = {f"{name}.py": CODE for name in names}
    (done,) = await project.install({**files, "requirements.txt": "shared-thing"})
    assert done.ok, done.output
    assert done.output.split("\n") == [f"{name} 1.0" for name in [*needs, "shared-thing"]]
    # The new environment also has what `venv` puts into one.
    text = "from importlib.util import find_spec; import shared_thing; print(shared_thing.word, "
    text += """find_spec("pip").name, find_spec("setuptools").name)"""
    program = f"~/.venv/bin/python -I -c '{text}' && ~/.venv/bin/pip --version"
    assert (await project.sh(program)).startswith("genuine pip setuptools\npip ")
    for trick, why in PIP_TRICKS.items():
        index.answers.clear()
        trick(index)
        (done,) = await project.install({"requirements.txt": "shared-thing"})
        assert not done.ok, trick
        assert why in done.output, (trick, done.output)
        assert not await project.sh("ls ~/.venv/lib/*/site-packages | grep thing"), trick
    assert "install" not in await project.sh(f"ls {TEMPORARY}")


def serve_repository(index: Index, folder: Path, files: dict[str, str]) -> str:
    """As plain files, which git makes do with."""
    a_repository(folder, files)
    subprocess.run(["git", "update-server-info"], cwd=folder, check=True, timeout=60)
    git = folder / ".git"
    for path in git.rglob("*"):
        if path.is_file():
            index.answers[f"/evil.git/{path.relative_to(git)}"] = path.read_bytes()
    return f"git+{index.url}/evil.git"


@pytest.mark.slow("npm runs for each trick")
async def test_no_npm_registry_runs_code_or_passes_for_a_success(
    project: Project, index: Index, tmp_path: Path
) -> None:
    script = dict.fromkeys(("preinstall", "install", "prepare", "postinstall"), f"touch {MARKER}")
    about = {"name": "evil", "version": "1.0.0", "scripts": script}
    repository = {"package.json": json.dumps(about), ".npmrc": "ignore-scripts=false\n"}
    wants = json.dumps({"dependencies": {"shared-thing": "1"}, "scripts": script})
    evil = serve_repository(index, tmp_path / "evil", repository)
    for version in (evil, "npm:no-such-thing@1", f"1{ESCAPES}"):
        index.add_node("shared-thing", dependencies={"evil": version})
        (done,) = await project.install({"package.json": wants})
        assert not done.ok, version
        assert done.output
        assert await project.sh("ls -A") == "package.json\n", version
    index.answers["/shared-thing"] = redirect
    (done,) = await project.install({"package.json": wants})
    assert not done.ok
    # Nor does such a repository run anything where downloads are kept for all tasks.
    index.add_node("shared-thing", dependencies={"evil": evil})
    (step,) = install_steps(["package.json"])
    with pytest.raises(SandboxError, match="git"):
        await PackageCache(tmp_path / "cache").fill(project.gate, step.file, step.command)
    assert "ran" not in (await project.sh(f"ls {TEMPORARY}")).split()
    assert "install" not in await project.sh(f"ls {TEMPORARY}")


@pytest.mark.slow("npm runs")
async def test_npm_runs_no_scripts_and_all_that_came_is_named(
    project: Project, index: Index
) -> None:
    script = {"preinstall": f"touch {MARKER}", "postinstall": f"touch {MARKER}"}
    needs = {"dep": "*", "harmless": "npm:evil@1", "od~d": "*"}
    index.add_node("shared-thing", dependencies=needs, scripts=script, bin="index.js")
    index.add_node("@scope/thing", peerDependencies={"peer": "*"})
    for name in ("dep", "evil", "peer", "od~d"):
        index.add_node(name, scripts=script)
    wants = {
        "name": "shared-thing",
        "dependencies": {"shared-thing": "^1.0.0"},
        "devDependencies": {"@scope/thing": ""},
        "scripts": script,
        "config": {"ignore-scripts": False},
        "packageManager": "evil@1.0.0",
    }
    (done,) = await project.install({"package.json": json.dumps(wants)})
    assert done.ok, done.output
    came = ["@scope/thing", "dep", "evil", "od~d", "peer", "shared-thing"]
    assert sorted(done.output.split("\n")) == [f"{name} 1.0.0" for name in came]
    assert await project.sh("ls -A . node_modules/.bin") == (
        ".:\nnode_modules\npackage.json\n\nnode_modules/.bin:\nshared-thing\n"
    )


@pytest.mark.slow("waits for a time limit")
async def test_neither_node_modules_of_a_project_nor_an_endless_answer_has_a_say(
    project: Project, index: Index
) -> None:
    planted = {"name": "shared-thing", "version": "1.0.0", "dependencies": {"evil": "*"}}
    index.add_node("shared-thing")
    index.add_node("evil")
    files = {
        "package.json": '{"dependencies": {"shared-thing": "1"}}',
        "node_modules/shared-thing/package.json": json.dumps(planted),
    }
    (done,) = await project.install(files)
    assert (done.ok, "node_modules beside it" in done.output, index.asked) == (False, True, [])
    # Nor does an index that never ends its answer keep a task for longer than it may.
    index.answers["/shared-thing"] = drip
    del files["node_modules/shared-thing/package.json"]
    for seconds in (3, 15, 60):  # The limit must not end npm before it has asked.
        (done,) = await project.install(files, timeout_s=seconds)
        if index.asked:
            break
    assert (done.ok, "timed out" in done.output, index.asked) == (False, True, ["/shared-thing"])
    assert await project.sh("echo alive; pgrep -f '[n]pm install|[k]akoi-install'") == "alive\n"


@pytest.mark.extended("enlarges what an index answers: a gigabyte of memory is filled")
@pytest.mark.slow("a gigabyte of memory is filled")
async def test_an_answer_that_fills_the_memory_is_given_up(project: Project, index: Index) -> None:
    index.answers["/simple/shared-thing"] = bomb
    (done,) = await project.install({"requirements.txt": "shared-thing"}, timeout_s=300)
    assert (done.ok, "MemoryError" in done.output) == (False, True)


@pytest.mark.slow("npm runs")
async def test_what_a_project_says_while_it_is_installed_is_printable_and_short(
    project: Project,
) -> None:
    """Without lists it may run anything; what is told of that goes to logs and people."""
    secret = "ghp_" + "a" * 36
    noise = f"head -c 3000000 /dev/zero | tr '\\\\0' x >&2; printf '{ESCAPES}{secret}' >&2; exit 3"
    script = json.dumps({"scripts": {"preinstall": f"printf '{ESCAPES}' >&2; exit 3"}})
    (done,) = await project.install({"package.json": script}, lists=None)
    assert (done.ok, "\\x1b]0;" in done.output) == (False, True)
    script = json.dumps({"scripts": {"preinstall": noise}})
    (done,) = await project.install({"package.json": script}, lists=None)
    assert not done.ok
    assert len(done.output) <= 4000
    assert secret not in done.output
    assert await project.sh("echo alive") == "alive\n"
