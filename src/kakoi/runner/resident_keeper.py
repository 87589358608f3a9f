"""Resident keepers: a child subreaper above each command, reused when its command has ended.

    runner ──line── keeper ── the command ── its descendants

An orphan below a keeper becomes that keeper's child, so at the end the keeper can kill until
nothing is left; then it reports and waits for the next command. The runner is a subreaper as well:
if a command kills its keeper, the runner inherits it (`end_orphans`).

The line is a socket. To the keeper: a request with the command's three streams attached, then END
or SIGNAL and a number; end of file means that the runner is gone. Back: one record per command.
Standard library only, Python >= 3.8.
"""

from __future__ import annotations

# Not `signal` and `socket`: their enums would take a good part of our start-up time.
import _signal as signal  # type: ignore[import-not-found]
import _socket as socket
import errno
import marshal
import os
import resource
import select
import time

from kakoi.runner import keeper as keeper_program
from kakoi.runner import rights as passed
from kakoi.runner.contexts import suppress
from kakoi.runner.fork_server import ForkServer
from kakoi.runner.rlimits import apply_rlimits
from kakoi.runner.shell_report import ask, read_cwd, read_exports
from kakoi.runner.spawn import start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kakoi.runner.memory import OomScores

END = b"E"
SIGNAL = b"S"
_PATIENCE_S = 30.0
_SEND_TIMEOUT_S = 2.0
# A younger program may still be loading, with files in /proc that belong to root.
_NEWBORN_MS = 5
_RECORD_SIZE = 4096  # Most are smaller.


class CommandRecord:
    """How a command ended: `kind` is one of those in keeper.py, or "lost" if its keeper died."""

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
    def load(cls, data: bytes) -> CommandRecord:
        return cls(**marshal.loads(data))  # noqa: S302 - from our own child


class KeeperOptions:
    """What every keeper gets: the rlimits of its commands, and the OOM scores."""

    def __init__(self, rlimits: dict[str, int], scores: OomScores) -> None:
        self.rlimits, self.scores = rlimits, scores


class Keeper:
    """The runner's side of one keeper, forked by the fork server if there is one."""

    group = 0  # The number of its control group, if there are groups.

    def __init__(self, options: KeeperOptions, fork_server: ForkServer | None = None) -> None:
        self.pid, self.line = _fork_keeper(options) if fork_server is None else fork_server.keeper()
        self.line.settimeout(_SEND_TIMEOUT_S)

    def fileno(self) -> int:
        return self.line.fileno()

    def start(self, request: tuple[Any, ...], streams: list[int]) -> None:
        """Pass a command to the keeper: (argv, env, cwd, terminal, shell that must report)."""
        body = marshal.dumps(request)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed.pack(streams))]
        message = b"%010d" % len(body) + body
        sent = self.line.sendmsg([message], rights)
        if sent < len(message):
            self.line.sendall(message[sent:])

    def send(self, message: bytes) -> None:
        # If the keeper is dead or stopped, the wait for its record shows it.
        with suppress(OSError):
            self.line.sendall(message)

    def record(self) -> CommandRecord:
        """Read the record of the command that has ended."""
        try:
            data = self.line.recv(_RECORD_SIZE)
            size = 10 + int(data[:10])
            while len(data) < size and (part := self.line.recv(size - len(data))):
                data += part
            return CommandRecord.load(data[10:])
        except (OSError, ValueError, TypeError, EOFError):
            return CommandRecord("lost", 0)

    def close(self) -> None:
        """Dismiss the keeper: it ends everything below it and exits."""
        self.line.close()

    def gone(self) -> bool:
        """Has it exited? If so, it is reaped."""
        try:
            return os.waitpid(self.pid, os.WNOHANG)[0] != 0
        except ChildProcessError:
            return True

    def wait(self) -> None:
        """Wait until it has exited; continue it if it was stopped."""
        deadline = time.monotonic() + _PATIENCE_S
        while not self.gone():
            if time.monotonic() > deadline:
                keeper_program.send(self.pid, signal.SIGKILL)
            keeper_program.send(self.pid, signal.SIGCONT)
            time.sleep(0.001)

    def force(self) -> None:
        """End the command of a keeper that does not answer: it may have been stopped."""
        keeper_program.kill_below(self.pid)
        keeper_program.send(self.pid, signal.SIGCONT)


def _fork_keeper(options: KeeperOptions) -> tuple[int, socket.socket]:
    ours, theirs = socket.socketpair()
    try:
        with options.scores.of_keepers():
            pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        try:
            _serve(theirs, options)
        finally:
            os._exit(1)
    theirs.close()
    return pid, ours


def start_fork_server(restrict: Callable[[], None], options: KeeperOptions) -> ForkServer:
    """Start the fork server of restricted keepers; OSError if it cannot be restricted."""

    def live(line: socket.socket) -> None:
        _serve(line, options)

    return ForkServer(restrict, live, _keep_only, options.scores.of_keepers)


def end_orphans(keepers: set[int]) -> int:
    """Kill and reap every child of the runner but keepers; returns how many survived."""
    give_up = time.monotonic() + _PATIENCE_S
    me = os.getpid()
    while True:
        _reap_all_but(keepers)
        orphans = set(keeper_program.children_lister()(me)) - keepers
        if not orphans:
            return 0
        if time.monotonic() > give_up:
            return len(orphans)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in orphans:
                keeper_program.send(pid, number)
                keeper_program.kill_below(pid)
        time.sleep(0.001)


