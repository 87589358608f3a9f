"""CommandExecutor (spec C): results, refusals, time, and the directory."""

import inspect
import logging
import os
from pathlib import Path

import pytest

from kakoi.bash_executor import CommandExecutor, SecurityError, TimeoutError
from kakoi.errors import ExecutionError, SandboxError
from tests.faces.bash_executor.conftest import Create


@pytest.mark.requirement("C-017", "C-018")
def test_a_result_has_four_texts(executor: CommandExecutor, root: Path) -> None:
    result = executor.execute("echo out; echo err >&2")
    assert result == {"stdout": "out\n", "stderr": "err\n", "cwd": str(root), "exit_code": "0"}
    assert executor.execute("exit 3")["exit_code"] == "3"


def test_another_status_than_0_is_a_result(executor: CommandExecutor) -> None:
    assert executor.execute("exit 7")["exit_code"] == "7"
    assert executor.execute("cat nowhere")["exit_code"] == "1"
    missing = executor.execute("pylint --version")  # Listed, and not in the sandbox.
    assert (missing["exit_code"], missing["stdout"]) == ("127", "")


@pytest.mark.requirement("C-019", "C-021", "X-12", "Y-05")
def test_a_change_of_directory_lasts(executor: CommandExecutor, root: Path) -> None:
    assert executor.get_cwd() == str(root)
    executor.execute("mkdir -p sub/deep")
    assert executor.execute("cd sub")["cwd"] == f"{root}/sub"
    assert executor.execute("pwd")["stdout"] == f"{root}/sub\n"
    assert executor.execute("cd deep; exit 3")["cwd"] == executor.get_cwd() == f"{root}/sub/deep"
    assert executor.execute("(cd ..); cd ../.. | cat")["cwd"] == f"{root}/sub/deep"
    assert executor.execute("cd ../..")["cwd"] == str(root)


@pytest.mark.requirement("C-020")
def test_a_refused_command_has_no_effect(executor: CommandExecutor, root: Path) -> None:
    for command in ("touch marker; sudo id", "touch marker && echo `id`", "touch marker | frob"):
        with pytest.raises(SecurityError):
            executor.execute(command)
    assert list(root.iterdir()) == []


@pytest.mark.requirement("C-022")
@pytest.mark.parametrize("command", ["cd ..", "cd /", "cd out", "cd sub && cd ../..", "cd -P out"])
def test_the_root_is_never_left(executor: CommandExecutor, root: Path, command: str) -> None:
    (root / "sub").mkdir()
    (root / "out").symlink_to("/etc")
    result = executor.execute(command)
    assert result["cwd"] == executor.get_cwd() == str(root)
    assert result["stderr"].count("\n") == 1
    assert "the working directory is still" in result["stderr"]
    assert executor.execute("pwd")["stdout"] == f"{root}\n"


@pytest.mark.requirement("C-023", "C-024")
def test_a_command_that_takes_too_long_raises_with_what_it_said(
    create: Create, caplog: pytest.LogCaptureFixture
) -> None:
    timeout = inspect.signature(CommandExecutor).parameters["timeout"]
    assert timeout.default == create()._timeout_s == 30
    with pytest.raises(TimeoutError, match="after 2s") as late:
        create(timeout=2).execute("echo begun; sleep 30")
    assert late.value.details["stdout"] == "begun\n"
    assert isinstance(late.value, ExecutionError)
    assert isinstance(late.value, SandboxError)
    assert isinstance(late.value, OSError)  # As the built-in TimeoutError is.
    assert "echo begun; sleep 30" in caplog.text


@pytest.mark.requirement("C-024")
def test_every_command_is_logged_without_secrets(
    executor: CommandExecutor, caplog: pytest.LogCaptureFixture
) -> None:
    executor.execute("echo 'first' && API_TOKEN=hunter2hunter2 ls")
    with pytest.raises(SecurityError):
        executor.execute("sudo id")
    said = [(record.name, record.levelno, record.getMessage()) for record in caplog.records]
    assert [(name, level) for name, level, _ in said] == [
        ("kakoi.bash_executor", logging.INFO),
        ("kakoi.bash_executor", logging.WARNING),
    ]
    assert "echo 'first'" in said[0][2]
    assert "hunter2" not in said[0][2]
    assert "sudo id" in said[1][2]


@pytest.mark.requirement("C-026", "X-13")
def test_the_shell_is_a_bash_that_reads_no_settings(
    executor: CommandExecutor, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "settings").write_text("echo read", "utf-8")
    monkeypatch.setenv("BASH_ENV", str(root / "settings"))
    assert executor.execute("echo {1..3} $BASH_ENV")["stdout"] == "1 2 3\n"


@pytest.mark.requirement("C-033")
def test_the_configuration_is_not_read_for_each_command(create: Create, tmp_path: Path) -> None:
    (tmp_path / "list.txt").write_text("echo\n", "utf-8")
    executor = create(security={"whitelist_file": "list.txt"})
    os.unlink(tmp_path / "list.txt")
    (tmp_path / "config.yaml").write_text("broken: [", "utf-8")
    assert executor.execute("echo a")["stdout"] == "a\n"
    with pytest.raises(SecurityError):
        executor.execute("ls")
