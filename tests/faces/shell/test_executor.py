"""ShellExecutor: what it translates, on a real sandbox."""

import asyncio
import builtins
import inspect
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

import kakoi.shell
from kakoi._support.text import short_repr
from kakoi.audit import Event, read
from kakoi.backends.probes import processes_outside
from kakoi.errors import (
    ConfigurationError,
    EmptyCommandError,
    ExecutionError,
    KakoiError,
    SandboxError,
)
from kakoi.shell import (
    SecurityError,
    ShellExecutor,
    ShellResult,
    TimeoutError,
    UserCancelledError,
)

pytestmark = pytest.mark.anyio
ALLOWED_BY_D = (
    "git ls cat find grep mkdir rm cp mv npm pip uv poetry yarn make cmake cargo go pytest jest vitest "
    "echo pwd which wc sort uniq"
)


def events(tmp_path: Path) -> list[tuple[Event, str]]:
    return [(entry.event, entry.command) for entry in read(tmp_path / "audit.jsonl")]


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


# --- What it is made of ----------------------------------------------------------------------


@pytest.mark.requirement("D-001", "Y-07")
def test_the_five_names_are_there_and_belong_to_one_tree() -> None:
    assert sorted(kakoi.shell.__all__) == [
        "SecurityError",
        "ShellExecutor",
        "ShellResult",
        "TimeoutError",
        "UserCancelledError",
    ]
    assert all(issubclass(each, KakoiError) for each in (SecurityError, UserCancelledError))
    assert issubclass(TimeoutError, builtins.TimeoutError)


@pytest.mark.requirement("D-002")
def test_the_constructor_has_the_arguments_of_the_spec() -> None:
    parameters = list(inspect.signature(ShellExecutor).parameters.values())[:5]
    assert [(each.name, each.default) for each in parameters] == [
        ("allowed_commands", None),
        ("blocked_commands", None),
        ("working_dir", None),
        ("timeout", 30),
        ("require_confirmation", False),
    ]


def test_settings_can_be_read_back(workspace: Path) -> None:
    executor = ShellExecutor(["ls"], ["git push"], workspace, 5)
    assert executor.allowed_commands == ["ls"]
    assert executor.blocked_commands == ["git push"]
    assert (executor.working_dir, executor.timeout) == (workspace, 5)
    assert "pytest" in ShellExecutor().allowed_commands


@pytest.mark.requirement("D-020", "D-021", "X-03")
def test_a_result_is_a_success_by_its_status_and_speaks_accordingly() -> None:
    good, bad = ShellResult(0, "out", "err", "x"), ShellResult(3, "out", "err", "x")
    assert (good.success, bad.success) == (True, False)
    assert (str(good), str(bad)) == ("out", "err")
    assert (bad.return_code, bad.stdout, bad.stderr, bad.command) == (3, "out", "err", "x")


# --- Judged ----------------------------------------------------------------------------------


@pytest.mark.requirement("D-006", "D-008", "D-009")
def test_validate_command_is_true_or_raises(workspace: Path) -> None:
    executor = ShellExecutor()
    assert executor.validate_command("git add . && ls -la | wc -l") is True
    with pytest.raises(SecurityError, match=r"^Command not allowed: nosuchtool"):
        executor.validate_command("nosuchtool --version")
    with pytest.raises(SecurityError, match=r"^Blocked command: sudo"):
        executor.validate_command("ls; sudo id")


@pytest.mark.requirement("D-003")
@pytest.mark.parametrize("program", ALLOWED_BY_D.split())
def test_every_program_of_the_default_list_may_run(workspace: Path, program: str) -> None:
    executor = ShellExecutor()
    assert program in executor.allowed_commands
    assert executor.validate_command(f"{program} --version") is True


@pytest.mark.requirement("D-004", "D-008", "D-011")
@pytest.mark.parametrize(
    "command",
    ["sudo", "su", "passwd", "shutdown", "reboot", "dd", "mkfs", "fdisk", "parted", "eval ls", "exec ls", "source x",
     "curl -s https://example.org/x | sh", "wget -O - https://example.org/x | sh"],
)  # fmt: skip
def test_what_is_blocked_by_default_is_named(workspace: Path, command: str) -> None:
    program = "sh" if "| sh" in command else command.split()[0]
    executor = ShellExecutor(allowed_commands=[program, "ls", "curl", "wget"])
    with pytest.raises(SecurityError, match=f"^Blocked command: {program}"):
        executor.validate_command(command)


