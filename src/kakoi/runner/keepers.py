"""Kept keepers: a child subreaper above each command, used again when its command is over.

    runner ──line── keeper ── the command ── whatever it starts

An orphan below a keeper becomes that keeper's child and nobody else's, so at the end it can kill
until nothing is left; then it reports and waits for the next command. The runner is a subreaper
as well: a command that kills its keeper falls to the runner (`end_orphans`).

On the line, to the keeper: a request with the command's three streams attached, then END or
SIGNAL and a number; its end means that the runner is gone. Back: one record for each command.
Standard library only, Python >= 3.8.
"""

from __future__ import annotations

# Not `signal`: its enums would be a good part of our start-up time.
import _signal as signal  # type: ignore[import-not-found]
import array
import contextlib
import errno
import marshal
import os
import resource
import select
import socket
import time
from functools import partial

from kakoi import keeper as ending
from kakoi.runner.nursery import Nursery
from kakoi.runner.reports import ask, read_cwd, read_exports
from kakoi.runner.room import limit_us
from kakoi.runner.starting import start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kakoi.runner.memory import Scores

END = b"E"
SIGNAL = b"S"
_PATIENCE_S = 30.0
_SEND_TIMEOUT_S = 2.0
# Until then a program may still be on its way into memory, and its files in /proc root's.
_NEWBORN_MS = 5


class Record:
    """What came of a command: `kind` is a word of keeper.py, or "lost" if its keeper died."""

    __slots__ = "cpu_ms cwd ended exports kind max_rss_kib number survivors".split()

    def __init__(self, kind: str, number: int, **rest: Any) -> None:
        self.kind = kind
        self.number = number
        self.cwd: bytes = rest.get("cwd", b"")
        self.exports: bytes = rest.get("exports", b"")
        self.cpu_ms: int = rest.get("cpu_ms", 0)
        self.max_rss_kib: int = rest.get("max_rss_kib", 0)
        self.ended: int = rest.get("ended", 0)
        self.survivors: int = rest.get("survivors", 0)

    def dump(self) -> bytes:
        body = marshal.dumps({name: getattr(self, name) for name in self.__slots__})
        return b"%010d" % len(body) + body

    @classmethod
    def load(cls, data: bytes) -> Record:
        return cls(**marshal.loads(data))  # noqa: S302 - from our own child


class Birth:
    """What keepers are born with: the rlimits of their commands, and who is killed first."""

    def __init__(self, rlimits: dict[str, int], scores: Scores) -> None:
        self.rlimits, self.scores = rlimits, scores


class Keeper:
    """The runner's side of one keeper, born in the nursery if there is one."""

    group = 0  # The number of its control group, where there are some.

    def __init__(self, birth: Birth, nursery: Nursery | None = None) -> None:
        self.pid, self.line = _fork_keeper(birth) if nursery is None else nursery.keeper()
        self.line.settimeout(_SEND_TIMEOUT_S)

    def fileno(self) -> int:
        return self.line.fileno()

    def start(self, request: tuple[Any, ...], streams: list[int]) -> None:
        """Hand a command over: (argv, env, cwd, terminal, shell to ask how it ended)."""
        body = marshal.dumps(request)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", streams))]
        message = b"%010d" % len(body) + body
        sent = self.line.sendmsg([message], rights)
        if sent < len(message):
            self.line.sendall(message[sent:])

    def tell(self, message: bytes) -> None:
        # If it is dead, or stopped, whoever waits for its record will see.
        with contextlib.suppress(OSError):
            self.line.sendall(message)

    def record(self) -> Record:
        """The record that makes the line readable."""
        try:
            head = self._read(10)
            return Record.load(self._read(int(head))) if head else Record("lost", 0)
        except (OSError, ValueError, TypeError, EOFError):
            return Record("lost", 0)

    def _read(self, size: int) -> bytes:
        data = b""
        while len(data) < size and (part := self.line.recv(size - len(data))):
            data += part
        return data

    def close(self) -> None:
        """Let it go: it ends whatever is below it, and exits."""
        self.line.close()

    def gone(self) -> bool:
        """Has it exited? It is buried then."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def wait(self) -> None:
        """Wait until it has exited, and help it if it was stopped."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.gone():
            if time.monotonic() > deadline:
                ending.send(self.pid, signal.SIGKILL)
            ending.send(self.pid, signal.SIGCONT)
            time.sleep(0.001)

    def force(self) -> None:
        """It was told to end and does not answer: somebody may have stopped it."""
        ending.kill_below(self.pid)
        ending.send(self.pid, signal.SIGCONT)


def _fork_keeper(birth: Birth) -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair()
    try:
        with birth.scores.of_keepers():
            pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        try:
            _serve(theirs, birth)
        finally:
            os._exit(1)
    theirs.close()
    return pid, ours


def walled_nursery(raise_walls: Callable[[], None], birth: Birth) -> Nursery:
    """Where keepers come from that have walls around them; OSError if those can't be raised."""

    live = partial(_serve, birth=birth)
    return Nursery(raise_walls, live, _keep_only, birth.scores.of_keepers)


def end_orphans(keepers: set[int]) -> int:
    """Kill and reap every child of the runner that is no keeper; returns how many stayed alive."""
    give_up = time.monotonic() + _PATIENCE_S
    me = os.getpid()
    while True:
        _reap_all_but(keepers)
        orphans = set(ending.children_lister()(me)) - keepers
        if not orphans:
            return 0
        if time.monotonic() > give_up:
            return len(orphans)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in orphans:
                ending.send(pid, number)
                ending.kill_below(pid)
        time.sleep(0.001)


