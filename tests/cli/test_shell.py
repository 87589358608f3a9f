"""`kakoi shell`: a person's own shell, on a real terminal."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.cli.terminals import Door, alive, terminal, until

PROMPT = b"(kakoi) "


def test_without_a_terminal_it_says_so_and_what_to_use_instead(door: Door) -> None:
    status, out, err = door("shell")
    assert (status, out) == (125, "")
    assert "terminal" in err
    assert "`kakoi run`" in err
    assert door.records() == []


def test_it_is_the_users_own_shell_and_its_exit_status_is_ours(any_door: Door) -> None:
    with terminal(any_door, "shell") as screen:
        screen.until(PROMPT)
        assert screen.is_raw
        screen.type(b"sudo-like-nonsense; echo status $?\r")  # Judged, it would be refused.
        screen.until(b"status 127")
        screen.type(b"pwd; exit 7\r")
        screen.until(str(any_door.workspace).encode())
        assert screen.wait() == 7
        assert screen.settings() == screen.before
    assert any_door.records() == ["started", "ended"]
    assert "nonsense" not in any_door.log.read_text()


def test_it_follows_the_size_of_the_terminal(any_door: Door) -> None:
    with terminal(any_door, "shell", rows=30, columns=90) as screen:
        screen.until(PROMPT)
        screen.type(b"stty size; echo $TERM\r")
        assert b"30 90" in screen.until(b"vt100\r\n")
        screen.resize(41, 123)
        # It is told when it next has the word: the size may be a moment behind the question.
        screen.type(b"until [ \"$(stty size)\" = '41 123' ]; do :; done; echo n''ow\r")
        screen.until(b"now\r\n")
        screen.type(b"exit\r")
        assert screen.wait() == 0


def test_ctrl_c_is_for_what_runs_in_the_shell_and_not_for_the_shell(
    any_door: Door, mark: str
) -> None:
    with terminal(any_door, "shell") as screen:
        screen.until(PROMPT)
        screen.type(f"echo u''p; sleep {mark}\r".encode())
        screen.until(b"up\r\n")
        until(lambda: alive(mark), "it sleeps")
        screen.type(b"\x03")
        screen.until(PROMPT)
        screen.type(b"\x04")  # Ctrl-D ends it.
        assert screen.wait() == 130
    assert alive(mark) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_of_it_and_gives_the_terminal_back(
    any_door: Door, mark: str, number: int
) -> None:
    with terminal(any_door, "shell") as screen:
        screen.until(PROMPT)
        screen.type(f"setsid sleep {mark} & trap '' TERM HUP; echo u''p\r".encode())
        screen.until(b"up\r\n")
        until(lambda: alive(mark), "it sleeps")
        screen.process.send_signal(number)
        assert screen.wait() == 128 + number
        assert screen.settings() == screen.before
    assert alive(mark) == []
    assert any_door.records() == ["started", "ended"]


def test_it_is_confined(confined_door: Door) -> None:
    with terminal(confined_door, "shell") as screen:
        screen.until(PROMPT)
        screen.type(b"touch /etc/kakoi-was-here; touch here; echo status $?\r")
        assert b"Read-only file system" in screen.until(b"status 0")
        screen.type(b"exit\r")
        assert screen.wait() == 0
    assert (confined_door.workspace / "here").exists()


def test_where_there_is_no_bash_it_is_sh(door: Door, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    sh = shutil.which("sh")
    assert sh is not None
    os.symlink(sh, programs / "sh")
    poor = Door(door.workspace, door.log, {**door.env, "PATH": str(programs)})
    with terminal(poor, "shell") as screen:
        screen.until(PROMPT)
        screen.type(b"echo $0; exit 3\r")
        screen.until(b"sh\r\n")
        assert screen.wait() == 3
    assert poor.records() == ["started", "ended", "started", "ended"]
