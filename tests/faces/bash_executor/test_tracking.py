"""The tracked directory: follows the shell, never out of the root, whatever happens to it."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.bash_executor import CommandExecutor, create_executor
from kakoi.bash_executor.executor import TrackedDirectory
from kakoi.errors import ConfigurationError, ExecutionError
from tests.faces.bash_executor.conftest import Create


@pytest.mark.parametrize("name", ["two words", "a\nb", "'\"$x", "日本", "-n", ".hidden", "..."])
def test_a_directory_may_have_any_name(executor: CommandExecutor, root: Path, name: str) -> None:
    (root / name).mkdir()
    (root / "link").symlink_to(name)
    assert executor.execute("cd link")["cwd"] == f"{root}/{name}"
    assert executor.execute("pwd -P")["stdout"] == f"{root}/{name}\n"


def test_a_link_to_inside_is_followed_and_one_to_outside_is_not(
    executor: CommandExecutor, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "root-of-others").mkdir()  # Its name begins as the root's does.
    (root / "sub").mkdir()
    (root / "in").symlink_to(root / "sub")
    (root / "out").symlink_to("../root-of-others")
    assert executor.execute("cd in")["cwd"] == f"{root}/sub"
    result = executor.execute("cd ../out")
    assert result["cwd"] == f"{root}/sub"


def test_the_root_may_be_given_by_a_link(root: Path, tmp_path: Path, create: Create) -> None:
    (tmp_path / "alias").symlink_to(root)
    executor = create(root_dir=str(tmp_path / "alias"))
    assert executor.execute("pwd")["stdout"] == f"{root}\n"
    (root / "sub").mkdir()
    assert executor.execute(f"cd {root}/sub")["cwd"] == f"{root}/sub"


def test_a_command_in_a_deleted_directory_is_not_run_elsewhere(
    executor: CommandExecutor, root: Path
) -> None:
    (root / "a" / "b").mkdir(parents=True)
    executor.execute("cd a/b")
    (root / "a" / "b").rmdir()
    result = executor.execute("touch marker")
    assert result["exit_code"] == "126"
    assert "the command was not started" in result["stderr"]
    assert result["cwd"] == executor.get_cwd() == f"{root}/a"
    assert list((root / "a").iterdir()) == []
    assert executor.execute("touch marker")["exit_code"] == "0"


def test_a_shell_whose_directory_is_gone_leaves_the_tracked_one_alone(
    executor: CommandExecutor, root: Path
) -> None:
    (root / "gone").mkdir()
    result = executor.execute("cd gone; rmdir ../gone")
    assert result["cwd"] == str(root)
    assert "did not report where it ended" in result["stderr"]
    assert executor.execute("pwd")["stdout"] == f"{root}\n"


def test_a_directory_that_is_renamed_while_the_shell_is_in_it_is_followed(
    executor: CommandExecutor, root: Path
) -> None:
    (root / "a").mkdir()
    executor.execute("cd a")
    assert executor.execute("mv ../a ../b")["cwd"] == f"{root}/b"
    assert executor.execute("pwd")["stdout"] == f"{root}/b\n"


@pytest.mark.parametrize("sandbox", ["bubblewrap", "host"])
def test_a_directory_that_was_exchanged_for_a_link_is_not_entered(
    create: Create, root: Path, tmp_path: Path, sandbox: str
) -> None:
    executor = create(sandbox={"type": sandbox, "host": {"warn_on_start": False}})
    (root / "a").mkdir()
    executor.execute("cd a")
    (root / "a").rename(tmp_path / "elsewhere")
    (root / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ExecutionError, match="has become a link"):
        executor.execute("touch marker")
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert executor.execute("pwd")["stdout"] == f"{root}\n"


def test_a_directory_that_left_the_root_is_not_followed(
    executor: CommandExecutor, root: Path, tmp_path: Path
) -> None:
    (root / "a").mkdir()
    executor.execute("cd a")
    (root / "a").rename(tmp_path / "a")
    assert executor.execute("pwd")["exit_code"] == "126"
    assert executor.execute("pwd")["stdout"] == f"{root}\n"


@given(end=st.text() | st.from_regex(r"(/(\.\.?|a|out|/)){0,6}", fullmatch=True))
def test_whatever_a_shell_says_the_root_is_not_left(
    end: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = os.path.realpath(tmp_path_factory.mktemp("root"))
    os.symlink("/", f"{root}/out")
    for said in (end, root + end, f"{root}/{end}", f"{root}/out{end}"):
        tracked = TrackedDirectory(root)
        note = tracked.follow(root, said)
        assert tracked.path == root or tracked.path.startswith(root + "/")
        assert os.path.realpath(tracked.path) == tracked.path
        assert note.count("\n") == (1 if note else 0)


def test_who_stays_does_not_undo_the_move_of_another(root: Path) -> None:
    (root / "a").mkdir()
    tracked = TrackedDirectory(str(root))
    tracked.follow(str(root), f"{root}/a")
    tracked.follow(str(root), str(root))
    assert tracked.path == f"{root}/a"


def test_several_threads_use_one_executor(executor: CommandExecutor, root: Path) -> None:
    barrier = threading.Barrier(8, timeout=30)

    def work(number: int) -> str:
        barrier.wait()
        return executor.execute(f"echo {number}")["stdout"]

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(work, range(8))) == [f"{number}\n" for number in range(8)]
    assert executor.get_cwd() == str(root)


@pytest.mark.parametrize("wrong", ["nowhere", "a file"])
def test_a_root_that_is_no_directory_is_a_configuration_error(root: Path, wrong: str) -> None:
    (root / "a file").touch()
    with pytest.raises(ConfigurationError, match="root_dir"):
        create_executor(root_dir=root / wrong)
