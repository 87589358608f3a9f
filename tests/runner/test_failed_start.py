"""What a keeper has opened for a command that could not be started is closed again."""

import errno
import os
import subprocess
import sys
from typing import NoReturn

import pytest

from kakoi.runner import shell_report as reports
from kakoi.runner import spawn as starting
from tests.runner.conftest import open_descriptors


def refuse(*_arguments: object) -> NoReturn:
    raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def test_no_room_for_a_process_on_a_terminal_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = open_descriptors()
    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(BlockingIOError):
        starting.start(b"/bin/true", [b"true"], {}, [], on_terminal=True)
    assert open_descriptors() == before


@pytest.mark.parametrize("step", ["ftruncate", "pipe", "write"])
def test_a_shell_that_cannot_be_asked_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = open_descriptors()
    held: list[int] = []
    with monkeypatch.context() as patched:
        patched.setattr(os, step, refuse)
        with pytest.raises(BlockingIOError):
            reports.ask([b"sh", b"-c", b"true"], {}, "sh", held, [])
    for fd in held:
        os.close(fd)
    assert open_descriptors() == before


NEWBORN = """
import contextlib
from kakoi.runner.fork_server import ForkServer

class Cursed(ForkServer):
    def _bear(self, theirs):
        return True  # Born, and killed by a command before it could speak.

server = Cursed(lambda: None, lambda line: None, lambda fd: None, contextlib.nullcontext)
try:
    server.keeper()
except OSError as error:
    print("refused:", error.strerror)
server.close()
"""


def test_a_newborn_keeper_that_is_killed_is_an_answer_and_no_surprise() -> None:
    argv = [sys.executable, "-W", "error", "-c", NEWBORN]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("refused: a command killed the keeper\n", "")
