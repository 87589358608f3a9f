"""Every face with a workspace, a record and settings of its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi.background import background


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """Sandboxes are kept for a next command, which is not to be another test's."""
    yield
    background().release()


@pytest.fixture(autouse=True)
def own_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of whoever runs the tests is read or written."""
    monkeypatch.setenv("KAKOI_AUDIT_FILE", str(tmp_path / "audit.jsonl"))
    monkeypatch.setenv("KAKOI_SECURITY_FILE", str(tmp_path / "security.toml"))
    for name in ("KAKOI_LANG", "LC_ALL", "LC_MESSAGES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LANG", "C.UTF-8")


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to work in, which is the current one."""
    folder = tmp_path.resolve() / "workspace"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder
