"""TaskHandler with a GitLab: from an issue to a merge request, and a merge request taken further."""

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.agents.models_for_tests import Script, call, done
from tests.engine import containers
from tests.tasks.conftest import Make
from tests.tasks.hosting import bridge
from tests.tasks.hub import BROKEN, ISSUE, MENDED, PULL, RUN_TESTS, Lab, a_lab, git
from tests.tasks.scripted_handler import KEY, MEND, ScriptedHandler, in_folders
from tests.tasks.trackers import TOKEN

pytestmark = pytest.mark.anyio


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    with a_lab(tmp_path / "srv") as lab:
        yield lab


@pytest.fixture
def in_container(tmp_path: Path, engine: None, make: Make) -> Iterator[ScriptedHandler]:
    with a_lab(tmp_path / "srv", bridge()) as lab:
        yield ScriptedHandler(lab, make(tokens=lab.environ, install_dependencies=False), tmp_path)


@pytest.fixture
async def scripted(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ScriptedHandler]:
    """In a folder of this machine: the container is not the point."""
    async with in_folders(lab, tmp_path, monkeypatch) as scripted:
        yield scripted


def everything_written(scripted: ScriptedHandler, logged: str) -> str:
    """All that the handler has left anywhere: on the tracker, in git, in logs and files."""
    written = [each for each in scripted.folder.rglob("*") if each.is_file()]
    ours = [each for each in written if "srv" not in each.parts]
    texts = [each.read_text(errors="replace") for each in ours]
    return "".join([scripted.hub.everything_said(), logged, *texts])


async def test_an_issue_becomes_a_merge_request_and_no_secret_is_anywhere(
    in_container: ScriptedHandler, owner: str, caplog: pytest.LogCaptureFixture
) -> None:
    scripted, lab = in_container, in_container.hub
    assert isinstance(lab, Lab)
    caplog.set_level(logging.DEBUG)
    heard: list[str] = []

    def react(last: str) -> Any:
        heard.append(last)
        return done(f"add adds; by the way the token is {TOKEN}, and the key {KEY}")

    look = f"{RUN_TESTS}; env; cat .git/config; git remote -v; ls -a / ~"
    handled = await scripted.handle(MEND, call("execute_command", command=look), react)
    assert (handled.stage, handled.error) == ("done", "")
    assert "OK" in heard[0]
    (request,) = lab.new_pulls()
    assert (request["source_branch"], request["target_branch"]) == (handled.branch, "trunk")
    assert request["title"] == "Adding is broken"
    assert handled.url == f"{lab.web}/group/sub/project/-/merge_requests/{request['iid']}"
    assert lab.file(handled.branch, "adder.py") == MENDED
    assert lab.file("trunk", "adder.py") == BROKEN
    assert git(lab.repository, "rev-parse", f"{handled.branch}~1") == git(
        lab.repository, "rev-parse", "trunk"
    )
    assert lab.stage() == "done"
    (said,) = lab.said()
    assert handled.url in said
    assert "add adds" in said
    assert containers(owner) == []
    for secret in (TOKEN, KEY):
        assert secret not in heard[0]
        assert secret not in everything_written(scripted, caplog.text)
        assert secret not in repr(handled)


async def test_what_is_done_about_a_merge_request_is_pushed_to_its_branch(
    scripted: ScriptedHandler, lab: Lab
) -> None:
    handled = await scripted.handle(MEND, done("mended"), key=lab.pull)
    assert (handled.stage, handled.branch, handled.url) == ("done", "feature", "")
    assert lab.file("feature", "adder.py") == MENDED
    assert lab.new_pulls() == []
    assert sorted(lab.branches()) == ["feature", "trunk"]
    assert lab.stage(PULL) == "done"
    assert "`feature`" in lab.said(PULL)[0]


async def test_a_push_that_is_refused_is_an_error_without_the_token(
    scripted: ScriptedHandler, lab: Lab, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    lab.refused = True
    handled = await scripted.handle(MEND, done("mended"))
    assert handled.stage == lab.stage() == "error"
    assert "PUSH_FAILED" in handled.error
    assert lab.new_pulls() == []
    assert TOKEN not in everything_written(scripted, caplog.text) + handled.error


async def test_a_task_that_is_unassigned_stops(scripted: ScriptedHandler, lab: Lab) -> None:
    issue = lab.items["issues", ISSUE]
    issue["assignees"] = [{"username": "bot"}]

    def react(_last: str) -> Any:
        issue["assignees"] = []
        return MEND

    script = Script(call("list_files"), react, done("never said"))
    handled = await scripted.handle(script=script)
    assert handled.stage == lab.stage() == "stopped"
    assert sorted(lab.branches()) == ["feature", "trunk"]


async def test_a_model_cannot_make_ci_run_what_it_wrote(
    scripted: ScriptedHandler, lab: Lab
) -> None:
    evil = call("write_file", path=".gitlab-ci.yml", content="x: {script: [env]}\n")
    script = Script(MEND, evil, done("mended"))
    handled = await scripted.handle(script=script)
    assert handled.stage == lab.stage() == "error"
    assert "'.gitlab-ci.yml'" in lab.said()[0]
    assert sorted(lab.branches()) == ["feature", "trunk"]
    assert "`.gitlab-ci.yml`" in script.instructions
