"""`kakoi` as a separate process, without the time that Python needs to import it.

A server with everything imported forks for each call. The fork is a real process with its own
streams, directory, variables and session, and starts in 15 ms instead of 500. It does not test the
cold start itself, which has its own tests (`started_cold`, tests/cli/test_forked.py).

The process is not a child of the test, but its pid, signals and exit status are real.
"""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

_SERVER = Path(__file__).with_name("fork_server.py")
_STAND_IN = Path(__file__).with_name("stand_in.py")


class _Server:
    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.folder = tempfile.TemporaryDirectory(prefix="kf-")
        door = socket.socket(socket.AF_UNIX)
        door.bind(f"{self.folder.name}/door")
        door.listen()
        with theirs, door:
            fds = [theirs.fileno(), door.fileno()]
            subprocess.run(
                [sys.executable, str(_SERVER), *map(str, fds)],
                pass_fds=fds,
                env={"PATH": os.environ["PATH"], "LC_CTYPE": "C.UTF-8"},
                check=True,
                timeout=60,
            )
        self._line = ours  # The server exits when this closes, even if we die.

    def start(self, wanted: dict[str, Any], streams: Sequence[int]) -> tuple[int, socket.socket]:
        """Return the pid, and a socket that delivers the wait status when the process exits."""
        ours, theirs = socket.socketpair()
        text = json.dumps(wanted).encode()
        with theirs:
            fds = [*streams, theirs.fileno()]
            socket.send_fds(self._line, [len(text).to_bytes(4, "big")], fds)
            self._line.sendall(text)
        pid = int.from_bytes(ours.recv(4, socket.MSG_WAITALL), "big")
        assert pid, "the fork server has died"
        return pid, ours


@cache
def _server() -> _Server:
    return _Server()


@cache
def warm_folder() -> str:
    """Return a folder for PATH with a `kakoi` that is also forked, for shells to start."""
    folder = _server().folder.name
    # Skips what it does not need: most of its time is the start of the interpreter.
    path = Path(folder, "kakoi")
    path.write_text(f"#!{sys.executable} -IS\n{_STAND_IN.read_text()}")
    path.chmod(0o755)
    return folder


class Forked(subprocess.Popen[Any]):
    """`subprocess.Popen` for `kakoi ARGUMENTS`. `terminal`: stdin is its controlling terminal."""

    def __init__(self, *arguments: str, terminal: bool = False, **options: Any) -> None:
        self._terminal = terminal
        super().__init__(["kakoi", *arguments], **options)

    # The two private methods where Popen calls the kernel have been stable since Python 3.3.

    def _execute_child(self, args: Sequence[str], *rest: Any) -> None:
        cwd, env = rest[4], rest[5]
        pipes = rest[9:15]
        streams = (pipes[0], pipes[3], pipes[5])
        wanted = {
            "arguments": list(args)[1:],
            "cwd": os.fspath(cwd or os.getcwd()),
            "environ": dict(os.environ if env is None else env),
            "terminal": self._terminal,
        }
        self.pid, self._status = _server().start(
            wanted, [number if given == -1 else given for number, given in enumerate(streams)]
        )
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        is_over = bool(select.select([self._status], [], [], 0 if wait_flags else None)[0])
        if not is_over:
            return 0, 0
        status = int.from_bytes(self._status.recv(4, socket.MSG_WAITALL), "big")
        self._status.close()
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None, **_given: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid:
                self._handle_exitstatus(status)  # type: ignore[attr-defined]
        return self.returncode


def kakoi(
    *arguments: str,
    cwd: Path | str,
    env: Mapping[str, str],
    stdin: Any = b"",
    timeout: float = 120,
    text: bool = False,
) -> "subprocess.CompletedProcess[Any]":
    """Run `kakoi ARGUMENTS` to completion. `stdin`: bytes, or a file or descriptor to read from."""
    is_given = isinstance(stdin, bytes) and stdin
    options: dict[str, Any] = {
        "stdin": subprocess.PIPE if is_given else stdin or subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": text,
    }
    with Forked(*arguments, cwd=cwd, env=env, **options) as process:
        try:
            out, err = process.communicate(stdin if is_given else None, timeout)
        except BaseException:
            process.send_signal(signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
