"""A project's dependencies where only listed packages may be installed, in real containers."""

from pathlib import Path

import pytest

from kakoi.channel.api import Command
from kakoi.packages.allowlist import AllowlistConfig, parse
from kakoi.packages.installer import read_lists
from kakoi.settings.model import PackagesSection, PolicySettings, Settings
from kakoi.tasks.checkout import PROJECT
from kakoi.tasks.dependencies import InstalledDependencies, install_dependencies
from kakoi.tasks.from_settings import environment_options
from tests.tasks.conftest import Make
from tests.tasks.hosting import a_repository, a_task

pytestmark = pytest.mark.anyio

LISTS = AllowlistConfig(pip=parse("pip", "requests\n"), npm=parse("npm", "typescript\n"))


@pytest.mark.requirement("X-34")
async def test_a_file_with_a_name_that_is_not_listed_is_not_installed_and_the_task_goes_on(
    make: Make, image: str, tmp_path: Path
) -> None:
    ran = "touch /workspace/ran"
    files = {
        "package.json": f'{{"dependencies": {{"evil": "1"}}, "scripts": {{"preinstall": "{ran}"}}}}',
        "requirements.txt": "requests==2.32\nevil-thing\n",
        "go.mod": "module x",
    }
    manager = make(image=image, lists=LISTS, network="none")
    info = await manager.prepare(a_task(a_repository(tmp_path / "p", files)))
    assert info.status == "ready"
    node, python, go = info.installed
    assert [each.ok for each in info.installed] == [False] * 3
    assert "`evil@1`: it is not on the list" in node.output
    assert "`evil-thing`: it is not on the list" in python.output
    assert "requests" not in python.output
    assert "this kind of file is not supported" in go.output
    result = await manager.execute(info.container_id, "ls /workspace")
    assert "ran" not in result.stdout.split()


@pytest.mark.requirement("X-34")
@pytest.mark.slow("a package manager tries again before it gives up")
async def test_a_file_of_listed_names_is_installed(make: Make, image: str, tmp_path: Path) -> None:
    ran = "touch /workspace/ran"
    files = {
        "package.json": f'{{"scripts": {{"preinstall": "{ran}"}}}}',
        "requirements.txt": "requests==2.32\n",
    }
    manager = make(image=image, lists=LISTS, network="none")
    info = await manager.prepare(a_task(a_repository(tmp_path / "p", files)))
    node, python = info.installed
    assert node.ok, node.output
    assert "--ignore-scripts" in node.step.command
    result = await manager.execute(info.container_id, "ls /workspace")
    assert "ran" not in result.stdout.split()
    # It was asked for, and there is no network to have it from.
    assert "requests==2.32" in python.output
    assert "the lists" not in python.output


# Of each: the files of a project, none of which may be installed.
HOSTILE: list[dict[str, bytes]] = [
    {"package.json": b"{}", ".npmrc": b"registry=http://127.0.0.1:1/"},
    {"package.json": b"{}", "npm-shrinkwrap.json": b"{}"},
    {"package.json": b"{}", "package-lock.json": b"{}"},
    {"package.json": b"{}", "yarn.lock": b""},
    {"package.json": b"[" * 100_000},
    {"package.json": b"{}" + b" " * (1024 * 1024)},
    {"package.json": b'{"dependencies": {"evil": "1"}, "dependencies": {}}'},
    {"requirements.txt": b"--index-url http://127.0.0.1:1/\nrequests"},
    {"requirements.txt": b"-r other.txt", "other.txt": b"evil"},
    {"requirements.txt": b"requests @ file:///tmp/x"},
    {"requirements.txt": b"\xffrequests"},
    # In UTF-7, which pip would take it for, the comment ends and an index follows.
    {"requirements.txt": b"# coding: utf-7\n# +AAo---index-url http://127.0.0.1:1/\nrequests\n"},
    {"requirements.txt": "requests\n".encode("utf-16")},
    {"requirements.txt": b"requests\n" * (128 * 1024)},
    {"pyproject.toml": b"[project]\nname='x'\nversion='1'\n"},
    {"setup.py": b"open('/workspace/ran', 'w')"},
]
_EMPTY = "find . -mindepth 1 -delete"


@pytest.mark.requirement("X-34")
@pytest.mark.slow("a container")
async def test_nothing_beside_or_in_a_file_gets_past_the_lists(
    make: Make, image: str, tmp_path: Path
) -> None:
    manager = make(image=image, lists=LISTS, network="none")
    info = await manager.prepare(a_task(a_repository(tmp_path / "p", {"README": ""})))
    environment = manager.find(info.container_id)
    channel = await environment.adapter.channel()

    async def tried() -> list[InstalledDependencies]:
        return list(await install_dependencies(environment.gate, LISTS, task_uuid=info.task_uuid))

    for files in HOSTILE:
        await channel.run(Command(command=_EMPTY, cwd=PROJECT))
        for name, data in files.items():
            await channel.write_file(f"{PROJECT}/{name}", data)
        (done,) = await tried()
        assert (done.ok, "is not installed" in done.output) == (False, True), files
    for in_its_place in ("ln -s /etc/shadow", "mkfifo pipe; ln -s pipe", "ln -s /dev/zero"):
        made = f"{_EMPTY}; {in_its_place} requirements.txt"
        assert (await channel.run(Command(command=made, cwd=PROJECT))).ok
        (done,) = await tried()
        assert (done.ok, "it cannot be read" in done.output) == (False, True), in_its_place


def test_the_setting_of_the_policy_brings_its_lists(tmp_path: Path) -> None:
    (tmp_path / "pip.txt").write_text("only-this\n")
    assert environment_options(Settings()).lists is None
    policy = PolicySettings(packages="allowlist")
    assert environment_options(Settings(policy=policy)).lists == read_lists()
    packages = PackagesSection(allowlist=str(tmp_path))
    found = environment_options(Settings(policy=policy, packages=packages)).lists
    assert found is not None
    assert found.pip == parse("pip", "only-this")
    assert found.npm is None
