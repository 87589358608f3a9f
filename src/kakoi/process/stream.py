"""A long-running program and one byte stream to it until it is ended.

The program's stdin and stdout are one end of a socket, and we have the other. The beginning of its
stderr is stored to explain a failure.
"""

import contextlib
import fcntl
import os
import signal
import socket
import tty
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field

from kakoi._support.late import dataclass
from kakoi.errors import ExecutionError
from kakoi.process.keeper_client import call_when_gone, encode_request, help_to_end, keeper_argv
from kakoi.process.options import encode_argv, encode_env
from kakoi.process.pumps import Drain, Feed
from kakoi.results import Capture

_STDERR_BYTES = 16 * 1024
_NEXT_TRY_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What to start. `argv[0]` is looked up on the PATH of `env`, the program's whole environment.

    `files`: an argument that equals one of these keys becomes the number of a descriptor from
    which the program can read the bytes.
    `descriptors`: our descriptors that the program inherits, with the same numbers.
    `kept`: a keeper runs above the program and ends every process it started when it exits, when
    the stream is ended and when we die. Without a keeper the program has to do that itself: it
    sees end of file on its stdin.
    `with_group`: when the program has exited, the rest of its process group is killed.
    `separate_stderr`: its stderr is not stored; the caller reads it.
    `terminal`: its streams are a raw terminal without a size instead of the socket.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str = "/"
    files: Mapping[str, bytes] = field(default_factory=dict)
    descriptors: Sequence[int] = ()
    kept: bool = False
    with_group: bool = False
    separate_stderr: bool = False
    terminal: bool = False


