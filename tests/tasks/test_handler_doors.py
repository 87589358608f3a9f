"""`kakoi agent run`, `producer` and `consumer` as processes: with a container, with bubblewrap,
with signals, and with a `kill -9` half-way."""

import json
import os
import select
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.agents.anthropic_server import AnthropicServer, blocks_of
from tests.agents.openai_server import OpenAIServer, call, last_tool_text
from tests.cli.conftest import has_bubblewrap, need
from tests.cli.forked import Forked
from tests.cli.terminals import PATIENCE_S
from tests.engine import containers
from tests.tasks.hosting import PYTHON, bridge, wait_until
from tests.tasks.hub import BROKEN, MENDED, PULL, RUN_TESTS, Hub, a_hub, a_lab, git, make_project
from tests.tasks.trackers import TOKEN

KEY = "a-key-that-nobody-may-see-0123456789"
MEND = call("edit_file", path="adder.py", old_text="a - b", new_text="a + b  # both")
DONE = call("done", summary="add adds; its test passes")
FOREIGN = Path(__file__).parent.parent / "agents" / "foreign_server.py"
EXECUTOR = Path(__file__).with_name("command_server.py")
SCRIPT = (call("execute_command", command=RUN_TESTS), MEND,
          call("execute_command", command=RUN_TESTS), DONE)  # fmt: skip


