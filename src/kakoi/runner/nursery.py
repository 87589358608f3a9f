"""The one process that all keepers come from, so that the same walls are around all of them.

    runner ── nursery ── (a parent for a moment) ── keeper

The kernel knows two commands as neighbours only if their walls have one origin: then one may
signal the other, and neither the runner. A keeper is born in the nursery and is the runner's child
as soon as its parent of a moment has gone. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import array
import contextlib
import errno
import os
import socket

from kakoi import keeper as ending

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

_PATIENCE_S = 5.0
_READY = b"r"
_BORN = b"b"


class Nursery:
    """The runner's side of it.

    `begin`: what it does first, once; OSError if that fails. `live`: a keeper's life on its line.
    `forking`: what to be in while it is forked.
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
        with contextlib.closing(theirs):
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
        said = self._line.recv(4096)
        if said != _READY:
            self.close()
            raise OSError(errno.EPERM, said.decode("utf-8", "replace") or "it ended")

    def keeper(self) -> tuple[int, socket.socket]:
        """A new keeper, and the line to it. A command may have killed or stopped the nursery."""
        try:
            return self._born()
        except OSError:
            self.close()
            self._open()
            return self._born()

    def _born(self) -> tuple[int, socket.socket]:
        """One try. Its line is not used for another: a late keeper would speak on it, too."""
        ours, theirs = socket.socketpair()
        with contextlib.closing(theirs):
            try:
                return self._ask(ours, theirs), ours
            except OSError:
                ours.close()
                raise

    def _ask(self, ours: socket.socket, theirs: socket.socket) -> int:
        ending.send(self.pid, signal.SIGCONT)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [theirs.fileno()]))]
        self._line.sendmsg([_BORN], rights)
        if self._line.recv(1) != _BORN:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        theirs.close()  # Now the end of the line is the end of the keeper.
        ours.settimeout(_PATIENCE_S)
        number = ours.recv(10)
        if not number.strip().isdigit():
            raise OSError(errno.ECHILD, "a command has killed the keeper")
        return int(number)

    def close(self) -> None:
        """End it; its keepers stay."""
        self._line.close()
        ending.send(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)

    # --- Inside ------------------------------------------------------------------------------

    def _serve(self, line: socket.socket) -> None:
        self._keep_only(line.fileno())
        ending.become_keeper()
        try:
            self._begin()
        except OSError as error:
            line.sendall(str(error).encode("utf-8", "replace")[:4096])
            return
        line.sendall(_READY)
        while True:
            said, rights, _, _ = line.recvmsg(
                1, socket.CMSG_LEN(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
            )
            if not said or not rights:
                os._exit(0)
            theirs = socket.socket(fileno=array.array("i", rights[0][2])[0])
            line.sendall(_BORN if self._bear(theirs) else b"!")
            theirs.close()

    def _bear(self, theirs: socket.socket) -> bool:
        """Have a keeper that is nobody's child here, and so the runner's."""
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
