"""Which commands install what a project depends on, from the files at its top (spec A 5.3).

Where there is a lock file, it wins. Of several kinds of projects in one, each gets its own.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Step:
    """One command, and the file it is for. `before`: what has to be there first; it may fail."""

    file: str
    command: str
    before: str = ""


# Debian's own Python takes no packages. Where an image looks for programs in a folder of the
# user's, as ours does, that is where they go.
_VENV: Final = (
    'case ":$PATH:" in *":$HOME/.venv/bin:"*) '
    'test -e "$HOME/.venv/pyvenv.cfg" || python3 -m venv "$HOME/.venv";; esac'
)


# For each kind of project, the most certain first: the first file that is there decides.
_KINDS: Final[tuple[tuple[tuple[str, str], ...], ...]] = (
    (
        ("pnpm-lock.yaml", "pnpm install --frozen-lockfile"),
        ("bun.lock", "bun install --frozen-lockfile"),
        ("bun.lockb", "bun install --frozen-lockfile"),
        ("yarn.lock", "yarn install --frozen-lockfile"),
        ("npm-shrinkwrap.json", "npm ci"),
        ("package-lock.json", "npm ci"),
        ("package.json", "npm install"),
    ),
    (
        ("uv.lock", "uv sync --frozen"),
        ("poetry.lock", "poetry install --no-interaction"),
        ("pdm.lock", "pdm install --frozen-lockfile"),
        ("Pipfile.lock", "pipenv sync --dev"),
        ("requirements.txt", "pip install -r requirements.txt"),
        ("pyproject.toml", "pip install -e ."),
        ("setup.py", "pip install -e ."),
    ),
    (
        ("condaenv.yaml", "mamba env create -f condaenv.yaml"),
        ("environment.yml", "mamba env create -f environment.yml"),
    ),
    (("go.mod", "go mod download"),),
    (("Cargo.lock", "cargo fetch --locked"), ("Cargo.toml", "cargo fetch")),
    (("pom.xml", "mvn --batch-mode dependency:resolve"),),
    (
        ("build.gradle", "gradle --no-daemon dependencies"),
        ("build.gradle.kts", "gradle --no-daemon dependencies"),
    ),
    (("Gemfile", "bundle install"),),
    (("composer.json", "composer install --no-interaction --no-scripts"),),
)
# A lock file alone is no project: it belongs to one of these.
_NEEDS: Final = {
    "pnpm-lock.yaml": "package.json",
    "bun.lock": "package.json",
    "bun.lockb": "package.json",
    "yarn.lock": "package.json",
    "npm-shrinkwrap.json": "package.json",
    "package-lock.json": "package.json",
    "uv.lock": "pyproject.toml",
    "poetry.lock": "pyproject.toml",
    "pdm.lock": "pyproject.toml",
    "Cargo.lock": "Cargo.toml",
}


def steps_for(files: Collection[str]) -> list[Step]:
    """What to run for a project with these files at its top; nothing if it depends on nothing."""
    steps = []
    for kind in _KINDS:
        for file, command in kind:
            if file in files and _NEEDS.get(file, file) in files:
                steps.append(Step(file, command, _VENV if command.startswith("pip ") else ""))
                break
    return steps
