"""The usage examples and test snippets of the specs, run as a user runs them.

The files in `examples/` are the specs' own text; a comment in each says what had to change, and why.
"""

import ast
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).with_name("examples")
REFUSED = 126


@dataclass(frozen=True)
class User:
    """Somebody with a home of their own, in a project with the files of one spec."""

    home: Path
    spec: str

    @property
    def project(self) -> Path:
        return self.home / "projects" / self.spec

    def run(self, *argv: str, cwd: Path | None = None, **env: str) -> tuple[int, str, str]:
        own = {"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
        done = subprocess.run(
            [sys.executable, *argv],
            cwd=cwd or self.project,
            env={**own, "KAKOI_AUDIT_FILE": str(self.home / "audit.jsonl"), **env},
            capture_output=True,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout, done.stderr

    def kakoi(self, *arguments: str, cwd: Path | None = None) -> tuple[int, str, str]:
        return self.run("-m", "kakoi", *arguments, cwd=cwd)

    def pytest(self, name: str) -> tuple[int, str]:
        status, out, err = self.run("-m", "pytest", "-q", "-c", os.devnull, "--rootdir=.", name)
        return status, out + err


@pytest.fixture
def user(request: pytest.FixtureRequest, tmp_path: Path) -> User:
    made = User(tmp_path.resolve(), request.param)
    shutil.copytree(EXAMPLES / request.param, made.project)
    return made


def of(spec: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("user", [spec], indirect=True)


# --- B ---------------------------------------------------------------------------------------


@of("sandbox_layer")
@pytest.mark.requirement("B-043", "B-046")
def test_the_orchestrators_file_is_found_in_the_project_and_only_tightens(user: User) -> None:
    status, out, err = user.kakoi("config", "show", "--origin")
    assert status == 0
    lines = {line.split(": ")[0]: line for line in out.splitlines()}
    assert lines["sandbox.type"].startswith("sandbox.type: docker")
    assert lines["sandbox.type"].endswith("orch.yml:4")
    assert "orch.yml" not in lines["sandbox.fallback"]
    assert "ignored `sandbox.fallback`, `sandbox.container_use.image`" in err
    assert "orch.yml" in user.kakoi("config", "path")[1]


@of("sandbox_layer")
@pytest.mark.requirement("B-049", "B-050", "B-051")
def test_the_errors_are_made_and_worded_as_the_spec_has_them(user: User) -> None:
    status, out, err = user.run("errors.py", KAKOI_LANG="ja")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "サンドボックス環境が利用できません: docker ENVIRONMENT_UNAVAILABLE "
        "{'environmentType': 'docker'}",
        "実行がタイムアウトしました: 5000ms EXECUTION_TIMEOUT {'timeout': 5000}",
        "Dockerイメージの取得に失敗しました: node:20-alpine IMAGE_PULL_FAILED "
        "{'image': 'node:20-alpine', 'stderr': 'no such image'}",
    ]


@of("sandbox_layer")
@pytest.mark.requirement("B-010", "B-014")
def test_the_test_cases_of_the_sandbox_layer_pass(user: User) -> None:
    status, said = user.pytest("adapters_test.py")
    assert (status, "13 passed" in said) == (0, True), said


# --- C ---------------------------------------------------------------------------------------


@of("bash_executor")
@pytest.mark.requirement("C-002", "C-028")
def test_the_basic_use_of_the_bash_executor(user: User) -> None:
    status, out, err = user.run("basic.py")
    assert (status, "agent.py" in out) == (0, True), err
    assert " - INFO - " in err


@of("bash_executor")
@pytest.mark.requirement("C-031")
def test_an_agent_with_the_bash_executor(user: User) -> None:
    program = "from agent import AIAgent; a = AIAgent(); print([a.run_command(c) for c in {}])"
    commands = ["echo hi", "echo `id`", "curl x"]
    status, out, err = user.run("-c", program.format(commands))
    assert status == 0, err
    ran, blocked, unlisted = ast.literal_eval(out)
    assert (ran["stdout"], ran["exit_code"]) == ("hi\n", "0")
    assert list(blocked) == list(unlisted) == ["error"]


# --- D, security -----------------------------------------------------------------------------


@of("shell_integration")
@pytest.mark.requirement("D-039", "D-041", "D-047")
def test_the_security_file_where_the_spec_puts_it_holds_for_a_command_that_is_typed(
    user: User,
) -> None:
    (user.home / ".kagura").mkdir()
    (user.project / "security.toml").rename(user.home / ".kagura" / "security.toml")
    run = ("run", "--sandbox", "host", "--profile", "shell")
    status, out, _ = user.kakoi(*run, "--yes", "ls")
    assert (status, "shell_test.py" in out) == (0, True)
    for arguments, cwd, why in (
        (["ls"], None, "every command needs the user's approval"),
        (["--yes", "echo hi"], None, "not on the list"),
        (["--yes", "sudo ls"], None, "sudo"),
        (["--yes", "ls"], user.home, "not in an allowed directory"),
    ):
        status, out, err = user.kakoi(*run, *arguments, cwd=cwd)
        assert (status, out) == (REFUSED, "")
        assert why in err


@of("shell_integration")
@pytest.mark.requirement("D-001", "D-040")
def test_the_error_handling_of_the_spec(user: User) -> None:
    shutil.rmtree(user.home / ".kagura", ignore_errors=True)
    file = user.project / "security.toml"
    off = file.read_text().replace("enabled = true", "enabled = false")
    file.unlink()
    status, out, _ = user.run("error_handling.py")
    assert (status, out[:34]) == (0, "Execution failed: Command failed: ")
    (user.home / ".kagura").mkdir()
    (user.home / ".kagura" / "security.toml").write_text(off)
    status, out, _ = user.run("error_handling.py")
    assert status == 0
    assert out.startswith("Security violation: ")


@of("shell_integration")
@pytest.mark.requirement("D-050", "Y-14")
def test_the_unit_tests_of_the_spec_pass(user: User) -> None:
    status, said = user.pytest("shell_test.py")
    assert (status, "3 passed" in said) == (0, True), said


@of("sandbox_layer")
@pytest.mark.requirement("B-025", "B-029", "B-031", "B-043", "B-045")
def test_the_schema_of_the_sandbox_layer_has_the_defaults_of_the_spec(user: User) -> None:
    status, out, err = user.run("schema.py")
    assert (status, err) == (0, "")
    assert len(out.splitlines()) == 4


@of("shell_integration")
@pytest.mark.requirement("D-042")
def test_the_shell_is_turned_on_and_off_by_the_features_of_the_file(user: User) -> None:
    place = user.home / ".kagura" / "security.toml"
    place.parent.mkdir()
    on = (user.project / "features.toml").read_text("utf-8")
    run = ("run", "--sandbox", "host", "--profile", "shell", "echo hi")
    place.write_text(on)
    assert user.kakoi(*run)[:2] == (0, "hi\n")
    place.write_text(on.replace("shell = true", "shell = false"))
    status, out, err = user.kakoi(*run)
    assert (status, out) == (REFUSED, "")
    assert "shell execution is turned off" in err
