"""Results of pure commands are used again, until anything else runs; the gate hears of each."""

import dataclasses
from pathlib import Path

import pytest

from kakoi.audit import Event, read, verify
from kakoi.bash_executor import CommandExecutor, SecurityError
from kakoi.bash_executor.executor import PureResults
from kakoi.results import ExecutionResult, Reason
from tests.faces.bash_executor.conftest import Create

PURE = ["cat", "pwd", "git status", "grep"]


@pytest.fixture
def caching(create: Create, root: Path) -> CommandExecutor:
    (root / "file").write_text("one\n", "utf-8")
    return create(pure_commands=PURE)


def said(executor: CommandExecutor, command: str) -> str:
    return executor.execute(command)["stdout"]


def test_a_pure_command_runs_once_until_another_one_runs(
    caching: CommandExecutor, root: Path
) -> None:
    assert said(caching, "cat file") == "one\n"
    (root / "file").write_text("two\n", "utf-8")  # Behind its back.
    assert said(caching, "cat file") == "one\n"
    assert said(caching, "cat file | grep o") == "two\n"  # Another text is another command.
    assert said(caching, "true") == ""
    assert said(caching, "cat file") == "two\n"


def test_an_answer_from_the_cache_is_judged_recorded_and_logged(
    caching: CommandExecutor, audit_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = caching.execute("cat file"), caching.execute("cat file")
    assert first == second
    told = [(record.event, record.sandbox) for record in read(audit_file)]
    assert told == [
        (Event.STARTED, "bubblewrap"),
        (Event.ENDED, "bubblewrap"),
        (Event.STARTED, "cache"),
        (Event.ENDED, "cache"),
    ]
    assert verify(audit_file).ok
    assert "answered from the cache 'cat file'" in caplog.messages[-1]


def test_the_directory_is_part_of_the_question(caching: CommandExecutor, root: Path) -> None:
    (root / "a").mkdir()
    assert said(caching, "pwd") == f"{root}\n"
    caching.execute("cd a")
    assert said(caching, "pwd") == f"{root}/a\n"


def test_a_failure_is_not_kept(caching: CommandExecutor, root: Path) -> None:
    assert caching.execute("cat later")["exit_code"] == "1"
    (root / "later").write_text("here", "utf-8")
    assert said(caching, "cat later") == "here"


def test_a_pure_command_that_moves_still_moves(create: Create, root: Path) -> None:
    executor = create(pure_commands=["cd"])
    (root / "a").mkdir()
    executor.execute("cd a")
    executor.execute("cd ..")
    assert executor.execute("cd a")["cwd"] == f"{root}/a"


def test_what_is_refused_is_refused_however_pure(create: Create, root: Path) -> None:
    executor = create(pure_commands=["sudo", "cat"])
    for command in ("sudo id", "cat `id`", "cat ~/.ssh/id_rsa"):
        with pytest.raises(SecurityError):
            executor.execute(command)


@pytest.mark.parametrize(
    ("command", "pure"),
    [
        ("cat a", True),
        ("cat a | grep b && pwd", True),
        ("git status --short", True),
        ("git commit -m x", False),
        ("ls", False),
        ("cat a; ls", False),
        ("cat a > b", False),
        ("cat a 2>/tmp/b", False),
        ("cat a | tee b", False),
        ("X=1 cat a", True),
        ("cat $(rm a)", False),
        ("cat 'a", False),
        ("", False),
    ],
)
def test_a_text_is_pure_if_all_of_it_is(command: str, pure: bool) -> None:
    assert PureResults(PURE).is_pure(command, "/workspace") is pure


def test_nothing_is_pure_unless_it_was_said() -> None:
    assert not PureResults().is_used
    assert not PureResults().is_pure("pwd", "/workspace")


def test_only_so_many_are_kept_and_the_last_used_stay() -> None:
    cache = PureResults(PURE)
    result = ExecutionResult(0, "", "", 1, cwd="/w")
    for number in range(300):
        cache.put(f"cat {number}", "/w", result, age=cache.age)
        cache.get("cat 0", "/w")
    assert cache.get("cat 0", "/w")
    assert cache.get("cat 299", "/w")
    assert cache.get("cat 1", "/w") is None


def test_a_result_that_something_ran_beside_is_not_kept() -> None:
    cache = PureResults(PURE)
    good = ExecutionResult(0, "", "", 1, cwd="/w")
    age = cache.age
    cache.clear()  # Another thread ran `touch x` meanwhile.
    cache.put("pwd", "/w", good, age=age)
    huge = dataclasses.replace(good, stdout_bytes=10**6)
    killed = dataclasses.replace(good, reason=Reason.SIGNALLED)
    for result in (huge, killed):
        cache.put("pwd", "/w", result, age=cache.age)
    assert cache.get("pwd", "/w") is None
