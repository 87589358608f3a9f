"""`kakoi` in a separate process, on pipes or on a real terminal, and its living processes."""

import contextlib
import fcntl
import json
import os
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from tests.cli.forked import Forked, kakoi

PATIENCE_S = 120
_PLAIN = [sys.executable, "-m", "kakoi"]
# If the tests run in the background, they and their children inherit an ignored SIGINT.
KAKOI = ["/usr/bin/env", "--default-signal=HUP,INT,TERM", *_PLAIN]


@dataclass(frozen=True)
class Door:
    """kakoi in one workspace, with its own audit log."""

    workspace: Path
    log: Path
    env: dict[str, str] = field(default_factory=dict)

    @property
    def environ(self) -> dict[str, str]:
        names = ("PATH", "HOME", "DOCKER_HOST")
        ours = {name: os.environ[name] for name in names if name in os.environ}
        return {**ours, "KAKOI_AUDIT_FILE": str(self.log), "TERM": "vt100", **self.env}

    def __call__(
        self, *arguments: str, stdin: bytes | IO[bytes] | int = b""
    ) -> tuple[int, str, str]:
        """Return the exit code, stdout (one character per byte) and stderr."""
        done = kakoi(*arguments, stdin=stdin, cwd=self.workspace, env=self.environ)
        return done.returncode, done.stdout.decode("latin-1"), done.stderr.decode()

    @contextlib.contextmanager
    def started(
        self, *arguments: str, under: Sequence[str] = ()
    ) -> Iterator["subprocess.Popen[bytes]"]:
        """Start kakoi on three pipes. `under`: a program that starts it."""
        options: dict[str, Any] = {
            "stdin": subprocess.PIPE,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": self.workspace,
            "env": self.environ,
            "bufsize": 0,
        }
        process: subprocess.Popen[bytes]
        if under:
            process = subprocess.Popen([*under, *_PLAIN, *arguments], **options)
        else:
            process = Forked(*arguments, **options)
        with process:
            try:
                yield process
            finally:
                process.kill()

    def records(self) -> list[str]:
        """Return the events in the log, in order."""
        if not self.log.exists():
            return []
        return [json.loads(line)["event"] for line in self.log.read_text().splitlines()]


class Terminal:
    """A terminal with a program on it. The test has the other side: keys, screen and size."""

    def __init__(self, door: Door, *arguments: str, rows: int = 24, columns: int = 80) -> None:
        self._keys, self._line = os.openpty()
        self.resize(rows, columns)
        self.before = self.settings()
        self.screen = b""
        self.process = Forked(
            *arguments,
            terminal=True,
            stdin=self._line,
            stdout=self._line,
            stderr=self._line,
            cwd=door.workspace,
            env=door.environ,
        )

    def type(self, keys: bytes) -> None:
        os.write(self._keys, keys)

    def resize(self, rows: int, columns: int) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self._keys, termios.TIOCSWINSZ, size)

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._line)

    @property
    def is_raw(self) -> bool:
        return not self.settings()[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def until(self, text: bytes) -> bytes:
        """Read until `text` is on the screen. Returns everything that was read."""
        give_up = time.monotonic() + PATIENCE_S
        seen = b""
        while text not in seen:
            assert time.monotonic() < give_up, f"{text!r} is not in {seen!r}"
            assert self.process.poll() is None or self._has_more(), f"{text!r} not in {seen!r}"
            if self._has_more(0.2):
                seen += self._read()
        return seen

    def wait(self) -> int:
        """Return the program's exit code, and read its remaining output while waiting."""
        give_up = time.monotonic() + PATIENCE_S
        while self.process.poll() is None or self._has_more():
            assert time.monotonic() < give_up, self.screen
            if self._has_more(0.05):
                self._read()
        return self.process.returncode

    def _has_more(self, wait_s: float = 0) -> bool:
        return bool(select.select([self._keys], [], [], wait_s)[0])

    def _read(self) -> bytes:
        data = os.read(self._keys, 65536)
        self.screen += data
        return data

    def hang_up(self) -> None:
        """Close the terminal, as if its window had been closed."""
        for fd in (self._keys, self._line):
            if fd >= 0:
                os.close(fd)
        self._keys = self._line = -1

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.hang_up()


@contextlib.contextmanager
def terminal(door: Door, *arguments: str, **size: int) -> Iterator[Terminal]:
    it = Terminal(door, *arguments, **size)
    try:
        yield it
    finally:
        it.close()


def alive(mark: str) -> list[str]:
    """Return the processes of this machine that have `mark` in their arguments."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            with contextlib.suppress(OSError):
                words = (process / "cmdline").read_bytes().decode("utf-8", "replace")
                if mark in words:
                    found.append(f"{process.name} {words}")
    return found


def until(condition: Any, what: str) -> None:
    """Wait until `condition()` is true."""
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, what
        time.sleep(0.01)