class ProcessStream:
    """A running program and the stream to it. The caller must `end` it.

    `stderr_fd` and `terminal_fd` exist if they were requested. They are non-blocking. Stop reading
    them before `end`, which closes them.
    `afterwards`: called by `end` as its last step, when the program has exited.
    """

    stderr_fd: int | None = None
    terminal_fd: int | None = None
    afterwards: Callable[[], Awaitable[None]] | None = None

    def __init__(self, launch: Launch) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        self._ours = contextlib.ExitStack()
        self._stderr = Capture(_STDERR_BYTES)
        self._line: socket.socket | None = None
        self._with_group = launch.with_group
        try:
            self._start(launch)
        except BaseException as error:
            self._ours.close()
            if not isinstance(error, OSError):
                raise
            raise ExecutionError(
                f"cannot start `{launch.argv[0]}`: {error.strerror}",
                details={"program": launch.argv[0], "errno": error.errno},
                hint="is it installed and on PATH?",
            ) from error

    @property
    def pid(self) -> int:
        """The pid of the process that was started: the program, or its keeper."""
        return self._popen.pid

    @property
    def stderr(self) -> str:
        """The program's output on stderr so far."""
        return self._stderr.text()

    async def wait(self) -> int:
        """Wait until the program has exited by itself; returns its Popen return code."""
        import asyncio

        await asyncio.shield(self._gone)
        return self._popen.wait()

    async def end(self, grace_s: float = 2.0) -> None:
        """Close the stream, wait up to `grace_s` for the program to exit, then kill it.

        A program with a keeper is ended at once: the keeper has `grace_s` for that and then gets
        help. A cancellation is raised only when the program is gone.
        """
        from kakoi._support.asyncio import finish, wait_through

        self.socket.close()
        self._close_terminal()
        if self._line is not None:
            with contextlib.suppress(OSError):
                self._line.shutdown(socket.SHUT_WR)
        self._impatience = self._loop.call_later(grace_s, self._give_up)
        cancelled = await wait_through(self._gone)
        self._impatience.cancel()
        self._popen.wait()
        self._ours.close()
        if self.afterwards is not None:
            await finish(self.afterwards())
        if cancelled is not None:
            raise cancelled

    def _give_up(self) -> None:
        """The grace period is over: kill the program, or help its keeper, which may be stopped."""
        if self._line is None:
            self._kill()
            return
        try:
            helper = help_to_end(self._popen.pid)
        except OSError:
            self._impatience = self._loop.call_later(_NEXT_TRY_S, self._give_up)
        else:
            self._ours.callback(helper.wait)

    def _kill(self) -> None:
        """Kill its process group. Never call this after it was reaped: the pid may be reused."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)

    def _start(self, launch: Launch) -> None:
        import subprocess

        with contextlib.ExitStack() as theirs:
            self.socket, their_socket = socket.socketpair()
            self.socket.setblocking(False)
            self._ours.callback(self.socket.close)
            theirs.callback(their_socket.close)
            streams = [their_socket.fileno()] * 2 + [self._make_stderr(launch, theirs)]
            if launch.terminal:
                streams = [self._make_terminal(theirs)] * 3
            fds = {name: _readable(data, theirs) for name, data in launch.files.items()}
            argv = [str(fds.get(word, word)) for word in launch.argv]
            request = b""
            if launch.kept:
                request = encode_request(encode_argv(argv[0], argv[1:]), encode_env(launch.env))
                line = self._make_line(theirs)
                argv, fds["line"] = keeper_argv(str(line)), line
            self._popen: subprocess.Popen[bytes] = subprocess.Popen(
                argv,
                env=dict(launch.env),
                cwd=launch.cwd,
                stdin=streams[0],
                stdout=streams[1],
                stderr=streams[2],
                pass_fds=[*fds.values(), *launch.descriptors],
                start_new_session=True,
            )
        try:
            call_when_gone(self._loop, self._popen.pid, self._on_gone, self._ours)
            if self._line is not None:
                # Written as the keeper reads it: a request larger than the buffer would block us.
                feed = Feed(self._loop, os.dup(self._line.fileno()), request)
                self._ours.callback(feed.close)
        except BaseException:
            self._kill()  # Nobody would wait for it. A keeper has not received its request yet.
            self._popen.wait()
            raise

    def _make_stderr(self, launch: Launch, theirs: contextlib.ExitStack) -> int:
        stderr, their_stderr = os.pipe()
        theirs.callback(os.close, their_stderr)
        if launch.separate_stderr:
            os.set_blocking(stderr, False)
            self._ours.callback(os.close, stderr)
            self.stderr_fd = stderr
        else:
            drain = Drain(self._loop, stderr, self._stderr)
            self._ours.callback(drain.finish)
        return their_stderr

    def _make_terminal(self, theirs: contextlib.ExitStack) -> int:
        self.terminal_fd, their_terminal = os.openpty()
        theirs.callback(os.close, their_terminal)
        self._ours.callback(self._close_terminal)
        os.set_blocking(self.terminal_fd, False)
        # Raw from the start: early input must not be echoed or interpreted here.
        tty.setraw(their_terminal)
        return their_terminal

    def _close_terminal(self) -> None:
        if self.terminal_fd is not None:
            os.close(self.terminal_fd)
            self.terminal_fd = None

    def _make_line(self, theirs: contextlib.ExitStack) -> int:
        """Open a line to a keeper; returns the descriptor of the keeper's end."""
        self._line, their_line = socket.socketpair()
        self._ours.callback(self._line.close)
        theirs.callback(their_line.close)
        number = fcntl.fcntl(their_line, fcntl.F_DUPFD_CLOEXEC, 3)
        theirs.callback(os.close, number)
        return number

    def _on_gone(self) -> None:
        if self._with_group:
            self._kill()
        if not self._gone.done():
            self._gone.set_result(None)


def _readable(data: bytes, theirs: contextlib.ExitStack) -> int:
    """Return a descriptor, above the standard three, that reads `data` from its beginning."""
    memory = os.memfd_create("kakoi", os.MFD_CLOEXEC)
    theirs.callback(os.close, memory)
    number = fcntl.fcntl(memory, fcntl.F_DUPFD_CLOEXEC, 3)
    theirs.callback(os.close, number)
    os.write(memory, data)
    os.lseek(memory, 0, os.SEEK_SET)
    return number
