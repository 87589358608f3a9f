"""A forked `kakoi` is the same program as a started one; and the cold start works."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.forked import Forked, kakoi, warm_folder
from tests.cli.terminals import KAKOI, PATIENCE_S

PIPES: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
SCRIPT = Path(sys.executable).with_name("kakoi")
CALLS = {
    "an answer": ["check", "ls -la | head"],
    "a refusal": ["check", "sudo id"],
    "wrong usage": ["run", "--no-such-option"],
    "a command that fails": ["run", "--sandbox", "host", "echo out; echo err >&2; exit 3"],
    "a command that reads": ["run", "--sandbox", "host", "cat"],
    "a version": ["--version"],
}


def environ(tmp_path: Path) -> dict[str, str]:
    own = {"HOME": str(tmp_path), "KAKOI_AUDIT_FILE": str(tmp_path / "audit.jsonl")}
    return {"PATH": os.environ["PATH"], **own}


STARTS = {"-m": [sys.executable, "-m", "kakoi"], "script": [str(SCRIPT)], "env": KAKOI}
FEW = pytest.mark.extended("repetition: each call and each start is tried once in the default tier")
PAIRS = [
    pytest.param(STARTS[start], CALLS[call], id=f"{start}-{call}",
                 marks=() if start == "-m" or call == "a command that fails" else FEW)
    for start in STARTS
    for call in CALLS
]  # fmt: skip


@pytest.mark.parametrize(("start", "arguments"), PAIRS)
def test_a_cold_start_answers_as_a_fork_does(
    tmp_path: Path, start: list[str], arguments: list[str]
) -> None:
    env = environ(tmp_path)
    cold = subprocess.run(
        [*start, *arguments],
        input=b"in\n",
        cwd=tmp_path,
        env=env,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    warm = kakoi(*arguments, stdin=b"in\n", cwd=tmp_path, env=env)
    assert (warm.returncode, warm.stdout, warm.stderr) == (
        cold.returncode,
        cold.stdout,
        cold.stderr,
    )


def test_directory_variables_and_streams_are_those_of_the_call(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    env = {**environ(tmp_path), "ASKED": "yes"}
    words = ["run", "--sandbox", "host", "--env", "ASKED", "pwd; echo $ASKED; cat"]
    with (tmp_path / "in").open("w+b") as stdin:
        stdin.write(b"a\0b")
        stdin.seek(0)
        done = kakoi(*words, stdin=stdin, cwd=tmp_path / "here", env=env)
    assert done.stdout == f"{tmp_path / 'here'}\nyes\na\0b".encode()


def test_a_signal_and_its_exit_status_are_real(tmp_path: Path) -> None:
    words = ["run", "--sandbox", "host", "echo up; cat"]
    with Forked(*words, cwd=tmp_path, env=environ(tmp_path), **PIPES) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        assert process.poll() is None
        assert Path(f"/proc/{process.pid}").exists()
        process.send_signal(signal.SIGKILL)
        assert process.wait(PATIENCE_S) == -signal.SIGKILL
    assert process.poll() == -signal.SIGKILL


def test_calls_at_once_do_not_meet(tmp_path: Path) -> None:
    env = environ(tmp_path)
    words = ["run", "--sandbox", "host", "cat"]
    many = [Forked(*words, cwd=tmp_path, env=env, **PIPES) for _ in range(4)]
    for number, process in enumerate(many):
        out, _ = process.communicate(f"call {number}".encode(), PATIENCE_S)
        assert (process.returncode, out) == (0, f"call {number}".encode())


def test_a_shell_that_finds_the_forked_one_on_its_path_sees_the_same(tmp_path: Path) -> None:
    env = environ(tmp_path)
    env["PATH"] = f"{warm_folder()}:{env['PATH']}"
    script = "kakoi run --sandbox host 'cat; pwd; exit 3'; echo $?; kakoi check --no-such-option; echo $?"
    options: dict[str, Any] = {"cwd": tmp_path, "env": env, "capture_output": True}
    done = subprocess.run(["sh", "-c", script], input=b"in\n", timeout=PATIENCE_S, **options)
    assert done.stdout == f"in\n{tmp_path}\n3\n2\n".encode()
    assert b"--no-such-option" in done.stderr


def test_a_signal_to_it_reaches_the_forked_one(tmp_path: Path) -> None:
    words = ["kakoi", "run", "--sandbox", "host", "echo up; cat"]
    program = f"{warm_folder()}/kakoi"
    with subprocess.Popen(
        words, executable=program, cwd=tmp_path, env=environ(tmp_path), **PIPES
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"up\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