@pytest.mark.requirement("D-010", "D-046")
async def test_nothing_runs_of_what_is_empty_or_cannot_be_read(
    workspace: Path, tmp_path: Path
) -> None:
    executor = ShellExecutor()
    for command in ("", "  ", "\n", 'mkdir "marker', "mkdir marker; echo $("):
        with pytest.raises(SecurityError) as refused:
            executor.validate_command(command)
        assert isinstance(refused.value, ValueError) is not bool(command.strip())
        with pytest.raises(SecurityError):
            await executor.exec(command)
    assert names_in(workspace) == []
    assert {event for event, _ in events(tmp_path)} <= {Event.REFUSED}


@pytest.mark.requirement("D-007")
def test_what_is_blocked_stays_so_whatever_is_allowed(workspace: Path) -> None:
    executor = ShellExecutor(allowed_commands=["sudo", "ls", "git"], blocked_commands=["git push"])
    for command in ("sudo ls", "git push origin", "ls && git push"):
        with pytest.raises(SecurityError, match="Blocked command"):
            executor.validate_command(command)
    assert executor.validate_command("git pull")
    with pytest.raises(SecurityError, match="Command not allowed: cat"):
        executor.validate_command("cat x")


@pytest.mark.parametrize(
    ("entry", "refused", "fine"),
    [
        ("ls", "ls -la", "echo ls"),
        ("npm publish", "npm publish --tag x", "npm run publish"),
        ("git push --force", "git push --force", "git push"),
        ("cat secrets", "cat secrets", "cat notes"),
        ("rm -rf", "rm -fr build", "rm notes"),
        ("curl -s | sh", "ls; sudo x", "ls"),
    ],
)
def test_an_entry_blocks_what_it_names(
    workspace: Path, entry: str, refused: str, fine: str
) -> None:
    executor = ShellExecutor(blocked_commands=[entry])
    with pytest.raises(SecurityError):
        executor.validate_command(refused)
    assert executor.validate_command(fine)


@pytest.mark.parametrize("entry", ["", "  ", "'", "ls | wc"])
def test_an_entry_that_could_never_match_is_an_error(workspace: Path, entry: str) -> None:
    with pytest.raises(ConfigurationError):
        ShellExecutor(blocked_commands=[entry])


@pytest.mark.requirement("D-052")
def test_there_is_no_way_to_other_machines(workspace: Path) -> None:
    executor = ShellExecutor(allowed_commands=["ssh", "scp", "git"])
    for command in ("ssh host", "scp a host:b", "git clone ext::'sh -c id'"):
        with pytest.raises(SecurityError):
            executor.validate_command(command)


# --- Run -------------------------------------------------------------------------------------


@pytest.mark.requirement("D-013", "D-016", "D-018", "X-14", "X-28")
async def test_a_command_runs_in_the_working_directory_with_its_environment(
    workspace: Path,
) -> None:
    (workspace / "sub").mkdir()
    executor = ShellExecutor(working_dir=workspace / "sub")
    pending = executor.exec('pwd; echo "$GREETING"; echo no >&2; exit 3', env={"GREETING": "hi"})
    assert inspect.iscoroutinefunction(executor.exec)
    result = await pending
    assert isinstance(result, ShellResult)
    assert result.command == 'pwd; echo "$GREETING"; echo no >&2; exit 3'
    assert result.stdout.splitlines() == [str(workspace / "sub"), "hi"]
    assert (result.return_code, result.stderr, result.success) == (3, "no\n", False)


async def test_a_program_with_arguments_meets_no_shell(workspace: Path) -> None:
    result = await ShellExecutor().exec(["echo", "$HOME; `ls`", "two  words"])
    assert result.stdout == "$HOME; `ls` two  words\n"
    assert result.command == "echo '$HOME; `ls`' 'two  words'"


@pytest.mark.requirement("D-013")
async def test_what_is_refused_has_no_effect(workspace: Path, tmp_path: Path) -> None:
    with pytest.raises(SecurityError):
        await ShellExecutor().exec("mkdir marker; sudo ls")
    assert names_in(workspace) == []
    assert events(tmp_path) == [(Event.REFUSED, "mkdir marker; sudo ls")]


