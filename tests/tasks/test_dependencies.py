"""Which commands install what a project depends on."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.tasks.dependencies import install_steps

ONE = [
    ("package.json", "npm install"),
    ("package.json yarn.lock", "yarn install --frozen-lockfile"),
    ("package.json package-lock.json", "npm ci"),
    ("package.json npm-shrinkwrap.json", "npm ci"),
    ("package.json pnpm-lock.yaml yarn.lock", "pnpm install --frozen-lockfile"),
    ("package.json bun.lock", "bun install --frozen-lockfile"),
    ("package.json bun.lockb", "bun install --frozen-lockfile"),
    ("requirements.txt", "pip install -r requirements.txt"),
    ("requirements.txt pyproject.toml", "pip install -r requirements.txt"),
    ("pyproject.toml", "pip install -e ."),
    ("setup.py", "pip install -e ."),
    ("pyproject.toml setup.py", "pip install -e ."),
    ("pyproject.toml uv.lock requirements.txt", "uv sync --frozen"),
    ("pyproject.toml poetry.lock", "poetry install --no-interaction"),
    ("pyproject.toml pdm.lock", "pdm install --frozen-lockfile"),
    ("Pipfile.lock", "pipenv sync --dev"),
    ("condaenv.yaml", "mamba env create -f condaenv.yaml"),
    ("environment.yml", "mamba env create -f environment.yml"),
    ("go.mod", "go mod download"),
    ("pom.xml", "mvn --batch-mode dependency:resolve"),
    ("Gemfile", "bundle install"),
    ("Cargo.toml", "cargo fetch"),
    ("Cargo.toml Cargo.lock", "cargo fetch --locked"),
    ("build.gradle.kts", "gradle --no-daemon dependencies"),
    ("composer.json", "composer install --no-interaction --no-scripts"),
]  # fmt: skip


@pytest.mark.requirement("A-044", "A-045", "A-046", "A-047")
@pytest.mark.parametrize(("files", "command"), ONE)
def test_the_most_certain_file_of_a_project_decides(files: str, command: str) -> None:
    assert [step.command for step in install_steps(["README.md", *files.split()])] == [command]


@pytest.mark.requirement("A-047")
def test_a_project_of_several_kinds_has_several_steps_and_one_of_none_has_none() -> None:
    found = install_steps(["go.mod", "package.json", "requirements.txt", "environment.yml"])
    assert [step.file for step in found] == [
        "package.json",
        "requirements.txt",
        "environment.yml",
        "go.mod",
    ]
    assert install_steps([]) == []
    assert install_steps(["README.md", "src", "requirements.txt.bak"]) == []


@pytest.mark.parametrize("lock", ["yarn.lock", "uv.lock", "Cargo.lock", "package-lock.json"])
def test_a_lock_file_without_its_project_is_passed_over(lock: str) -> None:
    assert install_steps([lock]) == []


FILES = sorted({word for files, _ in ONE for word in files.split()})


@given(st.lists(st.sampled_from(FILES)))
def test_each_step_is_for_a_file_that_is_there_and_names_no_other(files: list[str]) -> None:
    for step in install_steps(files):
        assert step.file in files
        named = [word for word in step.command.split() if "." in word and word not in (".", "-e")]
        assert named in ([], [step.file])


@pytest.mark.parametrize("on_path", [True, False])
@pytest.mark.slow("a virtual environment is made, and a package installed")
def test_packages_of_python_go_to_a_folder_of_the_user_if_programs_are_looked_for_there(
    tmp_path: Path, on_path: bool
) -> None:
    (step,) = install_steps(["requirements.txt"])
    path = os.environ["PATH"] + (f":{tmp_path}/.venv/bin" if on_path else "")
    for _ in range(2):  # The second time it is there.
        env = {"PATH": path, "HOME": str(tmp_path)}
        subprocess.run(["sh", "-ec", step.before], env=env, check=True, timeout=60)
    assert (tmp_path / ".venv" / "pyvenv.cfg").exists() is on_path
    assert [each.before for each in install_steps(["go.mod", "package.json"])] == ["", ""]
