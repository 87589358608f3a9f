"""Process trees that resist being killed, and a witness that detects whether any process lives.

Every process of a tree has the write end of a named pipe open. The test has the read end: while any
process lives, however it hides, the pipe does not reach end of file.
"""

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import kakoi

PATIENCE_S = 60

PRELUDE = """
import os, signal, sys, threading, time
held = os.open(sys.argv[1], os.O_WRONLY)
os.set_inheritable(held, True)
come, here = os.pipe()
first = os.getpid()

def up():
    os.write(held, b"%d\\n" % os.getpid())
    os.write(here, b".")

def stay():
    time.sleep(300)  # Not for ever: a keeper that fails must not cost the machine its peace.
    os._exit(9)

def hop():
    "Fork and exit, so that no process number lives long; a comet of processes."
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if os.fork(): os._exit(0)
        yield
    os._exit(9)

def wait_for_all(count):
    while count:
        count -= len(os.read(come, count))
"""

# name → (number of processes that announce themselves besides the first, code of the first)
TREES = {
    "child": (1, "if os.fork() == 0: up(); stay()"),
    "own session": (1, "if os.fork() == 0: os.setsid(); up(); stay()"),
    "own process group": (1, "if os.fork() == 0: os.setpgid(0, 0); up(); stay()"),
    "daemons": (
        20,
        """
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        up(); stay()
""",
    ),
    "empty environment": (
        1,
        """
if os.fork() == 0:
    os.setsid()
    if os.fork(): os._exit(0)
    up(); os.execve("/bin/sleep", ["sleep", "7654"], {})
""",
    ),
    "deaf to signals": (
        2,
        """
for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
for _ in range(2):
    if os.fork() == 0: up(); stay()
""",
    ),
    "stopped": (
        2,
        """
for _ in range(2):
    if os.fork() == 0: up(); os.kill(os.getpid(), signal.SIGSTOP); stay()
""",
    ),
    "main thread gone": (
        1,
        """
if os.fork() == 0:
    import ctypes
    threading.Thread(target=lambda: (up(), stay())).start()
    ctypes.CDLL(None).pthread_exit(None)
""",
    ),
    "children of a thread": (
        1,
        """
def fork():
    if os.fork() == 0: up(); stay()
threading.Thread(target=fork).start()
""",
    ),
    "a deep chain": (
        30,
        """
for _ in range(30):
    if os.fork(): break
    os.setsid(); up()
else:
    stay()
if os.getpid() != first: stay()
""",
    ),
    "a tree of sessions": (
        62,
        """
for _ in range(5):
    for _ in range(2):
        if os.fork() == 0: os.setsid(); up(); break
    else: break
else: stay()
if os.getpid() != first: stay()
""",
    ),
    "avengers": (
        10,
        """
def avenge(*_):
    if os.fork() == 0: up(); stay()
signal.signal(signal.SIGCHLD, avenge)
for _ in range(10):
    if os.fork() == 0: up(); stay()
""",
    ),
    "a bomb that keeps forking": (
        20,
        """
fuse, spark = os.pipe()
for _ in range(20):
    if os.fork() == 0:
        os.close(spark); up(); os.read(fuse, 1)
        for _ in hop(): pass
wait_for_all(20)
for _ in range(20): os.write(here, b".")
os.close(spark)
""",
    ),
    "comets that leave their session": (
        5,
        """
for _ in range(5):
    if os.fork() == 0:
        up()
        for _ in hop(): os.setsid()
""",
    ),
    "a pair that raises its dead": (
        2,
        """
def guard(other, write):
    up()
    while True:
        os.read(other, 1)  # ends when the other one is dead
        other, write = os.pipe()
        if os.fork() == 0: os.setsid(); up()
        else: os.close(write)
a, b = os.pipe(), os.pipe()
if os.fork() == 0: os.setsid(); os.close(a[0]); os.close(b[1]); guard(b[0], a[1])
if os.fork() == 0: os.setsid(); os.close(b[0]); os.close(a[1]); guard(a[0], b[1])
os.close(a[1]); os.close(b[1])
""",
    ),
}


def tree_argv(kind: str, pipe: Path, *, then: str) -> list[str]:
    """Return the argv of a Python that starts the tree and then runs `then`: `stay()`, or
    `os._exit(0)`."""
    count, growth = TREES[kind]
    program = f"{PRELUDE}{growth}\nwait_for_all({count})\nup()\n{then}\n"
    return [sys.executable, "-I", "-S", "-c", program, str(pipe)]


class Witness:
    """Has the read end of the pipe whose write end the tree has open."""

    def __init__(self, pipe: Path) -> None:
        os.mkfifo(pipe)
        self.pipe = pipe
        self._fd = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self.announced: list[int] = []
        self._unread = b""

    def close(self) -> None:
        os.close(self._fd)

    def anybody_alive(self) -> bool:
        """Return whether any process of the tree is alive now."""
        try:
            while chunk := os.read(self._fd, 65536):
                self._take(chunk)
        except BlockingIOError:
            return True
        return False

    def wait_until_announced(self, count: int) -> None:
        """Block until `count` processes have announced themselves."""
        give_up = time.monotonic() + PATIENCE_S
        while len(self.announced) < count:
            left_s = give_up - time.monotonic()
            assert left_s > 0, f"{len(self.announced)} of {count} processes came up"
            # Until the first writer opens the pipe, it is readable but empty.
            if select.select([self._fd], [], [], left_s)[0]:
                try:
                    self._take(os.read(self._fd, 65536))
                except BlockingIOError:
                    continue

    def wait_until_nobody_is_alive(self) -> None:
        """Block until the pipe reaches end of file."""
        give_up = time.monotonic() + PATIENCE_S
        while self.anybody_alive():
            left_s = give_up - time.monotonic()
            assert left_s > 0, f"still alive after {PATIENCE_S} s"
            select.select([self._fd], [], [], left_s)

    def _take(self, chunk: bytes) -> None:
        *lines, self._unread = (self._unread + chunk).split(b"\n")
        self.announced += map(int, lines)


def client_environment() -> dict[str, str]:
    """Return the environment with which another Python finds the same kakoi as this one."""
    return {"PYTHONPATH": str(Path(kakoi.__file__).parents[1])}


@contextmanager
def watching(folder: Path) -> Iterator[Witness]:
    witness = Witness(folder / "held")
    try:
        yield witness
    finally:
        witness.close()