@dataclass
class Runner:
    """kakoi on this machine, with a state of its own."""

    folder: Path
    model: str
    environ: dict[str, str] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)

    def env(self) -> dict[str, str]:
        config = self.folder / "config.yaml"
        config.write_text(json.dumps(self.config))
        names = ("PATH", "HOME", "DOCKER_HOST")
        return {
            **{name: os.environ[name] for name in names if name in os.environ},
            "KAKOI_AUDIT_FILE": str(self.folder / "state" / "audit.jsonl"),
            "KAKOI_TRANSCRIPTS": str(self.folder / "state" / "transcripts"),
            "KAKOI_CONFIG": str(config),
            "KAKOI_MODEL": "openai:scripted",
            "KAKOI_MODEL_URL": self.model,
            "KAKOI_MODEL_API_KEY": KEY,
            "COMMAND_EXECUTOR_ENABLED": "true",
            "LANG": "C.UTF-8",
            **self.environ,
        }

    def start(self, *arguments: str) -> "subprocess.Popen[str]":
        return Forked(
            *("agent", *arguments),
            env=self.env(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *arguments: str) -> tuple[int, list[Any], str]:
        """The exit status, the lines of JSON, and what was shown."""
        running = self.start(*arguments)
        try:
            out, err = running.communicate(timeout=2 * PATIENCE_S)
        finally:
            running.kill()
        assert "Traceback" not in err, err
        return running.returncode, [json.loads(line) for line in out.splitlines()], err

    def written(self) -> str:
        """All that was written down here."""
        files = [each for each in (self.folder / "state").rglob("*") if each.is_file()]
        return "".join(each.read_text(errors="replace") for each in files)


@pytest.fixture
def hub(engine: None, tmp_path: Path) -> Iterator[Hub]:
    with a_hub(tmp_path / "srv", bridge()) as hub:
        yield hub


def runner_for(
    hub: Hub, folder: Path, owner: str, model: OpenAIServer, *, lease_s: float = 120.0
) -> Runner:
    config = {
        "tasks": {
            "base_image": PYTHON,
            "owner": owner,
            "clone": {"auto_install_deps": False},
            # A server of the private network is out of reach unless it is named.
            "network": {
                "whitelist_mode": True,
                "allowed_domains": [hub.web.removeprefix("http://").replace(":", "/32:")],
            },
            "sources": {"github": ["team/project"], "check_seconds": 0.01},
            "queue": {"lease_seconds": lease_s, "poll_seconds": 0.2},
        },
        "resources": {"cpu_limit": 1},
    }
    return Runner(folder, model.url, dict(hub.environ), config)


# --- One task --------------------------------------------------------------------------------


@pytest.mark.slow("a whole task")
def test_an_address_is_done_in_a_container_and_proposed(
    hub: Hub, tmp_path: Path, owner: str
) -> None:
    with OpenAIServer(*SCRIPT).listening() as model:
        run = runner_for(hub, tmp_path, owner, model)
        status, told, err = run("run", hub.issue, "--json")
    assert status == 0, err
    (result,) = told
    assert (result["task"], result["stage"]) == (hub.issue, "done")
    assert result["url"] == f"{hub.web}/team/project/pull/9"
    assert hub.file(result["branch"], "adder.py") == MENDED
    assert "OK" in last_tool_text(model.requests[-1])
    assert hub.stage() == "done"
    assert f"$ {RUN_TESTS}" in err
    assert containers(owner) == []
    for secret in (TOKEN, KEY):
        assert secret not in run.written() + err + hub.everything_said()
        assert secret not in json.dumps(model.requests)


@pytest.mark.parametrize("sandbox", ["bubblewrap"])
def test_a_file_is_done_in_a_folder_and_pushed(tmp_path: Path, sandbox: str) -> None:
    need("bubblewrap", is_there=has_bubblewrap())
    make_project(tmp_path / "srv" / "project.git")
    task = tmp_path / "adding.md"
    task.write_text("---\ntitle: Adding is broken\nrepository: ./srv/project.git\n---\nMend it.\n")
    environ = {"KAKOI_TASK_PLACE": "folder", "KAKOI_SANDBOX": sandbox}
    with OpenAIServer(*SCRIPT).listening() as model:
        run = Runner(tmp_path, model.url, environ)
        status, told, err = run("run", str(task), "--json")
    assert status == 0, err
    (result,) = told
    bare = tmp_path / "srv" / "project.git"
    assert result["branch"].startswith("coding-agent/adding-")
    assert git(bare, "show", f"{result['branch']}:adder.py") + "\n" == MENDED
    assert git(bare, "show", "main:adder.py") + "\n" == BROKEN
    assert "OK" in last_tool_text(model.requests[-1])
    assert list((tmp_path / "state" / "workspaces").iterdir()) == []
    beside = json.loads((tmp_path / "adding.md.kakoi.json").read_text())
    assert beside["labels"] == ["coding agent done"]
    assert "add adds" in beside["comments"][0]["body"]
    lines = (tmp_path / "state" / "audit.jsonl").read_text().splitlines()
    audit = [json.loads(line) for line in lines]
    assert {each["sandbox"] for each in audit if each["event"] == "ended"} == {sandbox}


def test_an_issue_of_gitlab_is_done_by_anthropics_format_in_a_folder(tmp_path: Path) -> None:
    need("bubblewrap", is_there=has_bubblewrap())
    with a_lab(tmp_path / "srv") as lab, AnthropicServer(*SCRIPT).listening() as model:
        environ = {
            "KAKOI_MODEL": "anthropic:scripted",
            "KAKOI_TASK_PLACE": "folder",
            "KAKOI_SANDBOX": "bubblewrap",
            **lab.environ,
        }
        run = Runner(tmp_path, model.url, environ)
        status, told, err = run("run", lab.issue, "--json")
        assert status == 0, err
        (result,) = told
        assert lab.file(result["branch"], "adder.py") == MENDED
        (request,) = lab.new_pulls()
        assert result["url"] == f"{lab.web}/group/sub/project/-/merge_requests/{request['iid']}"
        assert (request["source_branch"], request["target_branch"]) == (result["branch"], "trunk")
        assert lab.stage() == "done"
        assert result["url"] in lab.said()[0]
        last = blocks_of(model.requests[-1]["messages"][-1])
        assert "OK" in json.dumps(last)
        for secret in (TOKEN, KEY):
            assert secret not in run.written() + err + json.dumps(told) + lab.everything_said()
            assert secret not in json.dumps(model.requests)


def test_what_cannot_be_a_task_is_said_in_words(tmp_path: Path) -> None:
    (tmp_path / "bad.md").write_text("---\ntitle: x\n---\nDo.\n")
    run = Runner(tmp_path, "http://127.0.0.1:1/v1")
    for target, words in [
        ("https://elsewhere.example/x", "is not the address of a task"),
        ("bad.md", "repository"),
    ]:
        status, _told, err = run("run", target)
        assert status == 2, err
        assert words in err


# --- Without the command executor ------------------------------------------------------------


def switched(run: Runner, **executor: Any) -> Runner:
    """The same, but only the settings file says whether tasks can run commands."""
    run.environ["COMMAND_EXECUTOR_ENABLED"] = ""
    run.config["command_executor"] = executor
    return run


@pytest.mark.requirement("A-083", "A-098")
@pytest.mark.parametrize("executor", [{}, {"enabled": False}], ids=["default", "off"])
def test_a_task_that_needs_commands_is_not_begun_while_they_are_off(
    hub: Hub, tmp_path: Path, owner: str, executor: dict[str, Any]
) -> None:
    with OpenAIServer().listening() as model:
        run = switched(runner_for(hub, tmp_path, owner, model), **executor)
        for words in (("run", hub.issue), ("consumer", "--continuous")):
            status, told, err = run(*words)
            assert (status, told) == (2, []), err
            assert "tasks cannot run commands, because `tasks.enabled` is false" in err
            assert "set `tasks: {enabled: true}` in your settings" in err
            assert "COMMAND_EXECUTOR_ENABLED=true" in err
        assert model.requests == []
    assert hub.seen == []
    assert containers(owner) == []


@pytest.mark.requirement("A-083")
def test_a_task_without_commands_has_the_tools_of_other_servers_and_ends_with_a_comment(
    hub: Hub, tmp_path: Path, owner: str
) -> None:
    script = (call("notes__hello"), call("done", summary="it was decided long ago"))
    with OpenAIServer(*script).listening() as model:
        run = switched(runner_for(hub, tmp_path, owner, model), enabled=False)
        server = {"name": "notes", "command": [sys.executable, str(FOREIGN), "good"]}
        run.config["agent"] = {"mcp_servers": [server]}
        run.config["tasks"]["pool_size"] = 1
        status, told, err = run("run", hub.issue, "--json")
    assert status == 0, err
    assert "warning: tasks cannot run commands, because `tasks.enabled` is false" in err
    assert (told[0]["stage"], told[0]["branch"]) == ("done", "")
    assert hub.git_requests == []
    assert "it was decided long ago" in hub.said()[0]
    tools = {each["function"]["name"] for each in model.requests[0]["tools"]}
    assert "notes__hello" in tools
    assert "execute_command" not in tools
    assert "Command Execution Feature" not in json.dumps(model.requests)
    assert containers(owner) == []


@pytest.mark.slow("a whole task")
@pytest.mark.requirement("A-083", "X-33")
def test_the_designs_own_settings_switch_commands_on_and_name_the_server(
    hub: Hub, tmp_path: Path, owner: str
) -> None:
    with OpenAIServer(*SCRIPT).listening() as model:
        npx = ["npx", "@sunwood-ai-labs/command-executor-mcp-server"]
        server = {"name": "ours", "command": npx}
        run = switched(runner_for(hub, tmp_path, owner, model), enabled=True, mcp_server=server)
        status, told, err = run("run", hub.issue, "--json")
    assert status == 0, err
    assert "means kakoi's own server: npx is not started" in err
    assert (
        "`execute_command` is `ours/execute_command`" in model.requests[0]["messages"][0]["content"]
    )
    assert told[0]["stage"] == "done"
    assert "Command Execution Feature" in json.dumps(model.requests[0])
    assert "OK" in last_tool_text(model.requests[-1])


def other_executor(run: Runner, kind: str) -> Runner:
    """The same, but another MCP server runs the commands."""
    command = [sys.executable, str(EXECUTOR), kind]
    return switched(run, enabled=True, mcp_server={"name": "theirs", "command": command})


THEIRS = "theirs__execute_command"
THEIR_SCRIPT = (
    call(
        THEIRS,
        command="id -u; pwd; sed 's/a - b/a + b  # both/' adder.py > new && mv new adder.py",
    ),
    call(THEIRS, command="sudo id"),
    call(THEIRS, command=RUN_TESTS, container_id="0" * 64),
    call(THEIRS, command=RUN_TESTS, verbose=True),
    call("execute_command", command=RUN_TESTS),
    call(THEIRS, command=RUN_TESTS),
    call("read_file", path="adder.py"),
)


@pytest.mark.slow("a whole task, whose commands another MCP server runs")
@pytest.mark.requirement("X-33", "A-049", "A-050")
def test_another_server_runs_the_commands_of_a_task_after_each_is_judged(
    hub: Hub, tmp_path: Path, owner: str
) -> None:
    heard: list[str] = []

    def after(said: Any) -> Any:
        def react(body: dict[str, Any]) -> Any:
            heard.append(last_tool_text(body))
            return said

        return react

    where = tmp_path / "on-this-machine"
    script = (*THEIR_SCRIPT, call("theirs__run_here", command=f"touch {where}"), DONE)
    with OpenAIServer(script[0], *map(after, script[1:])).listening() as model:
        run = other_executor(runner_for(hub, tmp_path, owner, model), "good")
        status, told, err = run("run", hub.issue, "--json")
    assert status == 0, err
    assert heard[0] == "65533\n/workspace/project\n(exit code 0)"
    assert "`sudo` changes users" in heard[1]
    assert "is not yours" in heard[2]
    assert "there is no argument `verbose`" in heard[3]
    assert "there is no tool 'execute_command'" in heard[4]
    assert "OK" in heard[5]
    assert "# both" in heard[6]
    assert "there is no tool 'theirs__run_here'" in heard[7]
    assert not where.exists()
    assert hub.file(told[0]["branch"], "adder.py") == MENDED
    instructions = model.requests[0]["messages"][0]["content"]
    assert "the MCP server `theirs`" in instructions
    assert (
        "the tool `run_here` of the MCP server `theirs`: its calls cannot be judged" in instructions
    )
    lines = (tmp_path / "state" / "audit.jsonl").read_text().splitlines()
    audit = [json.loads(line) for line in lines]
    assert {each["event"] for each in audit if "sudo id" in each.get("command", "")} == {"refused"}
    assert {each["event"] for each in audit if RUN_TESTS in each.get("command", "")} == {"started"}
    assert containers(owner) == []


@pytest.mark.slow("an environment")
@pytest.mark.requirement("X-33")
def test_a_server_that_cannot_be_told_where_to_run_is_refused(
    hub: Hub, tmp_path: Path, owner: str
) -> None:
    with OpenAIServer().listening() as model:
        run = other_executor(runner_for(hub, tmp_path, owner, model), "unsafe")
        status, told, err = run("run", hub.issue, "--json")
        assert (status, told[0]["stage"]) == (1, "error"), err
        assert "none of its tools takes `container_id` and `command`" in hub.said()[0]
        assert containers(owner) == []
        run.environ["KAKOI_TASK_PLACE"] = "folder"
        status, _, err = run("run", hub.issue)
        assert status == 2
        assert "there is no container for them" in err
        assert model.requests == []


# --- The queue -------------------------------------------------------------------------------


@pytest.mark.slow("two whole tasks")
def test_what_waits_is_queued_once_and_done_by_a_consumer(
    hub: Hub, tmp_path: Path, owner: str
) -> None:
    with OpenAIServer(MEND, DONE, MEND, DONE).listening() as model:
        run = runner_for(hub, tmp_path, owner, model)
        assert run("producer", "--json")[:2] == (
            0, [{"queued": [hub.issue, hub.pull], "failures": []}])  # fmt: skip
        assert run("producer", "--json")[:2] == (0, [{"queued": [], "failures": []}])
        status, told, err = run("consumer", "--json")
        assert status == 0, err
        assert [(each["task"], each["stage"]) for each in told] == [
            (hub.issue, "done"), (hub.pull, "done")]  # fmt: skip
        assert hub.file("feature", "adder.py") == MENDED
        assert run("consumer", "--json")[:2] == (0, [])
    assert containers(owner) == []


class Gated:
    """The model stops at its second answer until it is let go; the first one to come is told."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()

    def __call__(self, _body: dict[str, Any]) -> Any:
        self.reached.set()
        self.go.wait(PATIENCE_S)
        return MEND


def lease_end(run: Runner) -> float:
    with closing(sqlite3.connect(run.folder / "state" / "queue.db")) as connection:
        (until,) = connection.execute("SELECT until FROM tasks").fetchone()
    return float(until)


def renewed_since(run: Runner, before: float) -> bool:
    return lease_end(run) > before


@pytest.mark.slow("waits until a lease has run out")
def test_a_task_of_a_killed_consumer_is_gone_on_with_by_another(
    hub: Hub, tmp_path: Path, owner: str
) -> None:
    gated = Gated()
    hub.issues[PULL]["labels"] = []
    script = (MEND, gated, DONE)
    with OpenAIServer(*script).listening() as model:
        run = runner_for(hub, tmp_path, owner, model, lease_s=15)
        run.config["tasks"]["keep_seconds"] = 0.01
        assert run("producer")[0] == 0
        first, second = run.start("consumer", "--continuous"), None
        try:
            assert gated.reached.wait(PATIENCE_S)
            (container,) = containers(owner)
            second = run.start("consumer", "--json", "--continuous")
            # While the first one lives it renews its lease, and nobody else gets the task.
            for _ in range(2):
                wait_until(partial(renewed_since, run, lease_end(run)))
            assert len(model.requests) == 2
            assert containers(owner) == [container]
            first.kill()
            first.wait(PATIENCE_S)
            assert second.stdout is not None
            assert select.select([second.stdout], [], [], PATIENCE_S)[0]
            second.send_signal(signal.SIGTERM)
            out, err = second.communicate(timeout=PATIENCE_S)
        finally:
            gated.go.set()
            for each in (first, second):
                if each is not None:
                    each.kill()
                    each.communicate()
    assert second.returncode == 128 + signal.SIGTERM, err
    (result,) = [json.loads(line) for line in out.splitlines()]
    assert (result["stage"], result["steps"]) == ("done", 1)
    # It knows what was said before, and what was changed before is there.
    assert "created again: your changes to the project were restored" in json.dumps(
        model.requests[2]
    )
    assert hub.file(result["branch"], "adder.py") == MENDED
    assert len(hub.new_pulls()) == 1
    assert len(hub.said()) == 1
    assert containers(owner) == []


def test_a_consumer_that_goes_on_has_an_environment_ready_for_its_first_task(
    hub: Hub, tmp_path: Path, owner: str
) -> None:
    with OpenAIServer().listening() as model:
        run = runner_for(hub, tmp_path, owner, model)
        run.config["tasks"]["pool_size"] = 1
        running = run.start("consumer", "--continuous")
        try:
            wait_until(lambda: containers(owner))
            running.send_signal(signal.SIGTERM)
            _, err = running.communicate(timeout=PATIENCE_S)
        finally:
            running.kill()
            running.communicate()
    assert running.returncode == 128 + signal.SIGTERM, err
    assert containers(owner) == []


@pytest.mark.slow("a whole task, from its issue to its end, twice")
def test_a_signal_gives_the_task_back_and_leaves_nothing(
    hub: Hub, tmp_path: Path, owner: str
) -> None:
    gated = Gated()
    hub.issues[PULL]["labels"] = []
    with OpenAIServer(MEND, gated, DONE).listening() as model:
        run = runner_for(hub, tmp_path, owner, model)
        assert run("producer")[0] == 0
        running = run.start("consumer")
        try:
            assert gated.reached.wait(PATIENCE_S)
            running.send_signal(signal.SIGINT)
            assert running.wait(PATIENCE_S) == 128 + signal.SIGINT
        finally:
            gated.go.set()
            running.kill()
            running.communicate()
        assert containers(owner) == []
        assert hub.stage() == "processing"
        # At once: nobody has to wait for a lease to run out.
        status, told, err = run("consumer", "--json")
    assert status == 0, err
    assert told[0]["stage"] == "done"
    assert hub.file(told[0]["branch"], "adder.py") == MENDED  # It was mended before the signal.
    assert list((tmp_path / "state" / "transcripts").glob("*.patch")) == []


@pytest.mark.slow("a whole task")
def test_what_is_being_done_cannot_be_begun_by_hand(hub: Hub, tmp_path: Path, owner: str) -> None:
    gated = Gated()
    hub.issues[PULL]["labels"] = []
    with OpenAIServer(gated, DONE).listening() as model:
        run = runner_for(hub, tmp_path, owner, model)
        assert run("producer")[0] == 0
        running = run.start("consumer")
        try:
            assert gated.reached.wait(PATIENCE_S)
            status, _told, err = run("run", hub.issue)
            assert status == 2
            assert "another consumer is working on" in err
        finally:
            gated.go.set()
            running.communicate(timeout=PATIENCE_S)
            running.kill()
    assert running.returncode == 0
    assert hub.stage() == "done"


# --- The producer's sweep --------------------------------------------------------------------


def a_leftover(folder: Path, name: str) -> Path:
    """A folder of a task of two days ago."""
    left = folder / "state" / "workspaces" / f"coding-agent-exec-{name}"
    left.mkdir(parents=True)
    (left / "file").write_text("x")
    then = time.time() - 2 * 24 * 3600
    os.utime(left, (then, then))
    return left


def in_a_folder(tmp_path: Path, **tasks: Any) -> Runner:
    (tmp_path / "waiting").mkdir()
    sources = {"folder": str(tmp_path / "waiting"), "interval_seconds": 0.2}
    environ = {"KAKOI_TASK_PLACE": "folder", "KAKOI_SANDBOX": "host"}
    config = {"tasks": {"sources": sources, **tasks}}
    return Runner(tmp_path, "http://127.0.0.1:1/v1", environ, config)


@pytest.mark.requirement("A-092")
def test_a_producer_sweeps_when_it_starts(tmp_path: Path) -> None:
    run = in_a_folder(tmp_path)
    left = a_leftover(tmp_path, "old")
    assert run("producer", "--json")[:2] == (0, [{"queued": [], "failures": []}])
    assert not left.exists()


@pytest.mark.requirement("A-092")
def test_a_producer_that_goes_on_sweeps_again_and_again(tmp_path: Path) -> None:
    run = in_a_folder(tmp_path, cleanup={"interval_hours": 0.0001})
    first = a_leftover(tmp_path, "first")
    running = run.start("producer", "--continuous")
    try:
        wait_until(lambda: not first.exists())
        second = a_leftover(tmp_path, "second")
        wait_until(lambda: not second.exists())
        running.send_signal(signal.SIGTERM)
        _out, err = running.communicate(timeout=PATIENCE_S)
    finally:
        running.kill()
        running.communicate()
    assert running.returncode == 128 + signal.SIGTERM, err
    assert "Traceback" not in err
