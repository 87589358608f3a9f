"""Nonsense is answered with an error of ours that says what is wrong, never with a traceback."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kakoi.bash_executor import (
    CommandExecutor,
    CommandValidator,
    ConfigLoader,
    ConfigurationError,
    SecurityError,
    create_executor,
)
from kakoi.bash_executor.executor import answer_from_result
from kakoi.errors import EmptyCommandError, KakoiError, SandboxError
from kakoi.results import ExecutionResult, Reason
from tests.faces.bash_executor.conftest import Create


class Unspeakable:
    """Its repr fails."""

    def __repr__(self) -> str:
        raise RuntimeError


NO_TEXT = [None, 5, 1.5, True, b"ls", bytearray(b"ls"), ["ls"], {"ls": 1}, object(), Unspeakable()]
NO_COMMAND = [
    "echo \0",
    "echo \ud800",
    "echo \udcff",
    "x" * 70_000,
    "x" * 200_000,
    "\x1b[2J",
    "ls\r",
]


@pytest.mark.parametrize("nonsense", NO_TEXT, ids=lambda each: type(each).__name__)
def test_a_command_is_text(executor: CommandExecutor, nonsense: Any) -> None:
    validator = CommandValidator(["ls"], [])
    calls: list[Callable[[], object]] = [
        lambda: validator.validate(nonsense),
        lambda: executor.execute(nonsense),
        lambda: asyncio.run(executor.aexecute(nonsense)),
        lambda: executor.execute_many([nonsense]),
    ]
    for call in calls:
        with pytest.raises(
            ConfigurationError, match=r"the command is .*; it must be text"
        ) as wrong:
            call()
        assert wrong.value.hint


@pytest.mark.parametrize("command", NO_COMMAND, ids=lambda text: ascii(text)[:20])
def test_a_text_that_no_shell_can_have_is_refused(executor: CommandExecutor, command: str) -> None:
    for call in (executor.execute, CommandValidator(["ls", "echo"], []).validate):
        with pytest.raises(SecurityError) as refused:
            call(command)
        assert refused.value.hint
        assert len(str(refused.value)) < 500


@pytest.mark.parametrize("nothing", ["", " ", "\n\n", "# comment"])
def test_an_empty_command_is_refused_and_a_slip_of_the_caller(
    executor: CommandExecutor, nothing: str
) -> None:
    with pytest.raises(EmptyCommandError, match="Empty command"):
        executor.execute(nothing)
    with pytest.raises(ValueError, match="Empty command"):
        executor.execute(nothing)


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), "5", True, b"", [], 10**12])
def test_a_timeout_is_a_time(executor: CommandExecutor, timeout: Any) -> None:
    for call in (executor.execute, lambda *a, **k: asyncio.run(executor.aexecute(*a, **k))):
        with pytest.raises(ConfigurationError, match="timeout is"):
            call("ls", timeout=timeout)


@pytest.mark.parametrize("commands", ["ls", b"ls", None, 5])
def test_commands_are_a_list(executor: CommandExecutor, commands: Any) -> None:
    with pytest.raises(ConfigurationError, match="a list of commands"):
        executor.execute_many(commands)


def test_nothing_of_a_batch_runs_if_one_of_it_is_no_text(
    executor: CommandExecutor, root: Path
) -> None:
    commands: Any = ["touch marker", None]
    with pytest.raises(ConfigurationError):
        executor.execute_many(commands)
    assert list(root.iterdir()) == []


NONSENSE: list[tuple[str, Callable[[], object]]] = [
    ("whitelist is 'ls'", lambda: CommandValidator("ls", [])),
    ("whitelist is 5", lambda: CommandValidator(5, [])),  # type: ignore[arg-type]
    (r"whitelist is \[5\]", lambda: CommandValidator([5], [])),  # type: ignore[list-item]
    (r"whitelist is \[''\]", lambda: CommandValidator([""], [])),
    ("it must be a name", lambda: CommandValidator(["/bin/ls"], [])),
    ("block_patterns is '`'", lambda: CommandValidator([], "`")),
    (r"block_patterns is \[''\]", lambda: CommandValidator([], [""])),
    ("enable_whitelist is 'no'", lambda: CommandValidator([], [], "no")),  # type: ignore[arg-type]
    ("a validator is 5", lambda: CommandValidator([], [], True, [5])),  # type: ignore[list-item]
    ("validators is 5", lambda: CommandValidator([], [], True, 5)),  # type: ignore[arg-type]
    ("the validator is None", lambda: CommandExecutor(None)),  # type: ignore[arg-type]
    ("the sandbox is 'host'", lambda: CommandExecutor(CommandValidator([]), sandbox="host")),  # type: ignore[arg-type]
    ("root_dir is 5", lambda: CommandExecutor(CommandValidator([]), 5)),  # type: ignore[arg-type]
    ("root_dir is ''", lambda: CommandExecutor(CommandValidator([]), "")),
    ("a path without a NUL", lambda: CommandExecutor(CommandValidator([]), "a\0b")),
    ("pure_commands is 'ls'", lambda: CommandExecutor(CommandValidator([]), pure_commands="ls")),
    ("timeout is 0", lambda: CommandExecutor(CommandValidator([]), timeout=0)),
    ("configuration is 5", lambda: create_executor(5)),  # type: ignore[arg-type]
    ("configuration is b", lambda: create_executor(b"x")),  # type: ignore[arg-type]
    ("configuration is ''", lambda: ConfigLoader("")),
    ("a path without a NUL", lambda: ConfigLoader("a\0b")),
    ("configuration file .* not found", lambda: ConfigLoader("/nonexistent/config.yaml")),
    ("Is a directory", lambda: ConfigLoader("/")),
    ("too long", lambda: ConfigLoader("x" * 5000)),
    ("the key is 5", lambda: ConfigLoader().get(5)),  # type: ignore[arg-type]
    ("root_dir is", lambda: create_executor(root_dir="/nonexistent")),
]


@pytest.mark.parametrize(("said", "call"), NONSENSE, ids=[said for said, _ in NONSENSE])
def test_wrong_arguments_are_named(said: str, call: Callable[[], object]) -> None:
    with pytest.raises(ConfigurationError, match=said):
        call()


def test_a_sandbox_that_is_not_there_is_an_error_and_no_other_is_taken(create: Create) -> None:
    settings = {"type": "docker", "docker": {"image": "kakoi.invalid/none:0"}}
    with pytest.raises(SandboxError):
        create(sandbox=settings).execute("echo a")


def test_a_lost_sandbox_is_no_result_of_the_command() -> None:
    lost = ExecutionResult(125, "so far", "", 1, reason=Reason.SANDBOX_LOST, error="it is gone")
    with pytest.raises(SandboxError, match="it is gone") as failed:
        answer_from_result(lost, cwd="/w", limit_s=1, note="")
    assert failed.value.details["stdout"] == "so far"


def test_a_closed_executor_says_so(create: Create) -> None:
    executor = create()
    executor.execute("true")
    executor.close()
    executor.close()
    with pytest.raises(KakoiError, match="closed"):
        executor.execute("true")


@pytest.mark.requirement("C-032")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nowhere.txt", "nowhere.txt.* not found"),
        ("folder", "cannot read .*folder: Is a directory"),
        ("pipe", "pipe is not a regular file"),
        ("loop", "cannot read .*loop: Too many levels"),
        ("big", "is too long"),
        ("latin", "not UTF-8"),
    ],
)
def test_a_missing_or_broken_whitelist_is_a_configuration_error(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "big").write_bytes(b"#" * 2_000_000)
    (tmp_path / "latin").write_bytes(b"ls\n\xff")
    config = tmp_path / "config.yaml"
    config.write_text(f"security: {{whitelist_file: {name}}}", "utf-8")
    with pytest.raises(ConfigurationError, match=f"^security.whitelist_file: .*{said}"):
        ConfigLoader(config).load_whitelist()


def test_a_toml_file_has_no_lines_to_tell(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[exector]\ntimeout = 1\n")
    with pytest.raises(ConfigurationError, match=r"config\.toml: the configuration: unknown key"):
        ConfigLoader(tmp_path / "config.toml")
