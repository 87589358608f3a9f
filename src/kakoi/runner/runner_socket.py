"""The socket by which later clients of a long-lived sandbox find its runner and pass their streams.

Its folder belongs to the user of the sandbox, who also runs the commands, so a command could
impersonate the runner or a client there. Before a stream is passed on, both sides prove that they
know a key, which only kakoi and its runners have:

    runner → visitor: READY, a nonce
    visitor → runner: a nonce, a proof with the visitor's pid
    runner → visitor: a proof with the runner's pid
    visitor → runner: READY with the two descriptors of its stream
    runner → visitor: when that stream has ended, STAYS if the runner has other clients or jobs

The kernel reports the pid at the other end, so proofs cannot be relayed.
Standard library only, Python >= 3.8.
"""

from __future__ import annotations

# Not `socket`: its enums would take a good part of our start-up time.
import _socket as socket
import fcntl
import os
import stat
import struct
import time

try:  # `hashlib` would load a library of several megabytes.
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

from kakoi.runner import rights as passed
from kakoi.runner.contexts import suppress
from kakoi.runner.loop import READ
from kakoi.runner.spool import temporary_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from kakoi.runner.loop import Loop

_RIGHTS = socket.CMSG_LEN(2 * passed.SIZE)
READY = b"k"
STAYS = b"s"
_NONCE_BYTES, _PROOF_BYTES = 16, 32
_PEER = struct.Struct("iII")
# How long to wait for a runner that may be stopped or impersonated.
_PATIENCE_S = 5.0


def proof(key: str, who: bytes, pid: int, nonces: bytes) -> bytes:
    """Return the proof that `who`, process `pid`, knows the key."""
    digest: bytes = blake2b(
        who + b" %d " % pid + nonces, key=key.encode(), digest_size=_PROOF_BYTES
    ).digest()
    return digest


def peer_pid(line: socket.socket) -> int:
    """Return the pid at the other end; 0 if it is outside our PID namespace."""
    found = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    return int(_PEER.unpack(found)[0])


def introduce(line: socket.socket, key: str, own_pid: int, their_pid: int) -> bool:
    """Do the visitor's part of the handshake. False: the other end is not one of our runners.

    `own_pid`: our pid as the runner sees it; `their_pid`: the runner's pid as it sees it itself.
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


class RunnerSilentError(Exception):
    """A runner, or an impostor, exists but does not answer: it may be stopped.

    Starting a second runner would leave the first, and every process below it, alive forever.
    """


class StartLock:
    """A lock: if several runners start together, one serves and the others find it.

    `held` is False if there is no private folder for the socket.
    """

    def __init__(self, key: str = "") -> None:
        self.key = key
        self._folder = self._lock = -1
        with suppress(OSError):
            self._folder = _open_folder()
            self._lock = self._take_lock()
        self.held = self._lock >= 0
        # Through the descriptor: the folder cannot be replaced, and the path is never too long.
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
        """Pass our stream to the runner that already exists, and stay until it has ended.

        False: there is no runner. RunnerSilentError: there is one, but it does not answer.
        """
        line = socket.socket(socket.AF_UNIX)
        line.settimeout(_PATIENCE_S)
        try:
            line.connect(self._path)
        except OSError as error:
            if isinstance(error, (BlockingIOError, socket.timeout)):
                raise RunnerSilentError from None  # Its backlog is full.
            return False
        try:
            ready = introduce(line, self.key, os.getpid(), peer_pid(line))
            if ready:
                rights = passed.pack([reading, writing])
                line.sendmsg([READY], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
        except OSError:
            ready = False
        if not ready:
            raise RunnerSilentError
        os.close(reading)
        os.close(writing)
        self.end()
        line.settimeout(None)
        with suppress(OSError):
            line.recv(1)
        return True

    def listen(self) -> socket.socket:
        """Return the socket on which later runners find this one; OSError if it is taken."""
        listener = socket.socket(socket.AF_UNIX)
        try:
            listener.setblocking(False)
            try:
                listener.connect(self._path)
            except (ConnectionRefusedError, FileNotFoundError):  # Its runner is dead, or never was.
                with suppress(FileNotFoundError):
                    os.unlink("runner", dir_fd=self._folder)
            else:
                raise OSError("it is alive, but does not respond")
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


class RunnerListener:
    """Accepts the streams of later clients. Without a writable folder, it accepts none."""

    def __init__(
        self, turn: StartLock, loop: Loop, welcome: Callable[[int, int, socket.socket], None]
    ) -> None:
        self._loop = loop
        self._welcome = welcome
        self._key = turn.key
        self._expected: set[socket.socket] = set()
        self._listener: socket.socket | None = None
        if turn.held:
            with suppress(OSError):
                self._listener = turn.listen()
                loop.watch(self._listener.fileno(), READ, self._on_visitor)
        turn.end()

    @property
    def expects(self) -> bool:
        """Is there a visitor whose stream has not arrived yet?"""
        return bool(self._expected)

    def close(self) -> None:
        """Stop listening: a later client starts its own runner."""
        if self._listener is not None:
            self._loop.forget(self._listener.fileno())
            self._listener.close()

    def _on_visitor(self, _events: int) -> None:
        try:
            number, _ = self._listener._accept()  # type: ignore[union-attr]
        except OSError:
            return
        line = socket.socket(fileno=number)
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
        """A genuine runner sends its proof in one piece."""
        try:
            message = line.recv(_NONCE_BYTES + _PROOF_BYTES)
            nonces = nonce + message[:_NONCE_BYTES]
            if message[_NONCE_BYTES:] != proof(self._key, b"visitor", peer_pid(line), nonces):
                raise OSError("a stranger")
            line.send(proof(self._key, b"runner", os.getpid(), nonces))
        except OSError:
            self._send_away(line)
            return
        self._loop.forget(line.fileno())
        self._loop.watch(line.fileno(), READ, lambda _events: self._on_stream(line))

    def _on_stream(self, line: socket.socket) -> None:
        try:
            _, rights, _, _ = line.recvmsg(1, _RIGHTS, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            rights = []
        streams = [fd for _level, _kind, data in rights for fd in passed.unpack(data)]
        self._loop.forget(line.fileno())
        self._expected.discard(line)
        try:
            reading, writing = streams
            self._welcome(reading, writing, line)
        except (OSError, ValueError):  # Not two descriptors, or not usable as a stream.
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
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(folder)
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        os.close(folder)
        raise OSError("the folder belongs to another user")
    return folder
