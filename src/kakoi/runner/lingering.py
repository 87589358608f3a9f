"""How the clients of a long-lived place find its one runner: by a socket that passes streams on.

The folder belongs to the user of the sandbox, as the commands do: a command could take the place
of the runner there, or come as a client. So both sides prove that they know a key, which only kakoi
and its runners have, before a stream changes hands:

    runner → visitor: READY, a nonce
    visitor → runner: a nonce, a proof with the number of the visitor's process
    runner → visitor: a proof with the number of the runner's process
    visitor → runner: READY with the two descriptors of its stream

The kernel tells whose socket is at the other end, so nobody in between can pass proofs on.
Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import socket
import stat
import struct
import time

try:  # All of `hashlib` would load a library of megabytes.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

from kakoi.runner.loop import READ
from kakoi.runner.spool import temporary_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kakoi.runner.loop import Loop

_RIGHTS = socket.CMSG_LEN(2 * array.array("i").itemsize)
READY = b"k"
_NONCE_BYTES, _PROOF_BYTES = 16, 32
_PEER = struct.Struct("iII")
# A runner that was stopped, or somebody else in its place, is not waited for any longer.
_PATIENCE_S = 5.0


def proof(key: str, who: bytes, pid: int, nonces: bytes) -> bytes:
    """That `who`, process `pid`, knows the key."""
    digest: bytes = blake2b(
        who + b" %d " % pid + nonces, key=key.encode(), digest_size=_PROOF_BYTES
    ).digest()
    return digest


def peer_pid(line: socket.socket) -> int:
    """Who is at the other end; 0 if that is outside our PID namespace."""
    found = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(found)[0])


def introduce(line: socket.socket, key: str, own_pid: int, their_pid: int) -> bool:
    """A visitor's part up to the stream. False: it is not a runner of ours.

    `own_pid`: our number as the runner sees it; `their_pid`: its number as it sees it itself.
    """
    theirs = _receive(line, len(READY) + _NONCE_BYTES)
    if theirs[: len(READY)] != READY:
        return False
    ours = os.urandom(_NONCE_BYTES)
    nonces = theirs[len(READY) :] + ours
    line.sendall(ours + proof(key, b"visitor", own_pid, nonces))
    return _receive(line, _PROOF_BYTES) == proof(key, b"runner", their_pid, nonces)


def _receive(line: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (part := line.recv(size - len(data))):
        data += part
    return data


class Deaf(Exception):
    """There is a runner, or somebody in its place, and it does not answer: it may be stopped.

    To serve beside it would leave it, and all below it, alive for good.
    """


class Turn:
    """Of runners that start together one serves at a time: the others find the first.

    `held` is False where there is no folder of ours to meet in.
    """

    def __init__(self, key: str = "") -> None:
        self.key = key
        self._folder = self._lock = -1
        with contextlib.suppress(OSError):
            self._folder = _open_folder()
            self._lock = self._take_lock()
        self.held = self._lock >= 0
        # By its descriptor: nobody can put another one in its place, and no path is too long.
        self._path = f"/proc/self/fd/{self._folder}/runner"

    def _take_lock(self) -> int:
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        lock = os.open("lock", flags, 0o600, dir_fd=self._folder)
        give_up = time.monotonic() + _PATIENCE_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except OSError:
                if time.monotonic() > give_up:
                    os.close(lock)
                    raise
            time.sleep(0.01)

    def hand_over(self, reading: int, writing: int) -> bool:
        """Give our stream to the runner that is already here, and stay until it is done with it.

        False: nobody is here. Deaf: somebody is, and does not answer.
        """
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(_PATIENCE_S)
        try:
            line.connect(self._path)
        except OSError as error:
            if isinstance(error, (BlockingIOError, socket.timeout)):
                raise Deaf from None  # Its queue is full.
            return False
        try:
            ready = introduce(line, self.key, os.getpid(), peer_pid(line))
            if ready:
                rights = array.array("i", [reading, writing])
                line.sendmsg([READY], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError:
            ready = False
        if not ready:
            raise Deaf
        os.close(reading)
        os.close(writing)
        self.end()
        line.settimeout(None)
        with contextlib.suppress(OSError):
            line.recv(1)
        return True

    def listen(self) -> socket.socket:
        """A socket in the place where the next ones look; OSError if somebody else has it."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.setblocking(False)
            try:
                listener.connect(self._path)
            except (ConnectionRefusedError, FileNotFoundError):  # Dead, or never there.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink("runner", dir_fd=self._folder)
            else:
                raise OSError("it is alive, but does not speak")
            listener.bind(self._path)
            listener.listen(16)
        except OSError:
            listener.close()
            raise
        return listener

    def end(self) -> None:
        for fd in (self._lock, self._folder):
            if fd >= 0:
                os.close(fd)
        self._lock = self._folder = -1


