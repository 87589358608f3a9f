"""Every face with its own workspace, audit log and settings."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi._support.asyncio import background


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """Close the sandboxes that are kept for reuse, so that no other test gets them."""
    yield
    background().release()


@pytest.fixture(autouse=True)
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the tests from reading or writing the files of the user who runs them."""
    monkeypatch.setenv("KAKOI_AUDIT_FILE", str(tmp_path / "audit.jsonl"))
    (tmp_path / "security.toml").touch()
    monkeypatch.setenv("KAKOI_SECURITY_FILE", str(tmp_path / "security.toml"))
    for name in ("KAKOI_LANG", "LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C.UTF-8")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, which is also the current directory."""
    folder = tmp_path.resolve() / "workspace"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
