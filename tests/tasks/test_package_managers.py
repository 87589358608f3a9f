"""Package managers that share no downloads install the dependencies of a task, with their programs.

pip, npm, go, cargo and maven do so in tests/tasks/test_package_cache.py.
"""

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tasks.conftest import Make
from tests.tasks.hosting import PYTHON, a_repository, a_task, docker
from tests.tasks.registries import Registry, start_registry

pytestmark = pytest.mark.anyio


@pytest.fixture
def registry(owner: str, tmp_path: Path) -> Iterator[Registry]:
    started = start_registry(owner, tmp_path)
    yield started
    docker("rm", "-f", "-v", started.name)


@pytest.fixture
def managers_image(tools_image: str) -> Iterator[str]:
    """Debian calls yarn `yarnpkg`, and gives users no place for gems."""
    name = f"kakoi-test-managers:{uuid.uuid4()}"
    text = (
        f"FROM {tools_image}\nUSER root\nRUN ln -s /usr/bin/yarnpkg /usr/local/bin/yarn\n"
        "USER agent\nENV GEM_HOME=/home/agent/.gems\n"
    )
    docker("build", "--quiet", "--label", "kakoi.owner=test", "--tag", name, "-", stdin=text)
    yield name
    docker("image", "rm", name)


@pytest.mark.requirement("A-044", "A-047")
@pytest.mark.extended("toolchains: yarn and bundler, in an image of their own")
@pytest.mark.slow("an environment, and a package manager in it")
@pytest.mark.parametrize(
    ("kind", "step", "use"),
    [
        ("yarn", "yarn install --frozen-lockfile", "node -p 'require(\"shared-thing\")'"),
        ("ruby", "bundle install", "bundle exec ruby -e 'require \"shared-thing\"; puts SHARED'"),
    ],
)
async def test_a_task_has_its_dependencies(
    make: Make,
    managers_image: str,
    registry: Registry,
    tmp_path: Path,
    kind: str,
    step: str,
    use: str,
) -> None:
    repository = a_repository(tmp_path / "p", getattr(registry, kind))
    manager = make(image=managers_image)
    async with manager.open(a_task(repository)) as info:
        (installed,) = info.installed
        assert installed.step.command == step
        assert installed.ok, installed.output
        inside = ["exec", "-u", "agent", "-w", "/workspace/project", info.name]
        assert docker(*inside, "sh", "-c", use) == "genuine"
    assert registry.fetched() == 1


@pytest.fixture(scope="module")
def mamba_image() -> Iterator[str]:
    """With a stand-in for mamba, which is not to be had here: it notes what it is asked."""
    name = f"kakoi-test-mamba:{uuid.uuid4()}"
    stand_in = "printf '#!/bin/sh\\necho \"$PWD mamba $*\" >>/workspace/tmp/asked\\n'"
    text = f"FROM {PYTHON}\nUSER root\nRUN {stand_in} >/usr/local/bin/mamba"
    text += " && chmod 755 /usr/local/bin/mamba\n"
    docker("build", "--quiet", "--label", "kakoi.owner=test", "--tag", name, "-", stdin=text)
    yield name
    docker("image", "rm", name)


@pytest.mark.requirement("A-046")
@pytest.mark.slow("an image, and an environment")
@pytest.mark.parametrize("file", ["condaenv.yaml", "environment.yml"])
async def test_mamba_is_asked_for_the_environment_of_the_file_that_is_there(
    make: Make, mamba_image: str, tmp_path: Path, file: str
) -> None:
    repository = a_repository(tmp_path / "p", {file: "name: thing\ndependencies: [python]\n"})
    manager = make(image=mamba_image)
    async with manager.open(a_task(repository)) as info:
        (installed,) = info.installed
        assert (installed.step.command, installed.ok) == (f"mamba env create -f {file}", True)
        asked = docker("exec", info.name, "cat", "/workspace/tmp/asked")
        assert asked == f"/workspace/project mamba env create -f {file}"
