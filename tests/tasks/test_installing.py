"""A project's dependencies where only listed packages may be installed, in real containers."""

from pathlib import Path

import pytest

from kakoi.config.environments import environment_options
from kakoi.config.settings import PackagesSection, PolicySettings, Settings
from kakoi.packages.allowlist import AllowlistConfig, parse
from kakoi.packages.install import read_lists
from kakoi.tasks.environments import ContainerInfo
from tests.tasks.conftest import Make
from tests.tasks.hosting import a_repository, a_task

pytestmark = pytest.mark.anyio

LISTS = AllowlistConfig(pip=parse("pip", "requests\n"), npm=parse("npm", "typescript\n"))


async def prepared(make: Make, image: str, repository: str) -> ContainerInfo:
    manager = make(image=image, lists=LISTS, network="none")
    return await manager.prepare(a_task(repository))


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
    assert "`evil@1`: it is not on the list" in node.said
    assert "`evil-thing`: it is not on the list" in python.said
    assert "requests" not in python.said
    assert "nobody here can read such a file" in go.said
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
    assert node.ok, node.said
    result = await manager.execute(info.container_id, "ls /workspace")
    assert "ran" in result.stdout.split()
    # It was asked for, and there is no network to have it from.
    assert "requests==2.32" in python.said
    assert "the lists" not in python.said


HOSTILE = [
    {"package.json": "{}", ".npmrc": "registry=http://127.0.0.1:1/"},
    {"package.json": "{}", "npm-shrinkwrap.json": "{}"},
    {"package.json": "{}", "package-lock.json": "{}"},
    {"package.json": "{}", "yarn.lock": ""},
    {"package.json": "[" * 100_000},
    {"package.json": "{}" + " " * (1024 * 1024)},
    {"requirements.txt": "--index-url http://127.0.0.1:1/\nrequests"},
    {"requirements.txt": "-r other.txt", "other.txt": "evil"},
    {"requirements.txt": "requests @ file:///tmp/x"},
    {
        "requirements.txt": "\udcff".encode("utf-8", "surrogateescape").decode("latin-1")
        + "requests"
    },
    {"pyproject.toml": "[project]\nname='x'\nversion='1'\n"},
    {"setup.py": "open('/workspace/ran', 'w')"},
]


@pytest.mark.requirement("X-34")
@pytest.mark.slow("package managers run in several containers")
async def test_nothing_beside_or_in_a_file_gets_past_the_lists(
    make: Make, image: str, tmp_path: Path
) -> None:
    for number, files in enumerate(HOSTILE):
        repository = a_repository(tmp_path / str(number), files)
        info = await prepared(make, image, repository)
        assert [each.ok for each in info.installed] == [False], files
        assert "is not installed" in info.installed[0].said


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
