"""Every example runs as it is, without a network; and so do the usage examples of spec D."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kakoi.builtin import file_search, git_commit, git_push, shell
from kakoi.shell import SecurityError, TimeoutError

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run(example: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / example), *words],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "Ann Author")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "ann@example.org")
    git("init", "-q", "-b", "main", ".")
    git("init", "-q", "--bare", "../hub.git")
    git("remote", "add", "origin", "../hub.git")
    return workspace


def test_every_example_is_tried_here() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {
        "auto_pr.py",
        "code_review.py",
        "hello_agent.py",
        "project_setup.py",
    }


@pytest.mark.requirement("D-036", "D-028")
def test_auto_pr(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "bin" / "gh"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\ncat > /dev/null\necho https://example.org/pull/1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    (tmp_path / "security.toml").write_text(
        '[shell.sandbox]\ntype = "host"\nhost = {warnOnStart = false}\n'
    )
    (repository / "feature.py").write_text("x = 1\n")
    assert run("auto_pr.py", "search") == "✓ PR created: https://example.org/pull/1\n"
    assert git("-C", "../hub.git", "log", "-1", "--format=%s", "main") == "feat: implement search\n"
    assert run("auto_pr.py", "search") == "No changes to commit\n"


def test_code_review(repository: Path) -> None:
    (repository / "src").mkdir()
    (repository / "src" / "a.py").write_text("# TODO: name it\nprint(1)\n")
    git("add", ".")
    git("commit", "-qm", "first")
    (repository / "src" / "a.py").write_text("# TODO: name it\nprint(1)  \n")
    assert set(json.loads(run("code_review.py"))) == {"todos", "print_statements", "whitespace"}


def test_project_setup(workspace: Path) -> None:
    said = run("project_setup.py", "newborn")
    assert said.splitlines()[0] == "✓ mkdir newborn"
    assert git("-C", "newborn", "log", "-1", "--format=%an: %s") == "A Newcomer: Initial\n"
    assert (workspace / "newborn" / "pyproject.toml").read_text().startswith("[project]")


@pytest.mark.usefixtures("workspace")
def test_hello_agent() -> None:
    said = run("hello_agent.py")
    assert "Blocked command: sudo" in said
    assert said.endswith("$ cat hello\nHello, agent\n")
    assert len((EXAMPLES / "hello_agent.py").read_text().splitlines()) <= 30


# --- Spec D, as written ----------------------------------------------------------------------


def agent(model: str) -> Callable[[Any], Any]:
    """The decorator of the framework that spec D is written for: here a function stays itself."""
    return lambda function: function


@pytest.mark.anyio
@pytest.mark.requirement("D-034")
async def test_basic_use(repository: Path) -> None:
    (repository / "src").mkdir()
    (repository / "src" / "main.py").write_text("")
    (repository / "tests").mkdir()
    (repository / "tests" / "test_main.py").write_text("")
    git("remote", "set-url", "origin", "./hub.git")  # A sandbox sees the workspace only.
    git("init", "-q", "--bare", "hub.git")

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
@pytest.mark.requirement("D-036")
async def test_use_in_an_agent(repository: Path) -> None:
    git("remote", "set-url", "origin", "./hub.git")
    git("init", "-q", "--bare", "hub.git")
    (repository / "setup.cfg").write_text("")
    git("add", "setup.cfg")

    @agent(model="gpt-4o-mini")
    async def deploy_to_production(version: str) -> str:
        test_result = await shell("echo 3 passed")
        if "FAILED" in test_result:
            return "Tests failed, aborting deployment"
        await git_commit(f"chore: release v{version}")
        await shell(f"git tag v{version}")
        await git_push()
        await shell("git push --tags")
        return f"✓ Deployed v{version} to production"

    assert await deploy_to_production("1.0") == "✓ Deployed v1.0 to production"
    assert git("-C", "hub.git", "tag") == "v1.0\n"


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
