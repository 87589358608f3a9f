"""Executors with their own directory and audit log."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kakoi.bash_executor import CommandExecutor, create_executor
from tests.cli.conftest import has_bubblewrap, need

Configure = Callable[..., Path]
Create = Callable[..., CommandExecutor]


@pytest.fixture(autouse=True)
def audit_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "audit" / "log.jsonl"
    monkeypatch.setenv("KAKOI_AUDIT_FILE", str(file))
    return file


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The directory of the commands, without symbolic links."""
    directory = Path(os.path.realpath(tmp_path)) / "root"
    directory.mkdir()
    return directory


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    """A function that writes a configuration from its sections."""

    def write(**sections: Any) -> Path:
        file = tmp_path / "config.yaml"
        file.write_text(yaml.safe_dump(sections), "utf-8")
        return file

    return write


@pytest.fixture
def create(root: Path, configure: Configure) -> Iterator[Create]:
    """A function that creates executors, in bubblewrap by default. The fixture closes them."""
    made: list[CommandExecutor] = []

    def make(
        *, security: Any = None, logging: Any = None, sandbox: Any = "bubblewrap", **settings: Any
    ) -> CommandExecutor:
        if sandbox == "bubblewrap":
            need("bubblewrap", is_there=has_bubblewrap())
        given = {"root_dir": str(root), "sandbox": sandbox, **settings}
        file = configure(executor=given, security=security or {}, logging=logging or {})
        made.append(create_executor(file))
        return made[-1]

    yield make
    for executor in made:
        executor.close()


@pytest.fixture
def executor(create: Create) -> CommandExecutor:
    return create()
