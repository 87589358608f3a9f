"""The agents and the basic use of spec D, confined, as the programs that a user runs.

`pytest`, `uv`, `pyright` and `gh` are stand-ins in /usr/local/bin of a mount namespace: they need
a network, an account or an environment. Git is real, and so is its server, which wants a password.
"""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.backends.boxes import needs_root, require_bubblewrap
from tests.git_http import SECRET, USER, GitServer, git_server

pytestmark = [needs_root, pytest.mark.requirement("D-036")]
EXAMPLES = Path(__file__).with_name("examples") / "shell_integration"
WAIT_S = 120.0
# The lists of the spec have neither a type checker nor a script of the project.
SECURITY = """\
[shell]
allowed_commands = ["git", "mkdir", "cd", "ls", "find", "grep", "pytest", "uv", "pyright",
                    "./scripts/deploy.sh"]
"""
STAND_INS = {
    "pytest": "echo 1 passed",
    "uv": 'echo "$@" >> uv.log',
    "pyright": "echo 1 error; exit 0",
    "gh": 'cat >"$HOME/pr.txt"; echo "$@" >"$HOME/gh.txt"; echo https://example.org/pull/1',
}
ONE = """
import asyncio, importlib, sys
found = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
print(repr(asyncio.run(found(*sys.argv[3:]))))
"""
TOP_LEVEL = """
import ast, asyncio, sys, types
code = compile(open(sys.argv[1]).read(), sys.argv[1], "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
asyncio.run(types.FunctionType(code, {"__name__": "__main__"})())
"""


@dataclass(frozen=True)
class Project:
    """A repository of a user with an identity, a password for the server and the programs."""

    home: Path
    server: GitServer

    @property
    def folder(self) -> Path:
        return self.home / "projects" / "mine"

    def git(self, *words: str) -> str:
        argv = ["git", "-C", str(self.folder), *words]
        done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=WAIT_S)
        return done.stdout

    def python(self, program: str, *words: str) -> str:
        """Run a program as the user does; return what it printed."""
        own = [f"HOME={self.home}", f"KAKOI_AUDIT_FILE={self.home}/audit.jsonl", "LANG=C.UTF-8"]
        mount = f'mount --bind {self.home}/programs /usr/local/bin; exec "$@"'
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec", mount, "sh"]
            + ["env", "-i", "PATH=/usr/local/bin:/usr/bin:/bin", f"PYTHONPATH={EXAMPLES}", *own]
            + [sys.executable, "-c", program, *words],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def agent(self, module: str, name: str, *arguments: str) -> object:
        """Call an agent of the spec; return what it returned."""
        return ast.literal_eval(self.python(ONE, module, name, *arguments).splitlines()[-1])


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    require_bubblewrap()
    home = tmp_path.resolve() / "home"
    with git_server(tmp_path / "srv") as server:
        found = Project(home, server)
        found.folder.mkdir(parents=True)
        (home / "programs").mkdir()
        for name, script in STAND_INS.items():
            (home / "programs" / name).write_text(f"#!/bin/sh\n{script}\n")
            (home / "programs" / name).chmod(0o755)
        (home / ".kagura").mkdir()
        (home / ".kagura" / "security.toml").write_text(SECURITY)
        (home / ".gitconfig").write_text(
            "[user]\nname = Ann Author\nemail = ann@example.org\n[credential]\nhelper = store\n"
        )
        (home / ".git-credentials").write_text(f"http://{USER}:{SECRET}@{server.host}\n")
        yield found
        shutil.rmtree(home / "programs")


@pytest.fixture
def hub(project: Project) -> str:
    """The name of the remote repository of the project, on the server."""
    project.git("init", "-q", "-b", "main")
    project.git("remote", "add", "origin", project.server.make("team/mine.git"))
    return "team/mine.git"


@pytest.mark.requirement("D-034", "D-022", "D-026", "D-031")
@pytest.mark.slow("each command opens a sandbox")
def test_the_basic_use(project: Project, hub: str) -> None:
    for name in ("src/main.py", "tests/test_main.py"):
        (project.folder / name).parent.mkdir()
        (project.folder / name).write_text("")
    out = project.python(TOP_LEVEL, str(EXAMPLES / "basic.py"))
    assert "src" in out
    assert out.splitlines()[-1] == "['./tests/test_main.py']"
    assert project.server.log(hub) == "Ann Author feat: add new feature\n"


@pytest.mark.slow("each command opens a sandbox")
def test_a_version_is_tested_built_tagged_pushed_and_deployed(project: Project, hub: str) -> None:
    script = project.folder / "scripts" / "deploy.sh"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\necho "$1" > deployed\n')
    script.chmod(0o755)
    project.git("add", "scripts")
    told = project.agent("deploy", "deploy_to_production", "1.0")
    assert told == "✓ Deployed v1.0 to production"
    assert project.server.log(hub, "v1.0") == "Ann Author chore: release v1.0\n"
    assert (project.folder / "uv.log").read_text() == "build\n"
    assert (project.folder / "deployed").read_text() == "1.0\n"


@pytest.mark.requirement("D-028")
@pytest.mark.slow("each command opens a sandbox")
def test_a_feature_becomes_a_commit_and_a_pull_request(project: Project, hub: str) -> None:
    (project.folder / "found.py").write_text("")
    project.git("add", "found.py")
    told = project.agent("auto_pr", "auto_pr", "search")
    assert told == "✓ PR created: https://example.org/pull/1\n"
    assert project.server.log(hub) == "Ann Author feat: implement search\n"
    assert (project.home / "pr.txt").read_text().startswith("This PR implements search\n\nAuto-gen")
    assert f"--head=main --repo={project.server.host}/team/mine" in (
        (project.home / "gh.txt").read_text()
    )
    assert project.agent("auto_pr", "auto_pr", "search") == "No changes to commit"


def test_a_review_finds_remarks_prints_and_type_errors(project: Project) -> None:
    (project.folder / "src").mkdir()
    (project.folder / "src" / "a.py").write_text("# TODO: name it\nprint(1)\n")
    assert project.agent("code_review", "code_review_checklist") == {
        "todos": {"src/a.py": ["1:# TODO: name it"]},
        "print_statements": {"src/a.py": ["2:print(1)"]},
        "type_errors": "1 error\n",
    }


def test_a_project_is_set_up_and_committed(project: Project) -> None:
    report = project.agent("project_setup", "setup_python_project", "robot")
    assert isinstance(report, str)
    assert report.splitlines()[0] == "✓ mkdir robot"
    assert len(report.splitlines()) == 8
    assert (project.folder / "uv.log").read_text() == "init\nadd pytest pyright ruff\n"
    assert project.git("log", "-1", "--format=%an %s") == "Ann Author Initial commit\n"


@pytest.mark.requirement("D-051", "D-024", "D-025", "D-027")
def test_the_integration_tests_of_the_spec_pass(project: Project, tmp_path: Path) -> None:
    argv = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*argv, "--rootdir", str(EXAMPLES), str(EXAMPLES / "git_test.py")],
        env={
            "PATH": os.environ["PATH"],
            "HOME": str(project.home),
            "KAKOI_AUDIT_FILE": str(tmp_path / "audit.jsonl"),
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=WAIT_S,
    )
    assert (done.returncode, "2 passed" in done.stdout) == (0, True), done.stdout
