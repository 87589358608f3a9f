"""Results of pure commands are used again, until anything else runs; the gate hears of each."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kakoi.audit import Event, read, verify
from kakoi.bash_executor import CommandExecutor, SecurityError
from kakoi.bash_executor.executor import PureResults, tree_state
from kakoi.results import ExecutionResult, Reason
from tests.faces.bash_executor.conftest import Create
from tests.tasks.hosting import wait_until

PURE = ["cat", "pwd", "git status", "grep"]


@pytest.fixture
def caching(create: Create, root: Path) -> CommandExecutor:
    (root / "file").write_text("one\n", "utf-8")
    (root / "d").mkdir()
    (root / "d" / "deep").write_text("deep\n", "utf-8")
    settle(root)
    return create(pure_commands=PURE)


def settle(root: Path) -> None:
    """Wait for the clock of the file system, which ticks every few milliseconds."""
    wait_until(lambda: tree_state(str(root)) is not None)


def said(executor: CommandExecutor, command: str) -> str:
    return executor.execute(command)["stdout"]


def test_a_pure_command_runs_once_until_another_one_runs(
    caching: CommandExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    def is_cached(command: str) -> bool:
        caplog.clear()
        caching.execute(command)
        return "answered from the cache" in caplog.messages[-1]

    commands = ["cat file", "cat file", "cat file | grep o", "true", "cat file", "cat file"]
    assert [is_cached(each) for each in commands] == [False, True, False, False, False, True]


ANOTHER = "import sys; open(sys.argv[1], 'w').write('two\\n')"
CHANGES: dict[str, Callable[[Path], object]] = {
    "another process writes": lambda root: subprocess.run(
        [sys.executable, "-c", ANOTHER, root / "file"], check=True, timeout=60
    ),
    "the same size at the same time": lambda root: _rewrite(root / "file", "two\n"),
    "another file takes its name": lambda root: os.replace(root / "d" / "deep", root / "file"),
    "a new file": lambda root: (root / "d" / "new").write_text("file:one"),
    "only a mode": lambda root: (root / "file").chmod(0o600),
}


def _rewrite(file: Path, text: str) -> None:
    about = file.stat()
    file.write_text(text, "utf-8")
    os.utime(file, ns=(about.st_atime_ns, about.st_mtime_ns))


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_result_is_not_used_again_after_anybody_changed_a_file(
    caching: CommandExecutor, root: Path, change: Callable[[Path], object]
) -> None:
    command = "grep -rh . file d"
    assert said(caching, command) == "one\ndeep\n"
    assert said(caching, command) == "one\ndeep\n"
    change(root)
    files = [root / "file", *sorted((root / "d").iterdir())]
    found = "".join(f"{each.read_text().strip()}\n" for each in files)
    assert sorted(said(caching, command).splitlines()) == sorted(found.splitlines())


def test_a_tree_that_cannot_be_known_is_not_cached(tmp_path: Path) -> None:
    settle(tmp_path)
    assert tree_state(str(tmp_path)) == tree_state(str(tmp_path))
    assert tree_state(str(tmp_path / "none")) is None
    (tmp_path / "new").touch()
    future = tmp_path.stat().st_ctime_ns
    assert tree_state(str(tmp_path), now_ns=future) is None
    assert tree_state(str(tmp_path), most_files=0) is None
    assert tree_state(str(tmp_path), now_ns=future + 1) is not None


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
        cache.put(f"cat {number}", "/w", result, age=cache.age, state=b"x")
        cache.get("cat 0", "/w", state=b"x")
    assert cache.get("cat 0", "/w", state=b"x")
    assert cache.get("cat 299", "/w", state=b"x")
    assert cache.get("cat 299", "/w", state=b"y") is None
    assert cache.get("cat 299", "/w", state=None) is None
    assert cache.get("cat 1", "/w", state=b"x") is None


def test_a_result_that_something_ran_beside_is_not_kept() -> None:
    cache = PureResults(PURE)
    good = ExecutionResult(0, "", "", 1, cwd="/w")
    age = cache.age
    cache.clear()  # Another thread ran `touch x` meanwhile.
    cache.put("pwd", "/w", good, age=age, state=b"x")
    huge = dataclasses.replace(good, stdout_bytes=10**6)
    killed = dataclasses.replace(good, reason=Reason.SIGNALLED)
    for result in (huge, killed):
        cache.put("pwd", "/w", result, age=cache.age, state=b"x")
    cache.put("pwd", "/w", good, age=cache.age, state=None)
    assert cache.get("pwd", "/w", state=b"x") is None
