"""Fixtures for all tests."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.children import remember_children

# The same examples on every run: a red build must mean that the code changed, not the examples.
# `pytest --hypothesis-profile explore` searches for new ones.
settings.register_profile("steady", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None, max_examples=2000)
settings.load_profile("steady")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def earlier_children() -> None:
    """Ignore child processes that existed before the test."""
    remember_children()


@pytest.fixture
def own_temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A private folder for temporary files. Its path is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="kt-") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        monkeypatch.setenv("TMPDIR", folder)
        yield Path(folder)
