"""Fixtures for the tests of processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi.process import ProcessExecutor
from tests.process.trees import Witness, watching


@pytest.fixture
def executor() -> ProcessExecutor:
    return ProcessExecutor()


@pytest.fixture
def witness(tmp_path: Path) -> Iterator[Witness]:
    with watching(tmp_path) as witness:
        yield witness
