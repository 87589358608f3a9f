"""The conformance suite as an outsider meets it. What it says of our own sandboxes is in
src/kakoi/conformance, which our test run collects for each of them (pyproject.toml)."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kakoi.backends.host.adapter import HostAdapter
from kakoi.conformance.subjects import subject_named
from kakoi.conformance.test_hostile import NOT_DONE, attack
from kakoi.errors import ConfigurationError

QUICK = "two_streams or missing_program or three_descriptors or switches_of_the_kernel"

MINE = """
from pathlib import Path

from kakoi.conformance.subjects import Subject, Traits
from kakoi.results import ExecutionResult
from kakoi.channel.api import Command
from kakoi.backends.adapter import Availability
from kakoi.backends.host.adapter import HostAdapter


class Absent(HostAdapter):
    async def availability(self) -> Availability:
        return Availability(False, "it is not installed", "install it")


class Wrong(HostAdapter):
    async def run(self, command: Command) -> ExecutionResult:
        return await super().run(Command(command="echo out err"))


def factory(workspace: Path) -> HostAdapter:
    return HostAdapter(workspace)


def absent(workspace: Path) -> HostAdapter:
    return Absent(workspace)


def wrong(workspace: Path) -> HostAdapter:
    return Wrong(workspace)


modest = Subject("mine:modest", factory, Traits(isolates_files=False))
nothing = 3
"""


def suite(folder: Path, *arguments: str, require: str = "") -> "subprocess.CompletedProcess[str]":
    """`pytest --pyargs kakoi.conformance` in a folder that has nothing to do with us."""
    (folder / "mine.py").write_text(MINE, encoding="ascii")
    argv = [sys.executable, "-m", "pytest", "--pyargs", "kakoi.conformance", *arguments]
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [*argv, "-p", "no:cacheprovider", "-k", QUICK],
        cwd=folder,
        env={**env, "KAKOI_REQUIRE": require, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_an_outsider_runs_it_by_the_name_of_a_sandbox(tmp_path: Path) -> None:
    done = suite(tmp_path, "--sandbox", "host")
    assert done.returncode == 0, done.stdout
    assert "3 passed" in done.stdout


def test_what_a_sandbox_does_not_claim_is_left_out_and_named(tmp_path: Path) -> None:
    done = suite(tmp_path, "--sandbox", "host")
    assert "host does not claim `isolates_files`: 5 tests left out" in done.stdout
    done = suite(tmp_path, "--sandbox", "host", "-n", "1")
    assert "host does not claim `isolates_files`" in done.stdout


def test_a_sandbox_of_ones_own_is_tested_with_every_claim(tmp_path: Path) -> None:
    done = suite(tmp_path, "--sandbox", "mine:factory")
    assert done.returncode == 1
    assert "3 passed" in done.stdout
    assert "test_the_switches_of_the_kernel_cannot_be_opened[mine:factory]" in done.stdout


def test_a_sandbox_of_ones_own_may_claim_less(tmp_path: Path) -> None:
    done = suite(tmp_path, "--sandbox", "mine:modest")
    assert done.returncode == 0, done.stdout
    assert "mine:modest does not claim `isolates_files`" in done.stdout


def test_a_sandbox_that_does_something_else_fails(tmp_path: Path) -> None:
    done = suite(tmp_path, "--sandbox", "mine:wrong")
    assert done.returncode == 1
    assert "test_the_two_streams_arrive_apart[mine:wrong]" in done.stdout


@pytest.mark.anyio
@pytest.mark.parametrize("ours", [os.getpid(), 2**22 + 1], ids=["us", "nobody"])
async def test_a_machine_is_not_attacked_in_the_place_of_a_sandbox(
    tmp_path: Path, ours: int
) -> None:
    """An adapter may claim to be a wall and be none; here the one who attacks is left out."""
    sandbox = HostAdapter(tmp_path)
    try:
        command = attack(f"is_alone || exit {NOT_DONE}; echo attacked", "x")
        guarded = dataclasses.replace(command, env={**command.env, "OURS": str(ours)})
        result = await sandbox.run(guarded)
    finally:
        await sandbox.cleanup()
    assert (result.exit_code, result.stdout) == (NOT_DONE, "")


def test_several_sandboxes_can_be_tested_in_one_run(tmp_path: Path) -> None:
    done = suite(tmp_path, "--sandbox", "host", "--sandbox", "mine:modest")
    assert done.returncode == 0, done.stdout
    assert "6 passed" in done.stdout


def test_a_name_that_is_none_is_one_error(tmp_path: Path) -> None:
    done = suite(tmp_path, "--sandbox", "dokcer")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "there is no sandbox 'dokcer'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mine:gone", "cannot take 'gone' from 'mine'"),
        ("no_such_module:factory", "cannot take 'factory' from 'no_such_module'"),
        ("mine:nothing", "not a function from a workspace"),
        ("docker:no image", "must be the name of an image"),
    ],
)
def test_a_name_that_cannot_be_read_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(MINE, encoding="ascii")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        with pytest.raises(ConfigurationError, match=said):
            subject_named(name).make(tmp_path)
    finally:
        sys.modules.pop("mine", None)


def test_a_sandbox_that_was_named_and_is_not_there_is_one_error(tmp_path: Path) -> None:
    done = suite(tmp_path, "--sandbox", "mine:absent")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert "--sandbox mine:absent: not available here: it is not installed" in done.stderr


def test_a_missing_sandbox_of_the_configuration_is_skipped_or_fails_as_required(
    tmp_path: Path,
) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nkakoi_sandboxes =\n  host\n  mine:absent\n", encoding="ascii"
    )
    done = suite(tmp_path, "-rs")
    assert done.returncode == 0, done.stdout
    assert "4 skipped" in done.stdout
    assert "mine:absent is not available" in done.stdout
    done = suite(tmp_path, require="docker,mine")
    assert done.returncode == 1
    assert "4 errors" in done.stdout
