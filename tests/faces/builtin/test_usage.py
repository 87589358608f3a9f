"""The basic usage of spec D, as it is written there; its agents are in tests/specs/examples."""

import subprocess
from pathlib import Path

import pytest

from kakoi.builtin import file_search, git_commit, git_push, shell
from kakoi.shell import SecurityError, TimeoutError


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ann Author")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ann@example.org")
    git("init", "-q", "-b", "main", ".")
    return workspace


@pytest.mark.anyio
@pytest.mark.requirement("D-034")
async def test_basic_use(repository: Path) -> None:
    (repository / "src").mkdir()
    (repository / "src" / "main.py").write_text("")
    (repository / "tests").mkdir()
    (repository / "tests" / "test_main.py").write_text("")
    git("init", "-q", "--bare", "hub.git")
    git("remote", "add", "origin", "./hub.git")  # A sandbox sees the workspace only.

    # Shell command execution
    output = await shell("ls -la")
    assert "src" in output

    # Git operations
    await git_commit("feat: add new feature", files=["src/main.py"])
    await git_push()

    # File operations
    files = await file_search("test", directory="./tests", file_type="*.py")
    assert files == ["./tests/test_main.py"]


@pytest.mark.anyio
@pytest.mark.usefixtures("workspace")
async def test_errors_are_caught_as_the_spec_catches_them() -> None:
    told = []
    for command in ("reboot", "git push"):
        try:
            await shell(command)
        except SecurityError as e:
            told.append(f"Security violation: {e}")
        except TimeoutError as e:
            told.append(f"Command timed out: {e}")
        except Exception as e:
            told.append(f"Execution failed: {e}")
    assert told[0].startswith("Security violation: Blocked command: reboot")
    assert told[1].startswith("Execution failed: Command failed: fatal: not a git repository")
