"""How the clients of a long-lived place find its one runner: by a socket that passes streams on.

The folder belongs to the user of the sandbox, as the commands do: whoever is in there could take
the place of the runner as well as talk to it, and our end of the channel expects no better.
Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import array
import fcntl
import os
import socket
import stat

from kakoi.runner.loop import READ
from kakoi.runner.spool import temporary_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kakoi.runner.loop import Loop

_RIGHTS = socket.CMSG_LEN(2 * array.array("i").itemsize)


def _folder() -> str:
    return f"{temporary_folder()}/.kakoi-{os.getuid()}"


def hand_over(reading: int, writing: int) -> bool:
    """Give our stream to the runner that is already here, and stay until it is done with it."""
    line = socket.socket(socket.AF_UNIX)
    try:
        line.connect(_folder() + "/runner")
        rights = array.array("i", [reading, writing])
        line.sendmsg([b"k"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        os.close(reading)
        os.close(writing)
        line.recv(1)
    except OSError:
        return False
    return True


class Meeting:
    """Where later clients come to. Without a folder to write to, nobody does."""

    def __init__(self, loop: Loop, welcome: Callable[[int, int, socket.socket], None]) -> None:
        self._loop = loop
        self._welcome = welcome
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        try:
            self._open()
        except OSError:
            self._listener.close()

    def _open(self) -> None:
        folder = _folder()
        try:
            os.mkdir(folder, 0o700)
        except FileExistsError:
            found = os.lstat(folder)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
                raise
        # Two runners that start together: the second one to come here replaces a dead socket only.
        lock = os.open(folder + "/lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = folder + "/runner"
            if not _answers(path):
                if os.path.lexists(path):
                    os.unlink(path)
                self._listener.bind(path)
                self._listener.listen(16)
                self._loop.watch(self._listener.fileno(), READ, self._on_visitor)
        finally:
            os.close(lock)

    def _on_visitor(self, _events: int) -> None:
        try:
            line, _ = self._listener.accept()
        except OSError:
            return
        line.setblocking(False)
        self._loop.watch(line.fileno(), READ, lambda _events: self._on_stream(line))

    def _on_stream(self, line: socket.socket) -> None:
        self._loop.forget(line.fileno())
        streams = array.array("i")
        try:
            _, rights, _, _ = line.recvmsg(1, _RIGHTS, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            rights = []
        for _level, _kind, data in rights:
            streams.frombytes(data[: len(data) - len(data) % streams.itemsize])
        if len(streams) == 2:
            self._welcome(streams[0], streams[1], line)
        else:
            for fd in streams:
                os.close(fd)
            line.close()


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except OSError:
            return False
        return True
