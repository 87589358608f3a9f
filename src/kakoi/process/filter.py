"""Run a trusted leaf program on bytes, blocking, at close to the bare cost of starting it.

Only for our own tools on a hot path (the shell parser): the program has no keeper above it, so it
must not start any process itself. Everything else goes through `ProcessExecutor`.
"""

import contextlib
import errno
import fcntl
import os
import select
import signal
import time
from collections.abc import Sequence
from functools import partial

from kakoi._support.late import dataclass
from kakoi.errors import ConfigurationError, ExecutionError

_CHUNK_BYTES = 64 * 1024
# Python ignores these two signals, and the program would inherit that.
_DEFAULT_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ)


@dataclass(frozen=True, slots=True)
class FilterResult:
    """The output of a filter, and how it ended.

    A program that was killed because of its timeout or its output limit has the `exit_code`
    128 + SIGKILL. Its output is then the part that was read, at most the limit per stream.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    overflowed: bool = False


def run_filter(
    argv: Sequence[str], stdin: bytes, *, timeout_s: float, max_output_bytes: int
) -> FilterResult:
    """Run the program at the path `argv[0]` on `stdin` and return its output.

    The environment is empty and PATH is not searched. The program is dead and reaped when this
    returns or raises. Any number of threads can call it at once.
    """
    if not argv or not timeout_s > 0 or max_output_bytes < 0:
        raise ConfigurationError(
            "a filter needs a program, a time limit above zero and an output limit"
        )
    deadline = time.monotonic() + timeout_s
    pipes = _Pipes()
    started: list[int] = []
    try:
        try:
            _start(argv, pipes, started)
            pipes.exchange(stdin, deadline, max_output_bytes)
            exceeded = pipes.overflowed or not (pipes.ended and _exits_by(deadline, started[0]))
        except BaseException:
            for pid in started:
                _kill_and_reap(pid)
            raise
        exit_code = _kill_and_reap(started[0]) if exceeded else _reap(started[0])
    finally:
        pipes.close()
    stdout, stderr = (bytes(output[:max_output_bytes]) for output in pipes.outputs.values())
    timed_out = exceeded and not pipes.overflowed
    return FilterResult(exit_code, stdout, stderr, timed_out, pipes.overflowed)


def _start(argv: Sequence[str], pipes: "_Pipes", started: list[int]) -> None:
    """Start the program and add its pid to `started`, even if a signal handler raises meanwhile."""
    try:
        theirs = pipes.open()
        # posix_spawn shares our memory until the program is loaded. A fork would copy it.
        spawn = partial(
            os.posix_spawn,
            file_actions=[(os.POSIX_SPAWN_DUP2, fd, stream) for stream, fd in enumerate(theirs)],
            setsigmask=(),
            setsigdef=_DEFAULT_SIGNALS,
        )
        # In one call: if a signal handler raised between two calls, the pid would be lost.
        started.extend(map(spawn, [argv[0]], [list(argv)], [{}]))
    except OSError as error:
        raise ExecutionError(
            f"cannot start {argv[0]!r}: {error.strerror}",
            details={"command": argv[0], "errno": errno.errorcode.get(error.errno or 0, "")},
        ) from error
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"cannot start {argv[0]!r}: {error}") from error
    finally:
        pipes.close_theirs()


class _Pipes:
    """The three pipes of one program, and the output read from two of them."""

    __slots__ = ("_ours", "_theirs", "ended", "outputs", "overflowed")

    def __init__(self) -> None:
        self._ours: list[int] = []
        self._theirs: list[int] = []
        self.outputs: dict[int, bytearray] = {}
        self.ended = False
        self.overflowed = False

    def open(self) -> list[int]:
        """Open the pipes for stdin, stdout and stderr; return the program's ends."""
        for stream in range(3):
            read_end, write_end = _pipe()
            self._theirs.append(write_end if stream else read_end)
            self._ours.append(read_end if stream else write_end)
        self.outputs = {fd: bytearray() for fd in self._ours[1:]}
        return self._theirs

    def close_theirs(self) -> None:
        while self._theirs:
            os.close(self._theirs.pop())

    def close(self) -> None:
        while self._ours:
            os.close(self._ours.pop())

    def exchange(self, stdin: bytes, deadline: float, max_output_bytes: int) -> None:
        """Write and read until the outputs close, one exceeds its limit, or the deadline passes."""
        unsent = self._send(memoryview(stdin))
        poll = select.poll()
        for fd in self._ours:
            poll.register(fd, select.POLLOUT if fd not in self.outputs else select.POLLIN)
        open_outputs = len(self.outputs)
        while open_outputs and not self.overflowed:
            left_ms = _milliseconds_to(deadline)
            if left_ms <= 0:
                return
            for fd, _ in poll.poll(left_ms):
                if fd not in self.outputs:
                    poll.unregister(fd)
                    unsent = self._send(unsent)
                    if unsent:
                        poll.register(fd, select.POLLOUT)
                elif chunk := os.read(fd, _CHUNK_BYTES):
                    self.outputs[fd] += chunk
                    self.overflowed |= len(self.outputs[fd]) > max_output_bytes
                else:
                    poll.unregister(fd)
                    open_outputs -= 1
        self.ended = not open_outputs

    def _send(self, unsent: memoryview) -> memoryview:
        """Write what fits, close stdin after the last byte, and return the rest."""
        stdin_fd = self._ours[0]
        os.set_blocking(stdin_fd, False)
        try:
            unsent = unsent[os.write(stdin_fd, unsent) :] if unsent else unsent
        except BlockingIOError:
            return unsent
        except BrokenPipeError:
            unsent = unsent[len(unsent) :]
        if not unsent:
            os.close(self._ours.pop(0))
        return unsent


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    if min(ends) > 2:
        return ends
    # Our own standard streams are closed, and a pipe end at 0, 1 or 2 would be overwritten in the
    # child.
    raised = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends]
    for end in ends:
        os.close(end)
    return raised[0], raised[1]


def _exits_by(deadline: float, pid: int) -> bool:
    """Wait for a program that has closed its outputs. Most have already exited; some hang."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    except (AttributeError, OSError):
        return _exits_by_asking(deadline, pid)
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(_milliseconds_to(deadline)))
    finally:
        os.close(pidfd)


def _exits_by_asking(deadline: float, pid: int) -> bool:
    """Like `_exits_by`, without pidfds: for Linux before 5.3, or a Python built there."""
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        if _milliseconds_to(deadline) <= 0:
            return False
        time.sleep(0.0005)
    return True


def _milliseconds_to(deadline: float) -> float:
    # At most an hour at a time: poll takes only 32 bits.
    return min(max(0.0, (deadline - time.monotonic()) * 1000), 3_600_000)


def _kill_and_reap(pid: int) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return _reap(pid)


def _reap(pid: int) -> int:
    """Reap the program and return its exit code: 128 + N after signal N."""
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError as error:
        raise ExecutionError(
            "the exit status of a program was collected elsewhere in this process",
            hint="do not ignore SIGCHLD, and do not wait for children that are not yours",
        ) from error
    return code if code >= 0 else 128 - code