class Meeting:
    """Where later clients come to. Without a folder to write to, nobody does."""

    def __init__(
        self, turn: Turn, loop: Loop, welcome: Callable[[int, int, socket.socket], None]
    ) -> None:
        self._loop = loop
        self._welcome = welcome
        self._key = turn.key
        self._expected: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        if turn.held:
            with contextlib.suppress(OSError):
                self._listener = turn.listen()
                loop.watch(self._listener.fileno(), READ, self._on_visitor)
        turn.end()

    @property
    def expects(self) -> bool:
        """Is somebody here whose stream has not come yet?"""
        return bool(self._expected)

    def close(self) -> None:
        """Whoever comes now has to see to it alone."""
        if self._listener is not None:
            self._loop.forget(self._listener.fileno())
            self._listener.close()

    def _on_visitor(self, _events: int) -> None:
        try:
            line, _ = self._listener.accept()  # type: ignore[union-attr]
        except OSError:
            return
        line.setblocking(False)
        self._expected.add(line)
        nonce = os.urandom(_NONCE_BYTES)
        self._loop.watch(line.fileno(), READ, lambda _events: self._on_proof(line, nonce))
        self._loop.after(_PATIENCE_S, lambda: self._send_away(line))
        try:
            line.send(READY + nonce)
        except OSError:
            self._send_away(line)

    def _on_proof(self, line: socket.socket, nonce: bytes) -> None:
        """It comes in one piece, or not from a runner of ours."""
        try:
            said = line.recv(_NONCE_BYTES + _PROOF_BYTES)
            nonces = nonce + said[:_NONCE_BYTES]
            if said[_NONCE_BYTES:] != proof(self._key, b"visitor", peer_pid(line), nonces):
                raise OSError("a stranger")
            line.send(proof(self._key, b"runner", os.getpid(), nonces))
        except OSError:
            self._send_away(line)
            return
        self._loop.forget(line.fileno())
        self._loop.watch(line.fileno(), READ, lambda _events: self._on_stream(line))

    def _on_stream(self, line: socket.socket) -> None:
        streams = array.array("i")
        try:
            _, rights, _, _ = line.recvmsg(1, _RIGHTS, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            rights = []
        for _level, _kind, data in rights:
            streams.frombytes(data[: len(data) - len(data) % streams.itemsize])
        self._loop.forget(line.fileno())
        self._expected.discard(line)
        try:
            reading, writing = streams
            self._welcome(reading, writing, line)
        except (OSError, ValueError):  # Not two, or nothing that could be a stream.
            for fd in streams:
                os.close(fd)
            line.close()

    def _send_away(self, line: socket.socket) -> None:
        if line in self._expected:
            self._expected.discard(line)
            self._loop.forget(line.fileno())
            line.close()


def _open_folder() -> int:
    path = f"{temporary_folder()}/.kakoi-{os.getuid()}"
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(folder)
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(folder)
        raise OSError("a stranger's folder")
    return folder
