"""`kakoi agent`: from a file with a task to a changed workspace with tests that pass.

The model is a script behind a real wire; everything else is real.
"""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.agents.openai_server import OpenAIServer, Said, call, last_tool_text
from tests.cli.conftest import has_bubblewrap, has_image, need
from tests.cli.forked import Forked, kakoi
from tests.cli.terminals import PATIENCE_S, alive

KEY = "a-key-that-nobody-may-see-0123456789"
FOREIGN = Path(__file__).with_name("foreign_server.py")
TASK = """\
# Adding is broken

`add(2, 3)` gives -1. Mend it, and let the tests pass.
"""
BROKEN = "def add(a, b):\n    return a - b\n"
TESTS = """\
import unittest

from adder import add


class Adding(unittest.TestCase):
    def test_two_and_three(self):
        self.assertEqual(add(2, 3), 5)
"""
# Without byte code: an edit in the same second that keeps the size would go unnoticed.
RUN_TESTS = "python3 -B -m unittest -q test_adder"


@dataclass
class Project:
    """A project with a broken function, a task about it, and `kakoi agent` beside it."""

    folder: Path
    sandbox: str
    environ: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.workspace.mkdir()
        (self.workspace / "adder.py").write_text(BROKEN)
        (self.workspace / "test_adder.py").write_text(TESTS)
        self.task.write_text(TASK)
        (self.folder / "config.yaml").write_text("execution:\n  concurrency: 4\n")

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def task(self) -> Path:
        return self.folder / "adding.md"

    @property
    def transcript(self) -> Path:
        return self.folder / "transcript.jsonl"

    def env(self, server: OpenAIServer) -> dict[str, str]:
        names = ("PATH", "HOME")
        return {
            **{name: os.environ[name] for name in names if name in os.environ},
            "KAKOI_AUDIT_FILE": str(self.folder / "audit.jsonl"),
            "KAKOI_CONFIG": str(self.folder / "config.yaml"),
            "KAKOI_SANDBOX": self.sandbox,
            "KAKOI_MODEL": "openai:scripted",
            "KAKOI_MODEL_URL": server.url,
            "KAKOI_MODEL_API_KEY": KEY,
            "LANG": "C.UTF-8",
            **self.environ,
        }

    def argv(self, *options: str) -> list[str]:
        words = ["agent", "run", str(self.task), "--workspace", str(self.workspace)]
        return [*words, "--transcript", str(self.transcript), *options]

    def run(self, server: OpenAIServer, *options: str) -> "subprocess.CompletedProcess[str]":
        words = self.argv(*options)
        return kakoi(
            *words, cwd=Path.cwd(), env=self.env(server), text=True, timeout=4 * PATIENCE_S
        )

    def audit(self) -> list[dict[str, Any]]:
        lines = (self.folder / "audit.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]


@contextmanager
def serving(*said: Said | Any) -> Iterator[OpenAIServer]:
    with OpenAIServer(*said).listening() as server:
        yield server


@pytest.fixture
def host(tmp_path: Path) -> Project:
    return Project(tmp_path.resolve(), "host")


@pytest.fixture(params=["host", "bubblewrap", "docker"])
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Project:
    environ = {}
    if request.param == "bubblewrap":
        need("bubblewrap", is_there=has_bubblewrap())
    if request.param == "docker":
        need("docker", is_there=has_image("kakoi-test:python"))
        environ = {"KAKOI_IMAGE": "kakoi-test:python"}
    return Project(tmp_path.resolve(), request.param, environ)


# --- The whole way ---------------------------------------------------------------------------


@pytest.mark.requirement("A-052", "B-053")
def test_from_a_file_to_a_changed_workspace_with_tests_that_pass(project: Project) -> None:
    seen: list[str] = []

    def then(said: Said) -> Any:
        def react(body: dict[str, Any]) -> Said:
            seen.append(last_tool_text(body))
            return said

        return react

    script = (
        call("list_files"),
        then(call("execute_command", command=RUN_TESTS)),
        then(call("edit_file", path="adder.py", old_text="a - b", new_text="a + b")),
        then(call("execute_command", command=RUN_TESTS)),
        then(call("done", summary="add adds; the test passes")),
    )
    with serving(*script) as server:
        done = project.run(server, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["outcome"], told["steps"]) == ("done", 5)
    assert told["summary"] == "add adds; the test passes"
    assert (project.workspace / "adder.py").read_text() == BROKEN.replace("-", "+")
    listed, failed, edited, passed = seen
    assert "adder.py" in listed
    assert "AssertionError: -1 != 5" in failed
    assert "[exit code 1 |" in failed
    assert "1 replacement" in edited
    assert "[exit code 0 |" in passed
    assert "exit code 1" in done.stderr
    assert f"$ {RUN_TESTS}" in done.stderr
    recorded = [record["command"] for record in project.audit() if record["event"] == "started"]
    assert recorded.count(RUN_TESTS) == 2
    assert {record["sandbox"] for record in project.audit() if record["event"] == "ended"} == {
        project.sandbox
    }


def test_the_model_is_told_the_task_the_tools_and_the_commands(host: Project) -> None:
    with serving(call("done", summary="x")) as server:
        assert host.run(server).returncode == 0
    (sent,) = server.requests
    system, user = sent["messages"]
    assert "# Adding is broken" in user["content"]
    assert "gives -1" in user["content"]
    text = system["content"]
    order = ["## Available MCP Tools", "## Command Execution Feature", "## Behavior Rules"]
    assert [text.index(heading) for heading in order] == sorted(map(text.index, order))
    assert "- `execute_command`: Run a shell command" in text
    assert "Version Control: git status" in text
    assert f"Working directory: `{host.workspace}/`" in text
    assert "{allowed_commands_list}" not in text
    names = [tool["function"]["name"] for tool in sent["tools"]]
    assert names[0] == "execute_command"
    assert names[-1] == "done"


@pytest.mark.requirement("B-054")
def test_without_docker_the_loop_runs_where_the_fallback_says(host: Project) -> None:
    host.environ = {
        "KAKOI_SANDBOX": "docker",
        "KAKOI_FALLBACK": "host",
        "DOCKER_HOST": "unix:///nowhere/docker.sock",
    }
    script = (call("execute_command", command="echo here"), call("done", summary="x"))
    with serving(*script) as server:
        done = host.run(server)
    assert done.returncode == 0, done.stderr
    assert host.audit()[-1]["sandbox"] == "host"


# --- Ends ------------------------------------------------------------------------------------


def test_a_signal_ends_everything(host: Project) -> None:
    mark = f"600.{int.from_bytes(os.urandom(6), 'big')}"
    command = f"setsid sleep {mark} & sleep {mark}"
    with (
        serving(call("execute_command", command=command)) as server,
        Forked(
            *host.argv(), env=host.env(server), stdin=subprocess.DEVNULL, stderr=subprocess.PIPE
        ) as running,
    ):
        try:
            give_up = time.monotonic() + 2 * PATIENCE_S
            while len(alive(mark)) < 2:
                assert time.monotonic() < give_up
                assert running.poll() is None
                time.sleep(0.02)
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_S) == 130
        finally:
            running.kill()
    assert alive(mark) == []
    last = json.loads(host.transcript.read_text().splitlines()[-1])
    assert (last["event"], last["outcome"]) == ("LoopEnded", "cancelled")


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"KAKOI_MODEL": ""}, "no model is named"),
        ({"KAKOI_MAX_COST": "1"}, "cannot be enforced: the price"),
    ],
)
def test_what_cannot_begin_is_said_in_words(
    host: Project, environ: dict[str, str], words: str
) -> None:
    host.environ = environ
    with serving(call("done", summary="x")) as server:
        done = host.run(server)
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert server.requests == []


