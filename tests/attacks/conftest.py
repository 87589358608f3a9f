"""Attacks from within, on every sandbox of this machine that claims to be a wall.

A script of an attack prints what it got; a test says what that may be.
"""

import textwrap
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kakoi.conformance.asking import new_mark
from kakoi.conformance.plugin import is_required, sandbox_names
from kakoi.conformance.subjects import Subject, Traits, subject_named
from kakoi.results import ExecutionResult
from kakoi.runner.commands import Command
from kakoi.sandbox.adapter import SandboxAdapter

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Place:
    """A sandbox, its workspace on this machine, and where commands see that."""

    sandbox: SandboxAdapter
    traits: Traits
    workspace: Path
    inside: str

    async def bash(self, text: str, **env: str) -> ExecutionResult:
        """Run the text as a shell would; whether it succeeds is for the test to say."""
        command = Command(command=text, env=env, timeout_s=PATIENCE_S)
        return await self.sandbox.run(command)

    async def python(self, text: str, *words: str) -> list[str]:
        """The lines that a program prints which runs to its end."""
        argv = ["python3", "-I", "-c", textwrap.dedent(text), *words]
        result = await self.sandbox.run(Command(command=argv, timeout_s=PATIENCE_S))
        assert result.exit_code == 0, result
        return result.stdout.splitlines()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place_name" in metafunc.fixturenames:
        metafunc.parametrize("place_name", _walls(metafunc.config), scope="module")


def _walls(config: pytest.Config) -> list[str]:
    """Each wall once, with a Python to attack it with; a container for each command has the same
    walls as one that stays."""
    names = [name for name in sandbox_names(config) if "-per-command" not in name]
    return [
        name
        for name in names
        if "busybox" not in name and subject_named(name).traits.isolates_files
    ]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def subject(place_name: str) -> Subject:
    return subject_named(place_name)


@pytest.fixture(scope="module")
async def place(
    subject: Subject, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> AsyncIterator[Place]:
    """One sandbox for the attacks of a module: none of them may ruin it."""
    workspace = tmp_path_factory.mktemp("attacked")
    sandbox = subject.make(workspace)
    try:
        found = await sandbox.availability()
        if not found:
            report = pytest.fail if is_required(pytestconfig, subject.name) else pytest.skip
            report(f"{subject.name} is not available: {found.reason}. {found.fix}")
        inside = await sandbox.run(Command(command="pwd -P", timeout_s=PATIENCE_S))
        yield Place(sandbox, subject.traits, workspace, inside.stdout.rstrip("\n"))
    finally:
        await sandbox.cleanup()


@pytest.fixture
def mark() -> str:
    """A text that is nowhere else on this machine, and a time to sleep."""
    return new_mark()
