"""Attacks from inside, on every sandbox of this machine that claims to isolate files.

An attack script prints what it obtained. The test decides whether that is allowed.
"""

import textwrap
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from kakoi.backends.adapter import SandboxAdapter
from kakoi.backends.probes import new_mark
from kakoi.channel.api import Command
from kakoi.conformance.plugin import is_required, sandbox_names
from kakoi.conformance.sandbox_commands import reset
from kakoi.conformance.subjects import Subject, Traits, subject_named
from kakoi.results import ExecutionResult

PATIENCE_S = 60.0


@dataclass(frozen=True)
class Place:
    """A sandbox, its workspace on the host, and the path of the workspace inside."""

    sandbox: SandboxAdapter
    traits: Traits
    workspace: Path
    inside: str

    async def bash(self, text: str, **env: str) -> ExecutionResult:
        """Run the text with bash. The test checks the exit code."""
        command = Command(command=text, env=env, timeout_s=PATIENCE_S)
        return await self.sandbox.run(command)

    async def python(self, text: str, *words: str) -> list[str]:
        """Run a program to completion and return the lines that it prints."""
        argv = ["python3", "-I", "-c", textwrap.dedent(text), *words]
        result = await self.sandbox.run(Command(command=argv, timeout_s=PATIENCE_S))
        assert result.exit_code == 0, result
        return result.stdout.splitlines()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "place_name" in metafunc.fixturenames:
        metafunc.parametrize("place_name", _walls(metafunc.config), scope="session")


def _walls(config: pytest.Config) -> list[str]:
    """Return each isolating sandbox that has a Python for the attacks.

    Sandboxes with a container per command are left out: they isolate like those that stay.
    """
    names = [name for name in sandbox_names(config) if "-per-command" not in name]
    return [
        name
        for name in names
        if "busybox" not in name and subject_named(name).traits.isolates_files
    ]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def subject(place_name: str) -> Subject:
    return subject_named(place_name)


@pytest.fixture(scope="session")
async def shared_place(
    subject: Subject, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> AsyncIterator[Place]:
    """One sandbox for all attacks. None of them may break it."""
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
async def place(shared_place: Place) -> AsyncIterator[Place]:
    """The shared sandbox. What an attack leaves in the workspace is removed after it."""
    yield shared_place
    await reset(shared_place.sandbox, has_jobs=shared_place.traits.jobs)


@pytest.fixture
def mark() -> str:
    """A text that is unique on this machine, and also a time to sleep."""
    return new_mark()
