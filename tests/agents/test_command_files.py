"""`kakoi agent run` on a command file: the file of spec D, with just the tools that it names."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.agents.openai_server import OpenAIServer, Said, call, last_tool_text
from tests.cli.conftest import has_bubblewrap, need
from tests.cli.forked import kakoi
from tests.cli.terminals import PATIENCE_S

AUTO_DEPLOY = Path(__file__).parents[1] / "specs" / "examples" / "auto-deploy.md"
TOOLS = ["shell", "git_commit", "git_push", "git_status", "git_create_pr", "done"]


class Deployment:
    """A repository with a remote, and `kakoi agent run FILE` in it with a scripted model."""

    def __init__(self, folder: Path, sandbox: str) -> None:
        self.folder = folder
        self.workspace = folder / "workspace"
        self.sandbox = sandbox
        self.heard: list[str] = []
        self.server: OpenAIServer | None = None
        self.workspace.mkdir()
        (folder / "config.yaml").write_text("{}\n")
        self.git("init", "-q", "-b", "main")
        self.git("init", "-q", "--bare", "hub.git")
        self.git("remote", "add", "origin", "./hub.git")

    def git(self, *words: str) -> str:
        argv = ["git", "-C", str(self.workspace), *words]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    def run(
        self, *said: Said, options: tuple[str, ...] = (), file: Path = AUTO_DEPLOY
    ) -> "subprocess.CompletedProcess[str]":
        with OpenAIServer(said[0], *map(self._after, said[1:])).listening() as self.server:
            environ = {
                "PATH": os.environ["PATH"],
                "HOME": str(self.folder),
                "LANG": "C.UTF-8",
                "KAKOI_AUDIT_FILE": str(self.folder / "audit.jsonl"),
                "KAKOI_CONFIG": str(self.folder / "config.yaml"),
                "KAKOI_SANDBOX": self.sandbox,
                "KAKOI_MODEL": "openai:scripted",
                "KAKOI_MODEL_URL": self.server.url,
                "GIT_AUTHOR_NAME": "Ann Author",
                "GIT_AUTHOR_EMAIL": "ann@example.org",
                "GIT_COMMITTER_NAME": "Ann Author",
                "GIT_COMMITTER_EMAIL": "ann@example.org",
            }
            words = ["agent", "run", str(file), "--workspace", str(self.workspace), "--json"]
            transcript = ["--transcript", str(self.folder / "transcript.jsonl")]
            return kakoi(
                *words,
                *transcript,
                *options,
                cwd=self.folder,
                env=environ,
                text=True,
                timeout=4 * PATIENCE_S,
            )

    def _after(self, said: Said) -> Callable[[dict[str, Any]], Said]:
        def react(body: dict[str, Any]) -> Said:
            self.heard.append(last_tool_text(body))
            return said

        return react


@pytest.fixture(params=["host", "bubblewrap"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Deployment:
    if request.param == "bubblewrap":
        need("bubblewrap", is_there=has_bubblewrap())
    return Deployment(tmp_path.resolve(), request.param)


@pytest.mark.requirement("A-059", "D-037", "D-038")
def test_the_command_file_of_the_spec_runs_with_just_the_tools_it_names(
    deployment: Deployment,
) -> None:
    done = deployment.run(
        call("shell", command="echo 1 > version; pwd"),
        call("git_commit", message="chore: release", files=["version"]),
        call("git_push"),
        call("grep_content", pattern="1", files=["version"]),
        call("execute_command", command="ls"),
        call("done", summary="deployed"),
        options=("--yes",),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["summary"] == "deployed"
    assert deployment.server is not None
    first = deployment.server.requests[0]
    assert [each["function"]["name"] for each in first["tools"]] == TOOLS
    assert "Automatically deploy the latest version:" in first["messages"][1]["content"]
    assert "execute_command" not in first["messages"][0]["content"]
    said, committed, pushed, refused, unknown = deployment.heard
    assert said == f"{deployment.workspace}\n"
    assert "chore: release" in committed
    assert "main" in pushed
    assert "there is no tool 'grep_content'" in refused
    assert "there is no tool 'execute_command'" in unknown
    # Two failures in a row: the model is asked to think before it goes on.
    reminded = json.dumps(deployment.server.requests[-1]["messages"])
    assert "Your last 2 steps have failed" in reminded
    assert "Your last 2 steps have failed" in done.stderr
    log = deployment.git("-C", "hub.git", "log", "--format=%an %s", "main")
    assert log == "Ann Author chore: release\n"
    lines = (deployment.folder / "audit.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    assert {each["sandbox"] for each in records if each["event"] == "ended"} == {deployment.sandbox}


def test_the_policy_and_the_rules_of_the_project_hold_for_a_command_file(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path.resolve(), "host")
    rules = (
        "tools: {exclude: [git_create_pr]}\npolicy: {blocked: [git commit]}\nrules: [Be kind.]\n"
    )
    (deployment.workspace / ".coding-agent-rules.yaml").write_text(rules)
    (deployment.workspace / "sub").mkdir()
    done = deployment.run(
        call("shell", command="pwd; echo $WORD"),
        call("shell", command="pwd", working_dir=".."),
        call("git_commit", message="x"),
        call("git_push"),
        call("done", summary="no"),
        options=("--cwd", "sub", "--env", "WORD=said"),
    )
    assert done.returncode == 0, done.stderr
    said, outside, blocked, asked = deployment.heard
    assert said == f"{deployment.workspace}/sub\nsaid\n"
    assert "`working_dir` is outside the workspace" in outside
    assert "Blocked command: git commit" in blocked
    assert "approv" in asked
    assert deployment.server is not None
    first = deployment.server.requests[0]
    assert "git_create_pr" not in [each["function"]["name"] for each in first["tools"]]
    assert "Be kind." in first["messages"][0]["content"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("---\nname: x\nallowed_tools: [gti]\n---\nDo it.\n", "did you mean `@builtin.git`"),
        ("---\nallowed_tools: [git]\n---\nDo it.\n", "name"),
        ("---\nname: x\nallowed_tools: [git]\n---\n", "describes no task"),
        ("---\nname: x\nallowed_tools: [git]\nDo it.\n", "the front matter has no end"),
        ("---\nname: x\nallowed_tools: [git\n---\nDo it.\n", "wrong.md:3 is not valid YAML"),
    ],
)
def test_a_wrong_command_file_starts_nothing(tmp_path: Path, text: str, complaint: str) -> None:
    deployment = Deployment(tmp_path.resolve(), "host")
    file = tmp_path / "wrong.md"
    file.write_text(text)
    done = deployment.run(call("done", summary="x"), file=file)
    assert done.returncode == 2
    assert complaint in done.stderr
    assert deployment.server is not None
    assert deployment.server.requests == []
