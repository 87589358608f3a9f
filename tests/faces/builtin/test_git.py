"""The git functions on real repositories; first the seed tests of spec D under their names."""

import inspect
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kakoi._support.asyncio import background
from kakoi._support.text import short_repr
from kakoi.builtin import git_commit, git_create_pr, git_push, git_status
from kakoi.builtin.git import PROGRAMS, git_identity
from kakoi.builtin.shell import executor_for
from kakoi.errors import CommandFailedError, ConfigurationError, KakoiError, SecurityError

pytestmark = pytest.mark.anyio


def git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout


@pytest.fixture
def repository(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty repository in the current directory, and somebody who commits."""
    for name in ("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.setenv(name, "Ann Author")
    for name in ("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"):
        monkeypatch.setenv(name, "ann@example.org")
    git("init", "-q", "-b", "main", ".")
    return workspace


@pytest.mark.requirement("D-051", "D-027")
@pytest.mark.usefixtures("repository")
async def test_git_status() -> None:
    status = await git_status()
    assert isinstance(status, str)
    assert "On branch main" in status


@pytest.mark.requirement("D-051", "D-025", "D-024")
async def test_git_commit(repository: Path) -> None:
    (repository / "a").write_text("a")
    (repository / "b").write_text("b")

    result = await git_commit("test commit", all=True)
    assert "test commit" in result
    assert git("show", "--stat", "--format=%an <%ae> %s").split("\n")[0] == (
        "Ann Author <ann@example.org> test commit"
    )
    assert git("ls-files").split() == ["a", "b"]


@pytest.mark.requirement("D-024")
async def test_only_the_named_files_are_committed(repository: Path) -> None:
    for name in ("one", "two; ls", "-three", "o*", ":(top)"):
        (repository / name).write_text(name)
    await git_commit("some", files=["two; ls", "-three", "o*", ":(top)"])
    assert git("ls-files").splitlines() == ["-three", ":(top)", "o*", "two; ls"]
    assert "?? one" in git("status", "--short")


async def test_what_is_staged_is_committed_without_being_named(repository: Path) -> None:
    (repository / "a").write_text("a")
    git("add", "a")
    await git_commit("staged")
    assert git("ls-files").split() == ["a"]
    with pytest.raises(CommandFailedError, match="nothing to commit"):
        await git_commit("again")


MESSAGES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=300
).filter(lambda text: text.strip())


@pytest.mark.requirement("D-030", "Y-11")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(message=MESSAGES)
def test_any_message_comes_back_as_it_was(repository: Path, message: str) -> None:
    (repository / "file").write_bytes(os.urandom(8))
    background().run(git_commit(message, all=True))
    raw = subprocess.run(["git", "log", "-1", "--format=%B"], capture_output=True, check=True)
    assert raw.stdout in (message.encode() + b"\n", message.encode())  # Git ends the last line.


@pytest.mark.requirement("D-030")
@pytest.mark.parametrize(
    "message", ['"; touch marker; "', "$(touch marker)", "`touch marker`", "-m other", "# text"]
)
async def test_a_message_is_never_run(repository: Path, message: str) -> None:
    (repository / "a").write_text("a")
    await git_commit(message, all=True)
    assert git("log", "-1", "--format=%B").rstrip("\n") == message
    assert not (repository / "marker").exists()


@pytest.mark.requirement("D-026", "X-10")
async def test_a_push_arrives(repository: Path) -> None:
    git("init", "-q", "--bare", "hub.git")
    git("remote", "add", "origin", "./hub.git")
    (repository / "a").write_text("a")
    await git_commit("first", files=["a"])
    assert "main" in await git_push()
    defaults = [each.default for each in inspect.signature(git_push).parameters.values()]
    assert defaults == ["origin", None]
    git("branch", "topic")
    git("init", "-q", "--bare", "other.git")
    git("remote", "add", "other", "./other.git")
    await git_push("other", "topic")
    assert git("-C", "other.git", "branch", "--format=%(refname:short)").split() == ["topic"]
    await git_push("origin", "topic")
    assert git("-C", "hub.git", "branch", "--format=%(refname:short)").split() == ["main", "topic"]


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("remote", "branch"),
    [
        *(("--receive-pack=ls", None), ("ext::sh -c ls", None), ("", None)),
        *(("origin", "--force"), ("origin", "+main"), ("origin", ":main"), ("origin", "a:main")),
        *(("origin", "refs/heads/*"), ("origin", "")),
    ],
)
async def test_remote_and_branch_are_names_and_nothing_else(
    remote: str, branch: str | None
) -> None:
    with pytest.raises(ConfigurationError):
        await git_push(remote, branch)


@pytest.mark.requirement("D-029", "Y-10")
@pytest.mark.usefixtures("workspace")
def test_git_functions_run_git_and_gh_and_nothing_else() -> None:
    executor = executor_for(programs=PROGRAMS)
    assert executor.validate_command("git status")
    assert executor.validate_command("gh pr list")
    for command in ("ls", "git status; ls", "git -c core.pager=ls log"):
        with pytest.raises(SecurityError):
            executor.validate_command(command)


@pytest.mark.requirement("D-028", "D-030")
async def test_a_pull_request_is_opened_by_gh(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for `gh`, which needs an account: it writes down what it was given."""
    told = tmp_path / "bin"
    program = told / "gh"
    program.parent.mkdir()
    script = f"""#!/bin/sh
printf "%s\\n" "$@" >{told}/given
cat >{told}/body
pwd >{told}/place
env >{told}/env
echo https://example.org/pull/7
"""
    program.write_text(script)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    monkeypatch.setenv("GH_TOKEN", "for-github-com")
    monkeypatch.setenv("GH_ENTERPRISE_TOKEN", "for-another-host")
    git("remote", "add", "origin", "git@github.com:team/project.git")
    title, body = 'It\'s "done" $(ls); `id`', "First.\n\n--base=evil\n$(touch marker)\n"

    said = await git_create_pr(title, body, base="develop")

    assert said == "https://example.org/pull/7\n"
    assert inspect.signature(git_create_pr).parameters["base"].default == "main"
    assert (told / "given").read_text().splitlines() == [
        "pr",
        "create",
        f"--title={title}",
        "--body-file=-",
        "--base=develop",
        "--head=main",
        "--repo=github.com/team/project",
    ]
    assert (told / "body").read_text() == body
    assert not (repository / "marker").exists()
    assert (told / "place").read_text() == "/\n"
    environ = (told / "env").read_text().splitlines()
    assert "GH_TOKEN=for-github-com" in environ
    assert not [line for line in environ if "for-another-host" in line]
    recorded = (tmp_path / "audit.jsonl").read_text()
    assert "gh pr create" in recorded


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize("address", ["/srv/hub.git", "https://example.org/", "ext::sh -c id"])
async def test_a_pull_request_needs_a_repository_on_a_server(address: str) -> None:
    git("remote", "add", "origin", address)
    with pytest.raises(ConfigurationError):
        await git_create_pr("title", "body")


@pytest.mark.usefixtures("repository")
async def test_without_gh_the_error_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    git("remote", "add", "origin", "https://github.com/team/project.git")
    with pytest.raises(KakoiError, match="gh"):
        await git_create_pr("title", "body")


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    "nonsense", [None, 3, b"x", "", "a\0b", "\ud800", ["x"], 10**5000], ids=short_repr
)
async def test_nonsense_is_told_so(nonsense: object) -> None:
    given: Any = nonsense
    for call in (
        git_commit(given),
        git_commit("message", files=[given]),
        git_push(given),
        git_create_pr(given, "body"),
        git_create_pr("title", "body", given),
    ):
        with pytest.raises(KakoiError):
            await call


def test_who_commits_is_who_git_knows(tmp_path: Path) -> None:
    (tmp_path / ".gitconfig").write_text(
        '[core]\n name = no\n[user]\n\tname = Bea "B" Builder\n email = bea@example.org\n[x]\n'
    )
    home = {"HOME": str(tmp_path)}
    assert git_identity(home)["GIT_AUTHOR_NAME"].startswith("Bea")
    assert git_identity(home)["GIT_COMMITTER_EMAIL"] == "bea@example.org"
    assert git_identity(home | {"GIT_AUTHOR_NAME": "C"})["GIT_AUTHOR_NAME"] == "C"
    (tmp_path / ".gitconfig").write_bytes(b"\xff\0[user]\nname = \x1b[2J\n")
    assert git_identity(home) == {}
    assert git_identity({"HOME": "/no/such"}) == {}
