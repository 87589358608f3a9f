"""Where create_executor() finds its configuration and its whitelist."""

import logging
import subprocess
import sys
from pathlib import Path

import pytest

from kakoi.bash_executor import CommandNotAllowedError, ConfigurationError, create_executor
from kakoi.bash_executor.config_loader import SHIPPED

# The files of the spec, at the paths of the spec; only the root differs.
CONFIG = """
executor:
  root_dir: {root}
  shell: /bin/bash
  timeout: 30

security:
  enable_whitelist: true
  whitelist_file: config/bash_executor/commands_whitelist.txt
  block_patterns:
    - "`"
    - "$("

logging:
  level: INFO
  format: "%(asctime)s - %(name)s - %(levelname)s - %(message)s"
"""
PROGRAM = """
from kakoi.bash_executor import CommandNotAllowedError, create_executor

executor = create_executor()
print(executor.config_file)
print(executor.execute("echo listed")["stdout"], end="")
try:
    executor.execute("ls")
except CommandNotAllowedError:
    print("not listed")
"""


@pytest.fixture
def project(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of a user without files of their own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    monkeypatch.chdir(root)
    return root


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")
    return path


@pytest.mark.requirement("C-002", "C-028")
def test_a_program_finds_the_files_where_the_spec_puts_them(project: Path) -> None:
    folder = project / "config" / "bash_executor"
    file = write(folder / "config.yaml", CONFIG.format(root=project))
    write(folder / "commands_whitelist.txt", "# One of them\necho\n")
    argv = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(argv, cwd=project, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{file}\nlisted\nnot listed\n", done.stderr
    assert "echo listed" in done.stderr  # By the `format` of the file.


@pytest.mark.requirement("C-002")
def test_the_project_comes_before_the_user_and_the_user_before_the_shipped_file(
    project: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "kakoi")
    assert create_executor().config_file == SHIPPED
    own = write(tmp_path / "xdg/kakoi/bash_executor/config.yaml", "executor: {timeout: 7}\n")
    assert create_executor().config_file == own
    ours = write(project / "config/bash_executor/config.yaml", "executor: {timeout: 8}\n")
    assert create_executor().config_file == ours
    assert create_executor(own).config_file == own
    told = [record.message for record in caplog.records]
    assert told == [f"the configuration is {each}" for each in (SHIPPED, own, ours, own)]


@pytest.mark.parametrize(
    "weaker", ["security: {enable_whitelist: false}", "executor: {sandbox: host}"]
)
def test_a_file_that_was_found_and_weakens_the_rules_is_a_warning(
    project: Path, caplog: pytest.LogCaptureFixture, weaker: str
) -> None:
    file = write(project / "config/bash_executor/config.yaml", weaker)
    create_executor()
    assert f"{file}, which was found and not named, turns off" in caplog.text
    caplog.clear()
    create_executor(file)
    assert caplog.text == ""


@pytest.mark.requirement("C-028")
def test_a_list_beside_the_configuration_comes_before_one_in_the_working_directory(
    project: Path,
) -> None:
    file = write(project / "settings" / "mine.yaml", "security: {whitelist_file: list.txt}")
    write(project / "list.txt", "ls")
    executor = create_executor(file)
    assert executor.execute("ls")["exit_code"] == "0"
    executor.close()
    write(project / "settings" / "list.txt", "echo")
    with create_executor(file) as other, pytest.raises(CommandNotAllowedError):
        other.execute("ls")


@pytest.mark.requirement("C-032")
def test_a_broken_file_in_a_place_is_an_error_and_never_skipped(project: Path) -> None:
    file = write(project / "config/bash_executor/config.yaml", "executor: {tiemout: 1}")
    with pytest.raises(ConfigurationError, match="unknown key 'tiemout'; did you mean `timeout`"):
        create_executor()
    file.unlink()
    file.symlink_to("nowhere")
    with pytest.raises(ConfigurationError, match="not found"):
        create_executor()
