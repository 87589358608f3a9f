"""The process that forks all keepers, so that all of them share one Landlock domain.

    runner ── fork server ── (a short-lived parent) ── keeper

The kernel lets one command signal another only if their restrictions have the same origin; neither
can signal the runner. A keeper is forked by the fork server, and becomes the runner's child as soon
as its short-lived parent has exited. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

# Not `signal` and `socket`: their enums would take a good part of our start-up time.
import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import errno
import os

from kakoi.runner import keeper as keeper_program
from kakoi.runner import rights as passed
from kakoi.runner.contexts import closing, suppress

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_PATIENCE_S = 5.0
_READY = b"r"
_BORN = b"b"


class ForkServer:
    """The runner's side of the fork server.

    `begin`: called once in the server, first; OSError if that fails. `live`: called in each keeper
    with its socket. `forking`: the context in which the server is forked.
    """

    def __init__(
        self,
        begin: Callable[[], None],
        live: Callable[[socket.socket], None],
        keep_only: Callable[[int], None],
        forking: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._begin, self._live, self._keep_only, self._forking = begin, live, keep_only, forking
        self._open()

    def _open(self) -> None:
        self._line, theirs = socket.socketpair()
        with closing(theirs):
            try:
                with self._forking():
                    self.pid = os.fork()
            except OSError:
                self._line.close()
                raise
            if self.pid == 0:
                try:
                    self._serve(theirs)
                finally:
                    os._exit(1)
        self._line.settimeout(_PATIENCE_S)
        message = self._line.recv(4096)
        if message != _READY:
            self.close()
            raise OSError(errno.EPERM, message.decode("utf-8", "replace") or "it ended")

    def keeper(self) -> tuple[int, socket.socket]:
        """Return a new keeper's pid and the socket to it; restarts a server that was killed."""
        try:
            return self._born()
        except OSError:
            self.close()
            self._open()
            return self._born()

    def _born(self) -> tuple[int, socket.socket]:
        """Try once, with a new socket each time: a late keeper could still write to the old one."""
        ours, theirs = socket.socketpair()
        with closing(theirs):
            try:
                return self._ask(ours, theirs), ours
            except OSError:
                ours.close()
                raise

    def _ask(self, ours: socket.socket, theirs: socket.socket) -> int:
        keeper_program.send(self.pid, signal.SIGCONT)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed.pack([theirs.fileno()]))]
        self._line.sendmsg([_BORN], rights)
        if self._line.recv(1) != _BORN:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        theirs.close()  # From now on, end of file means that the keeper is gone.
        ours.settimeout(_PATIENCE_S)
        number = ours.recv(10)
        if not number.strip().isdigit():
            raise OSError(errno.ECHILD, "a command killed the keeper")
        return int(number)

    def close(self) -> None:
        """End the fork server; its keepers stay."""
        self._line.close()
        keeper_program.send(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    # --- Inside the fork server --------------------------------------------------------------

    def _serve(self, line: socket.socket) -> None:
        self._keep_only(line.fileno())
        keeper_program.become_keeper()
        try:
            self._begin()
        except OSError as error:
            line.sendall(str(error).encode("utf-8", "replace")[:4096])
            return
        line.sendall(_READY)
        while True:
            message, rights, _, _ = line.recvmsg(
                1, socket.CMSG_LEN(passed.SIZE), socket.MSG_CMSG_CLOEXEC
            )
            if not message or not rights:
                os._exit(0)
            theirs = socket.socket(fileno=passed.unpack(rights[0][2])[0])
            line.sendall(_BORN if self._bear(theirs) else b"!")
            theirs.close()

    def _bear(self, theirs: socket.socket) -> bool:
        """Fork a keeper whose parent exits at once, so that it becomes the runner's child."""
        try:
            parent = os.fork()
        except OSError:
            return False
        if parent == 0:
            try:
                if os.fork() == 0:
                    theirs.sendall(b"%10d" % os.getpid())
                    self._live(theirs)
            except OSError:
                os._exit(1)
            os._exit(0)
        return os.waitpid(parent, 0)[1] == 0
