"""Git inside a sandbox knows the user's name, email address and harmless settings; nothing else."""

import os
import subprocess
from pathlib import Path

import pytest

from kakoi import Sandbox
from kakoi.sandbox.git_settings import git_settings, git_settings_file
from tests.cli.conftest import has_bubblewrap, has_image, need
from tests.cli.forked import kakoi

SETTINGS = """\
# Mine.
[user]
\tname = Bea \\"B\\" "  Builder" ; a remark
\temail = bea@example.org
\tsigningKey = SECRET
[INIT] defaultBranch = trunk
[core]
\tautocrlf
\twhitespace = "tab-in-indent "
\thooksPath = /evil
\teditor = evil
\tsshCommand = evil
[alias]
\tst = !evil
[credential "https://example.org"]
\thelper = !evil
[user "other"]
\tname = Nobody
[include]
\tpath = /evil
[url "https://token@example.org/"]
\tinsteadOf = https://example.org/
[pull]
\trebase = \\
true
"""
SEEN = {
    "user.name": 'Bea "B"   Builder',
    "user.email": "bea@example.org",
    "init.defaultbranch": "trunk",
    "core.autocrlf": "true",
    "core.whitespace": "tab-in-indent ",
    "pull.rebase": "true",
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path.resolve() / "home"
    folder.mkdir()
    (folder / ".gitconfig").write_text(SETTINGS)
    for name in ("GIT_CONFIG_GLOBAL", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder))
    return folder


@pytest.fixture
def repository(tmp_path: Path, home: Path) -> Path:
    folder = tmp_path.resolve() / "repository"
    environ = {"PATH": os.environ["PATH"], "HOME": "/nowhere"}
    subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], env=environ, check=True)
    return folder


def test_only_harmless_settings_are_taken_and_they_mean_the_same_to_git(home: Path) -> None:
    assert git_settings({"HOME": str(home)}) == SEEN
    written = home / "written"
    written.write_bytes(git_settings_file({"HOME": str(home)}))
    for file, names in ((written, None), (home / ".gitconfig", SEEN)):
        listed = subprocess.run(
            ["git", "config", "--file", str(file), "--no-includes", "--list"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        pairs = dict((line.split("=", 1) + ["true"])[:2] for line in listed.splitlines())
        assert {key: value for key, value in pairs.items() if not names or key in names} == SEEN


def test_the_later_file_and_the_later_line_win_and_a_named_file_replaces_both(home: Path) -> None:
    (home / ".config" / "git").mkdir(parents=True)
    (home / ".config" / "git" / "config").write_text("[user]\nname = X\n[pull]\nff = only\n")
    (home / ".gitconfig").write_text("[user]\nname = A\nname = B\n")
    assert git_settings({"HOME": str(home)}) == {"user.name": "B", "pull.ff": "only"}
    (home / "named").write_text("[user]\nemail = c@example.org\n")
    named = {"HOME": str(home), "GIT_CONFIG_GLOBAL": str(home / "named")}
    assert git_settings(named) == {"user.email": "c@example.org"}
    os.mkfifo(home / "pipe")
    assert git_settings_file({"GIT_CONFIG_GLOBAL": str(home / "pipe")}) == b""


# Some images trust their workspace, whoever owns it.
LIST = "git config --list --show-scope | grep -v -e '^local' -e safe.directory | cut -f2 | sort"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("backend", "image"), [("bubblewrap", None), ("docker", "kakoi-test:base")]
)
async def test_a_commit_in_a_sandbox_is_the_users(
    backend: str, image: str | None, repository: Path, tmp_path: Path
) -> None:
    is_there = has_bubblewrap() if image is None else has_image(image)
    need(backend, is_there=is_there)
    async with Sandbox(
        backend, workspace=repository, image=image, policy="open", audit=tmp_path / "audit.jsonl"
    ) as box:
        await box.run("echo 1 > a && git add a && git commit -qm first", check=True)
        author = await box.run(["git", "log", "-1", "--format=%an <%ae>"], check=True)
        assert author.stdout == f"{SEEN['user.name']} <bea@example.org>\n"
        listed = (await box.run(LIST, check=True)).stdout.splitlines()
        assert listed == sorted(f"{key}={value}" for key, value in SEEN.items())
        await box.run("git config user.name Cleo && git commit -q --allow-empty -m x", check=True)
        author = await box.run(["git", "log", "-1", "--format=%an"], check=True)
        assert author.stdout == "Cleo\n"  # The repository's own settings take precedence.


@pytest.mark.anyio
async def test_a_private_workspace_does_not_know_the_user(home: Path, tmp_path: Path) -> None:
    need("bubblewrap", is_there=has_bubblewrap())
    async with Sandbox("bubblewrap", policy="open", audit=tmp_path / "audit.jsonl") as box:
        assert (await box.run("git config --list")).stdout == ""
        assert (await box.run("ls /etc/gitconfig")).exit_code == 2


def test_kakoi_run_commits_as_the_user(home: Path, repository: Path, tmp_path: Path) -> None:
    need("bubblewrap", is_there=has_bubblewrap())
    (tmp_path / "config.yaml").write_text("{}\n")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "KAKOI_CONFIG": str(tmp_path / "config.yaml"),
        "KAKOI_AUDIT_FILE": str(tmp_path / "audit.jsonl"),
        "KAKOI_SANDBOX": "bubblewrap",
    }
    command = "git commit -q --allow-empty -m first && git log -1 --format='%ae %s'"
    words = ("run", "--yes", command)
    done = kakoi(*words, cwd=repository, env=environ, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "bea@example.org first\n"), done.stderr