def _reap_all_but(keepers: set[int]) -> None:
    for pid in set(ending.children_lister()(os.getpid())) - keepers:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


# --- Inside the keeper -----------------------------------------------------------------------


def _serve(line: socket.socket, birth: Birth) -> None:
    """A keeper's life: one command after the other, until the runner is gone."""
    _keep_only(line.fileno())
    ending.become_keeper()
    ending.prctl(ending.PR_SET_CHILD_SUBREAPER, 1)
    limit_us(birth.rlimits)  # Once, here: commands inherit it, and the runner has no part in it.
    wakeup, wakeup_end = os.pipe()
    for fd in (wakeup, wakeup_end):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
    while True:
        request, streams = _receive(line)
        record = _keep_one(request, streams, _Inside(line, wakeup, birth.scores))
        line.sendall(record.dump())
        for fd in streams:
            os.close(fd)


def _keep_only(line: int) -> None:
    """Everything else belongs to the runner: its streams, other keepers' lines."""
    with contextlib.suppress(OSError):  # Room for what follows, if the runner has none left.
        os.close(3 if line != 3 else 4)
    ending.leave_streams()
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != line:
            with contextlib.suppress(OSError):  # The one that listed the folder.
                os.close(int(name))


def _receive(line: socket.socket) -> tuple[Any, list[int]]:
    rights_size = socket.CMSG_LEN(3 * array.array("i").itemsize)
    data = b""
    while not data:
        # The kernel never joins a message that carries descriptors with the next one.
        data, rights, _, _ = line.recvmsg(64 * 1024, rights_size, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)
        while data[:1] in (END, SIGNAL):  # Meant for the command before, which ended meanwhile.
            data = data[len(END) if data[:1] == END else len(SIGNAL) + 1 :]
    left = int(data[:10]) + 10 - len(data)
    while left > 0:
        part = line.recv(left, socket.MSG_WAITALL)
        if not part:
            os._exit(0)
        data += part
        left -= len(part)
    streams = array.array("i")
    for _level, _kind, packed in rights:
        streams.frombytes(packed)
    return marshal.loads(data[10:]), list(streams)  # noqa: S302 - from our own parent


class _Inside:
    """What a keeper has: the line to the runner, what wakes it, and who is killed first."""

    def __init__(self, line: socket.socket, wakeup: int, scores: Scores) -> None:
        self.line, self.wakeup, self.scores = line, wakeup, scores


def _keep_one(request: Any, streams: list[int], inside: _Inside) -> Record:
    argv, env, cwd, terminal, shell = request
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    reports: list[int] = []
    failing = "no_cwd"
    # The command's alone. Not so the pipes it writes to: while we hold them, their end does not
    # wake the runner just before the record does.
    held = [streams.pop(0)]
    try:
        os.chdir(cwd)
        failing = "no_program"
        program = ending.find_program(argv[0], env.get(b"PATH", os.defpath.encode()))
        failing = "no_start"
        handed = held * 3 if terminal else [*held, *streams]
        pairs = [(fd, number) for number, fd in enumerate(handed)]
        if shell:
            reports += ask(argv, env, shell, held, pairs)
        command = start(program, argv, env, pairs, on_terminal=terminal)
    except (OSError, ValueError) as error:
        for report in reports:
            os.close(report)
        return Record(failing, getattr(error, "errno", None) or errno.EINVAL)
    finally:
        os.chdir("/")
        for fd in held:
            os.close(fd)
    record = _watch(command, inside)
    if reports:
        record.cwd, record.exports = read_cwd(reports[0]), read_exports(reports[1])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    record.cpu_ms = round(spent_s * 1000)
    if after.ru_maxrss > before.ru_maxrss:
        record.max_rss_kib = after.ru_maxrss
    return record


def _watch(command: int, inside: _Inside) -> Record:
    """Wait for the command's end, or for the word to end it; nothing is left below afterwards."""
    line, wakeup = inside.line, inside.wakeup
    poll = select.poll()
    poll.register(line, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
    status, rss = None, 0
    patience_ms: int | None = _NEWBORN_MS
    while status is None:
        ready = {fd for fd, _ in poll.poll(patience_ms)}
        if not ready:
            inside.scores.put_first(command)
            patience_ms = None
        if line.fileno() in ready:
            told = line.recv(2)
            if told[:1] == SIGNAL:
                number = told[1] if len(told) > 1 else line.recv(1)[0]
                ending.send(-command, number)
            else:
                return _end(command, rss, None, gone=not told)
        if wakeup in ready:
            _drain(wakeup)
            status, rss = _reap(command, rss)
    return _end(command, rss, status, gone=False)


def _drain(fd: int) -> None:
    try:
        while os.read(fd, 4096):
            pass
    except BlockingIOError:
        pass


def _reap(command: int, rss: int) -> tuple[int | None, int]:
    """Take in what has ended, orphans too; the command's status once it is among them."""
    found = None
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return found, rss
        if pid == 0:
            return found, rss
        rss = max(rss, usage.ru_maxrss)
        if pid == command:
            found = status


def _end(command: int, rss: int, status: int | None, *, gone: bool) -> Record:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    ended, survivors = ending.end_below_us(_PATIENCE_S)
    if gone:
        os._exit(0)
    left = {"ended": len(ended - {command}), "survivors": survivors, "max_rss_kib": rss}
    if status is None:
        return Record("ended", 0, **left)
    if os.WIFSIGNALED(status):
        return Record("signalled", os.WTERMSIG(status), **left)
    return Record("exited", os.WEXITSTATUS(status), **left)
