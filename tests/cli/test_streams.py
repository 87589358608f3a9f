"""Standard streams that are closed, full, left or non-blocking, and Ctrl-C: of every command."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.cli.calling import Home
from tests.cli.terminals import KAKOI, PATIENCE_S, Door

# A command of each way to write, and the status that it has where all is well.
WRITING = {
    "--version": 0,
    "-h": 0,
    "check --json ls": 0,
    "check sudo": 126,
    "policy show": 0,
}
# What reads finds the end at once, and answers that.
READING = {"check -": 126, "check --jsonl": 0, "hook claude-code": 2, "prompt --into -": 0}
SILENT = {"copy diff": 0, "copy changes": 0}
WRONG = {"frob": 2, "check --frob": 2, "hook": 2, "hook claude-code --frob": 2, "run": 125}


def shell(home: Home, words: str, redirections: str) -> tuple[int, str]:
    """The status, and what is said on standard error, of `kakoi` as a shell starts it."""
    said = home.root / "stderr"
    script = f'"$@" {redirections}'
    with said.open("wb") as errors:
        done = subprocess.run(
            ["sh", "-c", script, "sh", *KAKOI, *words.split()],
            cwd=home.project,
            env=home.environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            timeout=PATIENCE_S,
            check=False,
        )
    return done.returncode, said.read_text()


@pytest.mark.parametrize(("words", "status"), [*WRITING.items(), *READING.items(), *SILENT.items()])
def test_closed_streams_change_no_status(home: Home, words: str, status: int) -> None:
    was, said = shell(home, words, "<&- >&-")
    assert (was, "Traceback" in said, "NoneType" in said) == (status, False, False)
    assert shell(home, words, "<&- >&- 2>&-")[0] == status


@pytest.mark.parametrize("words", WRITING)
def test_a_full_disk_is_reported_in_one_line(home: Home, words: str) -> None:
    told = "kakoi: cannot write to stdout: No space left on device\n"
    assert shell(home, words, ">/dev/full") == (2, told)


@pytest.mark.parametrize(("words", "status"), WRONG.items())
def test_what_nobody_hears_changes_no_status(home: Home, words: str, status: int) -> None:
    for nowhere in ("2>/dev/full", "2>&-"):
        assert shell(home, words, nowhere)[0] == status


@pytest.mark.parametrize("words", WRITING)
def test_a_reader_that_stops_ends_it_quietly(home: Home, words: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [*KAKOI, *words.split()],
            cwd=home.project,
            env=home.environ,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=subprocess.PIPE,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        os.close(writing)
    assert (done.returncode, done.stderr) == (128 + signal.SIGPIPE, b"")


def test_ctrl_c_has_a_status_of_its_own_and_no_words(door: Door) -> None:
    with door.started("check", "--jsonl") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(json.dumps({"command": "ls"}).encode() + b"\n")
        assert json.loads(process.stdout.readline())["verdict"] == "allow"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGINT
        assert process.stderr.read() == b""


def test_a_character_that_the_terminal_does_not_have_is_written_out(home: Home) -> None:
    # Python reads the variable when it starts.
    done = subprocess.run(
        [*KAKOI, "check", "echo 囲い"],
        env={**home.environ, "PYTHONIOENCODING": "latin-1"},
        cwd=home.project,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == b"allow: echo \\u56f2\\u3044\n"


# --- Non-blocking ----------------------------------------------------------------------------


@contextlib.contextmanager
def non_blocking_pipe(which: int) -> Iterator[list[int]]:
    """Two ends, of which one has been made non-blocking, as programs that share it do."""
    ends = list(os.pipe())
    os.set_blocking(ends[which], False)
    try:
        yield ends
    finally:
        for end in ends:
            with contextlib.suppress(OSError):
                os.close(end)


def test_an_input_that_has_nothing_yet_has_not_ended(door: Door) -> None:
    with non_blocking_pipe(0) as (reading, writing):
        process = subprocess.Popen(
            [*KAKOI, "run", "cat"],
            cwd=door.workspace,
            env=door.environ,
            stdin=reading,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with process:
            assert process.stdout is not None
            for line in (b"first\n", b"second\n"):
                os.write(writing, line)
                assert process.stdout.readline() == line
            os.close(writing)
            assert process.wait(PATIENCE_S) == 0


def test_an_output_that_is_full_for_now_is_waited_for(home: Home) -> None:
    _, expected, _ = home("policy", "show", "--json")
    with non_blocking_pipe(1) as (reading, writing):
        process = subprocess.Popen(
            [*KAKOI, "policy", "show", "--json"],
            cwd=home.project,
            env=home.environ,
            stdin=subprocess.DEVNULL,
            stdout=writing,
        )
        os.close(writing)
        with process, open(reading, "rb", closefd=False) as output:
            assert output.read().decode() == expected
            assert process.wait(PATIENCE_S) == 0
    assert len(expected) > 65536, "a pipe holds all of it, so that nothing is tried"


AT_THE_END = """
import atexit, sys, threading
from kakoi.cli import main
class Loud:
    def __del__(self):
        print("destroyed")
kept = Loud()
may_end = threading.Event()
threading.Thread(target={work}, daemon={daemon}).start()
atexit.register(lambda: print("exit function"))
sys.argv = ["kakoi", "--version"]
main()
"""


@pytest.mark.parametrize(
    ("daemon", "work", "expected"),
    [
        (True, "may_end.wait", ["exit function"]),
        (
            False,
            "lambda: (threading.main_thread().join(), print('thread'))",
            ["thread", "exit function"],
        ),
    ],
    ids=["daemon", "awaited"],
)
def test_it_waits_for_threads_at_the_end_and_not_for_daemons(
    daemon: bool, work: str, expected: list[str]
) -> None:
    code = AT_THE_END.format(work=work, daemon=daemon)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    _version, *lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (0, "")
    # With a daemon alone nothing is destroyed: that takes longer than the rest of the end.
    assert [line for line in lines if line != "destroyed"] == expected
    assert ("destroyed" in lines) is not daemon