# --- What is written down --------------------------------------------------------------------


def test_the_transcript_is_private_without_secrets_and_can_be_replayed(host: Project) -> None:
    hostile = "\x1b]0;owned\x07\x1b[2J"
    command = f"echo {KEY} AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
    script = (
        call("execute_command", command=command),
        call("execute_command", command="printf '\\033]0;owned\\007\\033[2J'"),
        call("done", summary=f"done {hostile}"),
    )
    with serving(*script) as server:
        done = host.run(server)
    assert done.returncode == 0, done.stderr
    assert stat.S_IMODE(host.transcript.stat().st_mode) == 0o600
    text = host.transcript.read_text()
    assert KEY not in text
    assert "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY" not in text
    replayed = kakoi(
        "agent", "replay", str(host.transcript), cwd=Path.cwd(), env=host.env(OpenAIServer())
    )
    assert replayed.returncode == 0
    for shown in (done.stderr.encode(), replayed.stdout):
        assert b"\x1b" not in shown
        assert b"\x07" not in shown
        assert b"\\x1b]0;owned" in shown
        assert b"kakoi: done after 3 steps" in shown


# --- Without MCP -----------------------------------------------------------------------------


@pytest.mark.parametrize("is_installed", [True, False], ids=["installed", "not installed"])
def test_without_other_servers_an_agent_loads_nothing_of_mcp(
    host: Project, is_installed: bool
) -> None:
    absent = "" if is_installed else "sys.modules['mcp'] = sys.modules['mcp_types'] = None\n"
    code = (
        f"import atexit, sys\n{absent}import kakoi.cli\n"
        "def loaded(): return [name for name, each in sys.modules.items() if each is not None]\n"
        "atexit.register(lambda: print(sorted(loaded()), file=sys.stderr))\n"
        "kakoi.cli.main()\n"
    )
    script = (call("execute_command", command="echo hi > made"), call("done", summary="made"))
    with serving(*script) as server:
        done = subprocess.run(
            [sys.executable, "-c", code, *host.argv("--quiet")],
            env=host.env(server),
            capture_output=True,
            text=True,
            check=True,
            timeout=4 * PATIENCE_S,
        )
    assert (host.workspace / "made").read_text() == "hi\n"
    loaded = done.stderr.splitlines()[-1]
    assert "'kakoi.tools.toolset'" in loaded
    for package in ("mcp", "mcp_types", "kakoi.mcp"):
        assert f"'{package}'" not in loaded
        assert f"'{package}." not in loaded


