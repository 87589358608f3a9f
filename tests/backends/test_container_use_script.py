"""The text that surrounds a command in container-use, in every shell that may be `sh` there."""

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.backends.container_use.script import WrappedCommand, unwrap, wrap
from kakoi.channel.api import Command
from kakoi.errors import SandboxError
from kakoi.results import ExecutionResult, Reason

NONCE = "0123456789abcdef"


@dataclass(frozen=True)
class Shell:
    """A `sh`, and the tools beside it."""

    argv: list[str]
    path: str
    tmp: Path

    def run(self, command: Command) -> ExecutionResult:
        wrapped = wrap(command, nonce=NONCE, suffix="here", cwd=command.cwd)
        done = subprocess.run(
            [*self.argv, "-c", wrapped.text],
            env={"PATH": self.path, "TMPDIR": str(self.tmp)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        assert done.stderr == b""
        assert list(self.tmp.iterdir()) == []
        said = done.stdout.decode("utf-8", "replace")
        return unwrap(wrapped, f"{said}\n\nAny changes", duration_ms=1)


@pytest.fixture(params=["dash", "bash", "bash as sh", "busybox"])
def shell(request: pytest.FixtureRequest, tmp_path: Path) -> Shell:
    program = str(request.param).split()[0]
    found = shutil.which(program)
    if found is None:
        pytest.skip(f"there is no {program} here")
    (tmp_path / "tmp").mkdir()
    if program != "busybox":
        argv = [found, "--posix"] if request.param == "bash as sh" else [found]
        return Shell(argv, "/usr/bin:/bin", tmp_path / "tmp")
    # A small image: nothing but busybox, and no bash.
    tools = tmp_path / "bin"
    tools.mkdir()
    subprocess.run([found, "--install", "-s", str(tools)], check=True)
    return Shell([str(tools / "sh")], str(tools), tmp_path / "tmp")


def test_streams_and_status_are_told_apart(shell: Shell) -> None:
    result = shell.run(Command(command="echo out; echo err >&2; exit 3", timeout_s=30))
    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")


def test_a_flood_is_cut(shell: Shell) -> None:
    result = shell.run(Command(command="yes | head -c 3000000", max_output_bytes=10))
    assert (result.stdout, result.stdout_truncated) == ("y\n" * 5, True)
    assert result.stdout_bytes > 2_900_000  # busybox's head takes a little more than it gives.


def test_what_takes_too_long_is_ended_with_what_it_wrote(shell: Shell) -> None:
    result = shell.run(Command(command="echo begun; sleep 66.5 & sleep 66.5", timeout_s=2))
    assert (result.reason, result.exit_code, result.stdout) == (Reason.TIMED_OUT, 124, "begun\n")


@pytest.mark.parametrize("start", ["sleep 67.5 &", "setsid sleep 67.5 &"])
def test_a_child_that_holds_the_output_holds_nothing_up(shell: Shell, start: str) -> None:
    result = shell.run(Command(command=f"{start} echo said"))
    assert (result.exit_code, result.stdout) == (0, "said\n")


def test_words_variables_and_the_directory_arrive(shell: Shell) -> None:
    command = Command(
        command=["sh", "-c", 'pwd; echo "$A" "$1"', "x", "it's"], cwd="/usr", env={"A": "'\n$B"}
    )
    assert shell.run(command).stdout == "/usr\n'\n$B it's\n"


def test_what_cannot_start_never_did(shell: Shell) -> None:
    for command in (Command(command=["no-such-program"]), Command(command="pwd", cwd="/nope")):
        assert shell.run(command).reason is Reason.NEVER_STARTED


def test_a_command_that_kills_its_shell_has_a_status(shell: Shell) -> None:
    assert shell.run(Command(command="kill -9 $$")).exit_code == 137


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1))
def test_any_text_reaches_the_shell_as_it_is(text: str) -> None:
    wrapped = wrap(Command(command=["printf", "%s", text]), nonce=NONCE, suffix="x", cwd=None)
    line = next(each for each in wrapped.text.split("\nset -- ", 1)[1:])
    done = subprocess.run(
        ["sh", "-c", f'set -- {line.partition(chr(10) + "command -v")[0]}\nprintf %s "$3"'],
        capture_output=True,
        check=True,
    )
    assert done.stdout == text.encode()


WRAPPED = WrappedCommand("", NONCE, 100)
GOOD = f"\n{NONCE}:o\nout\n{NONCE}:e\nerr\n{NONCE}:x exited 0 3 3\n"


def test_the_answer_is_read_back() -> None:
    assert unwrap(WRAPPED, GOOD + "more", duration_ms=7) == ExecutionResult(
        0, "out", "err", 7, stdout_bytes=3, stderr_bytes=3
    )


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "all went well",
        GOOD.replace("exited", "triumphed"),
        GOOD.replace(" 0 3 3", " 0 3"),
        GOOD.replace(" 0 3 3", f" {10**20} 3 3"),
        GOOD.replace(" 0 3 3", " -1 3 3"),
        GOOD.replace(":o", ":e"),
        GOOD + f"\n{NONCE}:x exited 0 0 0\n",
        GOOD.replace("out", f"out\n{NONCE}:e\n"),
        GOOD[:-3],
        GOOD.replace(NONCE, NONCE[::-1]),
    ],
)
def test_an_answer_in_another_shape_is_none(answer: str) -> None:
    with pytest.raises(SandboxError):
        unwrap(WRAPPED, answer, duration_ms=1)


@given(st.text())
def test_whatever_is_answered_is_a_result_or_an_error_of_ours(answer: str) -> None:
    for each in (answer, answer + GOOD, GOOD + answer):
        try:
            unwrap(WRAPPED, each, duration_ms=1)
        except SandboxError:
            continue