def _reap_all_but(keepers: set[int]) -> None:
    for pid in set(keeper_program.children_lister()(os.getpid())) - keepers:
        with suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


# --- Inside the keeper -----------------------------------------------------------------------


def _serve(line: socket.socket, options: KeeperOptions) -> None:
    """Run one command after the other until the runner is gone."""
    _keep_only(line.fileno())
    keeper_program.become_keeper()
    keeper_program.prctl(keeper_program.PR_SET_CHILD_SUBREAPER, 1)
    apply_rlimits(
        options.rlimits
    )  # Once, and only here: commands inherit it, and the runner is not affected.
    wakeup, wakeup_end = os.pipe()
    for fd in (wakeup, wakeup_end):
        os.set_blocking(fd, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wakeup_end, warn_on_full_buffer=False)
    while True:
        request, streams = _receive(line)
        record = _keep_one(request, streams, _Inside(line, wakeup, options.scores))
        line.sendall(record.dump())
        for fd in streams:
            os.close(fd)


def _keep_only(line: int) -> None:
    """Close everything but `line`: the rest belongs to the runner and other keepers."""
    with suppress(OSError):  # Room for what follows, if the runner has none left.
        os.close(3 if line != 3 else 4)
    keeper_program.leave_streams()
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != line:
            with suppress(OSError):  # The descriptor used to list the folder.
                os.close(int(name))


def _receive(line: socket.socket) -> tuple[Any, list[int]]:
    rights_size = socket.CMSG_LEN(3 * passed.SIZE)
    data = b""
    while not data:
        # The kernel never joins a message that carries descriptors with the next one.
        data, rights, _, _ = line.recvmsg(64 * 1024, rights_size, socket.MSG_CMSG_CLOEXEC)
        if not data:
            os._exit(0)
        while data[:1] in (
            END,
            SIGNAL,
        ):  # Meant for the previous command, which has ended in the meantime.
            data = data[len(END) if data[:1] == END else len(SIGNAL) + 1 :]
    left = int(data[:10]) + 10 - len(data)
    while left > 0:
        part = line.recv(left, socket.MSG_WAITALL)
        if not part:
            os._exit(0)
        data += part
        left -= len(part)
    streams = [fd for _level, _kind, packed in rights for fd in passed.unpack(packed)]
    return marshal.loads(data[10:]), streams  # noqa: S302 - from our own parent


class _Inside:
    """The state of a keeper: the line to the runner, its wakeup descriptor, and the OOM scores."""

    def __init__(self, line: socket.socket, wakeup: int, scores: OomScores) -> None:
        self.line, self.wakeup, self.scores = line, wakeup, scores


def _keep_one(request: Any, streams: list[int], inside: _Inside) -> CommandRecord:
    argv, env, cwd, terminal, shell = request
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    reports: list[int] = []
    failing = "no_cwd"
    # Only the command may have its stdin. We keep its output pipes open: otherwise their end of
    # file would wake the runner just before the record does.
    held = [streams.pop(0)]
    try:
        os.chdir(cwd)
        failing = "no_program"
        program = keeper_program.find_program(argv[0], env.get(b"PATH", os.defpath.encode()))
        failing = "no_start"
        handed = held * 3 if terminal else [*held, *streams]
        pairs = [(fd, number) for number, fd in enumerate(handed)]
        if shell:
            reports += ask(argv, env, shell, held, pairs)
        command = start(program, argv, env, pairs, on_terminal=terminal)
    except (OSError, ValueError) as error:
        for report in reports:
            os.close(report)
        return CommandRecord(failing, getattr(error, "errno", None) or errno.EINVAL)
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


def _watch(command: int, inside: _Inside) -> CommandRecord:
    """Wait until the command ends or must be ended; nothing is left below afterwards."""
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
            message = line.recv(2)
            if message[:1] == SIGNAL:
                number = message[1] if len(message) > 1 else line.recv(1)[0]
                keeper_program.send(-command, number)
            else:
                return _end(command, rss, None, gone=not message)
        if wakeup in ready:
            _drain(wakeup)
            status, rss = _reap(command, rss)
    return _end(command, rss, status, gone=False)


def _drain(fd: int) -> None:
    with suppress(BlockingIOError):
        os.read(fd, 4096)


def _reap(command: int, rss: int) -> tuple[int | None, int]:
    """Reap what has ended, including orphans; returns the command's status if it is among it."""
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


def _end(command: int, rss: int, status: int | None, *, gone: bool) -> CommandRecord:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    ended, survivors = keeper_program.end_below_us(_PATIENCE_S)
    if gone:
        os._exit(0)
    left = {"ended": len(ended - {command}), "survivors": survivors, "max_rss_kib": rss}
    if status is None:
        return CommandRecord("ended", 0, **left)
    if os.WIFSIGNALED(status):
        return CommandRecord("signalled", os.WTERMSIG(status), **left)
    return CommandRecord("exited", os.WEXITSTATUS(status), **left)