# --- Commands that are turned off ---------------------------------------------------------------


@pytest.mark.requirement("A-083", "A-098")
def test_a_user_who_turns_commands_off_gets_none_in_the_workspace_either(host: Project) -> None:
    with serving(
        call("execute_command", command="touch made"), call("done", summary="x")
    ) as server:
        host.environ["COMMAND_EXECUTOR_ENABLED"] = "false"
        done = host.run(server)
        assert (done.returncode, server.requests) == (2, [])
        assert "tasks cannot run commands, because `tasks.enabled` is false" in done.stderr
        assert "COMMAND_EXECUTOR_ENABLED=true" in done.stderr
        notes = {"name": "notes", "command": [sys.executable, str(FOREIGN), "good"]}
        settings = {"command_executor": {"enabled": False}, "agent": {"mcp_servers": [notes]}}
        (host.folder / "config.yaml").write_text(json.dumps(settings))
        del host.environ["COMMAND_EXECUTOR_ENABLED"]
        done = host.run(server)
    assert done.returncode == 0, done.stderr
    tools = [tool["function"]["name"] for tool in server.requests[0]["tools"]]
    assert "notes__hello" in tools
    assert not {"execute_command", "write_file"} & set(tools)
    assert "Command Execution Feature" not in json.dumps(server.requests)
    assert not (host.workspace / "made").exists()


# --- Rules, and other servers -----------------------------------------------------------------


def test_rules_of_the_project_tighten_and_other_servers_may_be_gone(host: Project) -> None:
    (host.workspace / "AGENTS.md").write_text("# Here\n\nWrite short functions.\n")
    (host.workspace / ".coding-agent-rules.yaml").write_text(
        "rules: [Never touch vendor/.]\n"
        "tools: {exclude: [write_stdin]}\n"
        "policy: {blocked: [python3]}\n"
    )
    (host.folder / "config.yaml").write_text(
        "agent:\n  mcp_servers:\n    - {name: gone, command: [no-such-program-here]}\n"
    )
    script = (call("execute_command", command=RUN_TESTS), "I cannot decide.")
    with serving(*script) as server:
        done = host.run(server)
    assert done.returncode == 1
    assert "refused" in done.stderr
    assert "5 answers in a row could not be read" in done.stderr
    assert "warning: the MCP server `gone` cannot be used" in done.stderr
    system = server.requests[0]["messages"][0]["content"]
    assert "Write short functions." in system
    assert "- Never touch vendor/." in system
    assert "`gone` cannot be used" in system
    names = [tool["function"]["name"] for tool in server.requests[0]["tools"]]
    assert "write_stdin" not in names
    assert "execute_command" in names