@pytest.mark.parametrize("command", ["", "   ", "\n"])
async def test_an_empty_command_is_refused(workspace: Path, command: str) -> None:
    with pytest.raises(EmptyCommandError, match="Empty command") as raised:
        await ShellExecutor().exec(command)
    assert isinstance(raised.value, SecurityError)


@pytest.mark.requirement("D-017")
async def test_streams_that_are_not_captured_are_ours(
    workspace: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    result = await ShellExecutor().exec("echo seen; echo wrong >&2", capture_output=False)
    assert (result.stdout, result.stderr, result.return_code) == ("", "", 0)
    assert capfd.readouterr() == ("seen\n", "wrong\n")


@pytest.mark.parametrize("capture_output", [True, False])
async def test_a_program_that_cannot_be_started_says_why(
    workspace: Path, capture_output: bool
) -> None:
    executor = ShellExecutor(["no-such-program"])
    with pytest.raises(ExecutionError, match=r"`no-such-program` was not started: .+"):
        await executor.exec(["no-such-program"], capture_output=capture_output)


@pytest.mark.requirement("D-019", "X-02")
async def test_out_of_time_everything_is_dead(workspace: Path) -> None:
    mark = f"600.{int.from_bytes(os.urandom(6), 'big')}"
    executor = ShellExecutor(["sleep", "echo"], timeout=1)
    with pytest.raises(TimeoutError, match=r"^Command timed out after 1s$") as raised:
        await executor.exec(f"echo begun; (sleep {mark}; echo) & sleep {mark}")
    assert processes_outside(mark) == []
    assert isinstance(raised.value, builtins.TimeoutError)
    assert isinstance(raised.value, ExecutionError)
    assert isinstance(raised.value, SandboxError)
    assert raised.value.details["stdout"] == "begun\n"


@pytest.mark.requirement("D-049")
async def test_a_command_that_waits_for_input_ends(workspace: Path) -> None:
    result = await ShellExecutor(timeout=60).exec("cat; echo done")
    assert result.stdout == "done\n"


async def test_a_cancelled_call_has_ended_its_command(workspace: Path) -> None:
    executor = ShellExecutor()
    # It goes on at once when somebody reads, and it is known to run then.
    os.mkfifo(workspace / "begun")
    command = "echo > begun; sleep 300; echo > survived"
    call = asyncio.ensure_future(ShellExecutor().exec(command))
    await asyncio.to_thread((workspace / "begun").read_text)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    result = await executor.exec("ls")
    assert result.stdout == "begun\n"


def test_an_executor_outlives_an_event_loop(workspace: Path) -> None:
    executor = ShellExecutor()
    for number in range(2):
        result = asyncio.run(executor.exec(f"echo {number}"))
        assert result.stdout == f"{number}\n"


@pytest.mark.requirement("D-045")
async def test_everything_is_recorded(workspace: Path, tmp_path: Path) -> None:
    executor = ShellExecutor()
    await executor.exec("false")
    with pytest.raises(SecurityError):
        await executor.exec("reboot")
    assert events(tmp_path) == [
        (Event.STARTED, "false"),
        (Event.ENDED, ""),  # Found by the id.
        (Event.REFUSED, "reboot"),
    ]


@pytest.mark.requirement("D-005")
async def test_the_working_directory_is_the_current_one_by_default(workspace: Path) -> None:
    executor = ShellExecutor()
    assert executor.working_dir == workspace
    assert (await executor.exec("pwd")).stdout.strip() == str(workspace)


async def test_a_closed_executor_opens_a_new_sandbox(workspace: Path) -> None:
    executor = ShellExecutor()
    await executor.exec("echo > /tmp/mark")
    await executor.close()
    assert not (await executor.exec("ls /tmp/mark")).success


def test_nothing_is_left_of_a_program_that_just_ends(workspace: Path) -> None:
    code = (
        "import asyncio, os; from kakoi.shell import ShellExecutor; e = ShellExecutor();"
        "print(asyncio.run(e.exec('echo hi')).stdout, os.getpid(), flush=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr == ""
    assert done.stdout.startswith("hi")


# --- Asking ----------------------------------------------------------------------------------

ASKING = """
import asyncio, sys
from kakoi.shell import ShellExecutor, UserCancelledError
executor = ShellExecutor(require_confirmation=True)
try:
    print("result:", asyncio.run(executor.exec(sys.argv[1])).stdout)
except UserCancelledError as error:
    print("cancelled:", error)
"""


def at_a_terminal(answer: str, command: str = "echo ran > marker; echo fine") -> str:
    """What a program that asks shows on a real terminal, where `answer` is typed."""
    ours, theirs = pty.openpty()
    program = subprocess.Popen(
        [sys.executable, "-c", ASKING, command], stdin=theirs, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    seen = ""
    try:
        while "[y/N]" not in seen:
            seen += os.read(ours, 4096).decode()
        os.write(ours, answer.encode() + b"\n")
        while True:
            try:
                part = os.read(ours, 4096).decode()
            except OSError:  # The program has gone.
                return seen
            seen += part
    finally:
        program.wait(timeout=30)
        os.close(ours)


@pytest.mark.requirement("D-014", "X-21")
@pytest.mark.parametrize(
    ("answer", "runs"),
    [("y", True), ("Y", True), ("n", False), ("", False), ("yes", False), ("yy", False)],
)
def test_only_a_yes_runs_the_command(workspace: Path, answer: str, runs: bool) -> None:
    seen = at_a_terminal(answer)
    assert "Execute command: echo ran > marker; echo fine? [y/N]" in seen
    assert ("result: fine" in seen) is runs
    assert ("cancelled:" in seen) is not runs
    assert (workspace / "marker").exists() is runs


@pytest.mark.requirement("D-015", "X-21")
async def test_without_a_terminal_the_answer_is_no(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(UserCancelledError, match="there was nobody to ask") as raised:
        await ShellExecutor(require_confirmation=True).exec("echo > marker")
    assert "at a terminal" in raised.value.hint
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UserCancelledError, match="there was nobody to ask"):
        await ShellExecutor(require_confirmation=True).exec("echo > marker")
    assert not (workspace / "marker").exists()
    assert [event for event, _ in events(tmp_path)] == [Event.ASKED, Event.DECLINED] * 2


# --- The user's file -------------------------------------------------------------------------


def write_security(tmp_path: Path, text: str) -> None:
    (tmp_path / "security.toml").write_text(text, encoding="utf-8")


@pytest.mark.requirement("D-039", "X-23")
def test_the_file_of_the_spec_is_read(workspace: Path, tmp_path: Path) -> None:
    write_security(
        tmp_path,
        f"""
[shell]
enabled = true
require_confirmation = true
timeout = 12
allowed_commands = ["git", "npm", "pip", "uv", "pytest", "ls", "cat", "grep", "find"]
blocked_commands = ["sudo", "su", "rm -rf /", "dd", "eval", "exec", "curl -s | sh", "git push"]
allowed_directories = ["~/projects", "{workspace}"]
""",
    )
    executor = ShellExecutor()
    assert (executor.timeout, executor.require_confirmation) == (12, True)
    assert executor.allowed_commands[:2] == ["git", "npm"]
    for command in ("mkdir x", "git push", "sudo ls", "echo x"):
        with pytest.raises(SecurityError):
            executor.validate_command(command)
    assert executor.validate_command("git status")
    called = ShellExecutor(["mkdir"], timeout=7)
    assert (called.timeout, called.allowed_commands) == (7, ["mkdir"])


@pytest.mark.requirement("D-040")
async def test_what_is_off_runs_nothing(workspace: Path, tmp_path: Path) -> None:
    write_security(tmp_path, "[shell]\nenabled = false\n")
    with pytest.raises(SecurityError, match="shell execution is turned off"):
        await ShellExecutor(["ls"]).exec("ls")
    assert events(tmp_path) == [(Event.REFUSED, "ls")]


@pytest.mark.requirement("D-042")
async def test_the_feature_can_be_named_and_forbidden(workspace: Path, tmp_path: Path) -> None:
    write_security(tmp_path, "[features]\nshell = true\n")
    assert (await ShellExecutor().exec("echo on")).stdout == "on\n"
    for text in (
        "[features]\nshell = false\n",
        "[features]\nshell = true\n[shell]\nenabled = false\n",
    ):
        write_security(tmp_path, text)
        with pytest.raises(SecurityError, match="shell execution is turned off"):
            await ShellExecutor().exec("echo off")


@pytest.mark.requirement("D-041", "X-29")
async def test_directories_are_limited_with_links_and_home_resolved(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (workspace / "inside").mkdir()
    (tmp_path / "workspace-not").mkdir()
    (workspace / "out").symlink_to(tmp_path / "workspace-not")
    write_security(tmp_path, '[shell]\nallowed_directories = ["~/workspace"]\n')
    assert (await ShellExecutor(working_dir=workspace / "inside").exec("pwd")).success
    for outside in (workspace / "out", tmp_path / "workspace-not", tmp_path):
        with pytest.raises(SecurityError, match="not in an allowed directory"):
            await ShellExecutor(working_dir=outside).exec("pwd")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[shell]\nalowed_commands = []\n", "did you mean `allowed_commands`"),
        ("[shell]\ntimeout = 'long'\n", "a number of seconds"),
        ("[shell]\ntimeout = 0\n", "a number of seconds"),
        ("[shell]\nenabled = 'no'\n", "true or false"),
        ("[shell]\nallowed_commands = 'ls'\n", "a list of texts"),
        ("[shell]\nallowed_commands = [1]\n", "a list of texts"),
        ("[shell]\nallowed_commands = ['']\n", "none of them empty"),
        ("[shell]\nsandbox = 'dokcer'\n", "did you mean `docker`"),
        ('[shell]\nallowed_directories = ["\\u0000"]\n', "with a NUL"),
        ("shell = 3\n", "a section"),
        ("[shell\n", "is not valid TOML"),
        ("\xff\n", r"is not UTF-8 text \(byte 0\)"),
    ],
)
def test_a_wrong_file_is_an_error_that_names_the_place(
    workspace: Path, tmp_path: Path, text: str, complaint: str
) -> None:
    (tmp_path / "security.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigurationError, match=complaint) as raised:
        ShellExecutor()
    assert "security.toml" in str(raised.value) or "allowed_directories" in str(raised.value)


async def test_a_place_can_be_named_in_the_file(workspace: Path, tmp_path: Path) -> None:
    write_security(tmp_path, '[shell]\nsandbox = "host"\n')
    await ShellExecutor().exec("pwd")
    written = (tmp_path / "audit.jsonl").read_text().splitlines()
    assert json.loads(written[0])["sandbox"] == "host"


# --- Nonsense --------------------------------------------------------------------------------

NONSENSE: list[object] = [None, 3, b"ls", ["ls", 3], object(), "ls \0", "\udcff\ud800", "x" * 9**7]


@pytest.mark.parametrize("given", NONSENSE, ids=lambda given: repr(given)[:20].split(" at ")[0])
async def test_nonsense_is_told_so(workspace: Path, given: object) -> None:
    executor = ShellExecutor()
    with pytest.raises(KakoiError):
        await executor.exec(given)  # type: ignore[arg-type]
    with pytest.raises(KakoiError):
        executor.validate_command(given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "arguments",
    [
        {"timeout": 0},
        {"timeout": "x"},
        {"timeout": float("nan")},
        {"timeout": True},
        {"timeout": 10**5000},
        {"working_dir": 10**5000},
        {"working_dir": "/no/such/place"},
        {"working_dir": "a\0b"},
        {"working_dir": 3},
        {"working_dir": __file__},
        {"allowed_commands": "ls"},
        {"allowed_commands": [3]},
        {"blocked_commands": 3},
    ],
    ids=short_repr,
)
def test_nonsense_for_the_constructor_is_told_so(
    workspace: Path, arguments: dict[str, object]
) -> None:
    with pytest.raises(ConfigurationError):
        ShellExecutor(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("env", [{"A": 1}, {"A=B": "x"}, {"BASH_ENV": "x"}, {"": "x"}, 3], ids=str)
async def test_nonsense_in_the_environment_is_told_so(workspace: Path, env: object) -> None:
    with pytest.raises(KakoiError):
        await ShellExecutor().exec("ls", env=env)  # type: ignore[arg-type]
