"""What was opened is closed: by `close`, with the executor, and when Python ends."""

import gc
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kakoi.bash_executor import SecurityError, create_executor
from tests.faces.bash_executor.conftest import Create

WAITS = """
from kakoi.bash_executor import create_executor
executor = create_executor()
print(executor.execute("true")["exit_code"], flush=True)
{then}
"""


def descendants(pid: int) -> set[int]:
    """By all threads of the process: each has its own list of children."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, task.read_text().split()):
            found |= {child} | descendants(child)
    return found


@contextmanager
def all_end(pids: set[int]) -> Iterator[None]:
    """These processes are there now, and have ended some time after the block."""
    assert pids
    watched = [os.pidfd_open(pid) for pid in pids]
    try:
        yield
        until = time.monotonic() + 20
        for each in watched:
            assert select.select([each], [], [], max(0, until - time.monotonic()))[0]
    finally:
        for each in watched:
            os.close(each)


def client(root: Path, then: str) -> "subprocess.Popen[bytes]":
    """A program that has run a command and goes on with `then`."""
    program = subprocess.Popen(
        [sys.executable, "-c", WAITS.format(then=then)],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert program.stdout
    assert program.stdout.readline() == b"0\n"
    return program


def test_nothing_is_left_behind_when_python_ends(root: Path) -> None:
    with client(root, "input()") as program, all_end(descendants(program.pid)):
        assert program.communicate(b"\n", timeout=60) == (b"", b"")
        assert program.returncode == 0


def test_an_interrupted_call_ends_its_command_first(root: Path) -> None:
    os.mkfifo(root / "begun")
    with client(root, "executor.execute('echo yes > begun; sleep 600')") as program:
        assert (root / "begun").read_text() == "yes\n"
        with all_end(descendants(program.pid)):
            program.send_signal(signal.SIGINT)
            _, told = program.communicate(timeout=60)
    assert b"KeyboardInterrupt" in told


def test_a_closed_executor_leaves_nothing_behind(create: Create) -> None:
    before = descendants(os.getpid())
    executor = create()
    executor.execute("true")
    with all_end(descendants(os.getpid()) - before):
        executor.close()


def test_an_executor_that_is_dropped_is_closed(root: Path) -> None:
    before = descendants(os.getpid())
    executor = create_executor(root_dir=root)
    executor.execute("true")
    with all_end(descendants(os.getpid()) - before):
        del executor
        gc.collect()


def test_a_refused_command_opens_no_sandbox(create: Create) -> None:
    before = descendants(os.getpid())
    with pytest.raises(SecurityError):
        create().execute("sudo id")
    assert descendants(os.getpid()) - before == set()
