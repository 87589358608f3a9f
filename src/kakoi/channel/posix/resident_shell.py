"""A resident shell inside a sandbox without Python: started once, used for many requests.

It runs start.sh, which describes the protocol. Everything it sends is output, except lines that
begin with the nonce of the current request.
"""

import asyncio
import contextlib
import dataclasses
import os
import secrets
import socket
from collections.abc import AsyncIterable, Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Protocol

from kakoi._support.asyncio import cancel_and_wait
from kakoi._support.late import dataclass
from kakoi.channel.api import Stream
from kakoi.channel.posix.protocol import BreachError, Ending, ProcessTree, parse_line
from kakoi.errors import ExecutionError, SandboxError
from kakoi.process.stream import Launch, ProcessStream

_CHUNK = 256 * 1024
_LONGEST_LINE = 200
_LONGEST_REPORT = 40 * 1024
_MOST_WORDS = 2000
_TEXTS = ("start.sh", "jobs.sh", "watch.sh", "orders.sh")
# In the environment, not in the arguments: `pkill -f` must not match our script.
_BOOT = 'eval "$KAKOI_SH"'
# The second half of the pipeline ends the shell that waits for the first, which is nobody's from
# then on. A plain `&` would have it ignore SIGINT for good.
_DETACH = '"$@" </dev/null >/dev/null 2>&1 | kill -9 $$'
_END_OF_INPUT = b"\x04"  # A terminal has no end of file; Ctrl-D stands for it.


class Launcher(Protocol):
    """How to start `argv` inside the sandbox, with its standard streams connected."""

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] = ..., terminal: bool = ...
    ) -> Launch: ...


@dataclass(frozen=True, slots=True)
class ShellConfig:
    """What a sandbox offers to resident shells: a private folder, an init, a shell for commands.

    `init` is empty if there is none; `flag` makes it a child subreaper; `loud` makes it report how
    its child ended. `channel` names the shells that belong together.
    `limits`: shell text that lowers the limits of a process before it becomes a command.
    """

    launch: Launcher
    channel: str
    base: str = ""
    init: str = ""
    flag: str = ""
    loud: str = ""
    shell: str = "/bin/sh"
    limits: str = ""

    def shell_launch(self, spec: str = "", *, kept: bool = True, terminal: bool = False) -> Launch:
        """Return what starts a resident shell; `kept`: below an init of its own."""
        argv = self._argv(f"kakoi-{self.channel}", spec, kept=kept)
        return self.launch(argv, env={"KAKOI_SH": script()}, terminal=terminal)

    def job_launch(self, spec: str) -> Launch:
        """Return what starts a resident shell that outlives the process that started it."""
        argv = self._argv("kakoi-job", spec, kept=True)
        return self.launch(["sh", "-c", _DETACH, "kakoi-job", *argv], env={"KAKOI_SH": script()})

    def _argv(self, name: str, spec: str, *, kept: bool) -> list[str]:
        init = self.init if kept else ""
        above = [word for word in (init, self.flag, "--") if word] if init else []
        shell = ["sh", "-c", _BOOT, name, spec, self.base, init, self.loud, self.shell]
        shell.append(self.limits)
        return [*above, *shell]


@cache
def script() -> str:
    """Return the script of the resident shell, without comments."""
    texts = [Path(__file__).with_name(name).read_text("ascii") for name in _TEXTS]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return "\n".join(line for line in lines if line and not line.startswith("#"))


class AnswerListener(Protocol):
    """Receives the answer to a request."""

    def on_started(self, kept: ProcessTree) -> None: ...
    async def on_data(self, stream: Stream, data: bytes) -> None:
        """Take output; while this waits, no more of that stream is read."""
        ...


class _Cutter:
    """Separates protocol lines from the command's output in one stream."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce.encode()
        self._held = b""

    def feed(self, chunk: bytes) -> Iterator[tuple[bool, bytes]]:
        """Yield output (False) and protocol lines without the nonce (True), in order."""
        self._held += chunk
        while (at := self._held.find(self._nonce)) >= 0:
            if at:
                yield False, self._held[:at]
                self._held = self._held[at:]
            end = self._held.find(b"\n")
            if end < 0 and len(self._held) < _LONGEST_LINE:
                return
            if not 0 <= end < _LONGEST_LINE:
                raise BreachError("a line of the sandbox has no end")
            line, self._held = self._held[len(self._nonce) : end], self._held[end + 1 :]
            yield True, line.removesuffix(b"\r")
        # The beginning of a nonce may be at the end; the rest of it comes with the next chunk.
        longest = min(len(self._nonce) - 1, len(self._held))
        keep = next((n for n in range(longest, 0, -1) if self._held.endswith(self._nonce[:n])), 0)
        size = len(self._held) - keep
        output, self._held = self._held[:size], self._held[size:]
        if output:
            yield False, output


class ResidentShell:
    """A resident shell; requests go to it one after the other. `end` must be called.

    `is_used`: it has had a request. `is_closed`: its input has ended, so it takes no other one.
    `on_up` is called when it begins to answer.
    """

    def __init__(self, launch: Launch, *, terminal: bool = False) -> None:
        # A terminal on our side has no size: otherwise the program in between would pass that on,
        # sooner or later, and undo what was set inside.
        launch = dataclasses.replace(launch, separate_stderr=True, terminal=terminal)
        try:
            self._stream = ProcessStream(launch)
        except ExecutionError as error:
            raise SandboxError(str(error), details=error.details, hint=error.hint) from error
        self._key = secrets.token_hex(16)
        self.is_used = False
        self.is_closed = False
        self.on_up: Callable[[], object] = lambda: None
        self._errors = bytearray()
        fd, stderr = self._stream.terminal_fd, self._stream.stderr_fd
        assert stderr is not None  # noqa: S101 - it was asked for
        self._is_terminal = fd is not None
        self._out = self._stream.socket.fileno() if fd is None else fd
        self._err = stderr if fd is None else fd

    @property
    def errors(self) -> str:
        """The error output of the program that should have started it."""
        return self._errors.decode("utf-8", "replace").strip()

    def full_request(self, nonce: str, body: bytes) -> bytes:
        """Return the bytes to send: the key before the first request, and with each."""
        key = "" if self.is_used else f"{self._key}\n"
        self.is_used = True
        return f"{key}{self._key} {nonce}\n".encode() + body

    async def ask(
        self,
        body: bytes,
        listener: AnswerListener,
        payload: bytes | AsyncIterable[bytes] = b"",
    ) -> Ending | None:
        """Send a request and read its answer; None if the stream ended before the answer did."""
        nonce = secrets.token_hex(16)
        writing = asyncio.ensure_future(self._send(self.full_request(nonce, body), payload))
        try:
            return await self.hear(nonce, listener)
        finally:
            await cancel_and_wait(writing)

    async def _send(self, body: bytes, payload: bytes | AsyncIterable[bytes]) -> None:
        await self.write(body)
        if isinstance(payload, AsyncIterable):
            async for part in payload:
                await self.write(part)
        else:
            await self.write(payload)

    async def hear(self, nonce: str, listener: AnswerListener) -> Ending | None:
        """Read the answer to a request that was sent by other means."""
        if self._is_terminal:
            return await self._hear_words(_Cutter(nonce), listener, "stdout")
        output = asyncio.ensure_future(self._hear_output(_Cutter(nonce), listener))
        try:
            ending = await self._hear_words(_Cutter(nonce), listener, "stderr")
            return ending if await output else None
        finally:
            await cancel_and_wait(output)

    async def _hear_output(self, cutter: _Cutter, listener: AnswerListener) -> bool:
        while chunk := await read(self._out):
            for is_line, data in cutter.feed(chunk):
                if is_line:
                    return True
                await listener.on_data("stdout", data)
        return False

    async def _hear_words(
        self, cutter: _Cutter, listener: AnswerListener, stream: Stream
    ) -> Ending | None:
        last: ProcessTree | Ending | None = None
        report = bytearray()
        while chunk := await read(self._err):
            for is_line, data in cutter.feed(chunk):
                if is_line:
                    line = parse_line(data)
                    if line is None and isinstance(last, Ending):
                        return dataclasses.replace(last, report=bytes(report))
                    last = line
                    self.on_up()
                    if isinstance(line, ProcessTree):
                        listener.on_started(line)
                elif isinstance(last, Ending):
                    report += data[: _LONGEST_REPORT - len(report)]
                elif last is not None:
                    await listener.on_data(stream, data)
                else:
                    self._errors += data[: _MOST_WORDS - len(self._errors)]
        return None

    async def write(self, data: bytes) -> None:
        """Send input as fast as it is read. Input after the command's end is dropped."""
        loop = asyncio.get_running_loop()
        view = memoryview(data)
        with contextlib.suppress(ConnectionError):
            while view:
                try:
                    view = view[os.write(self._out, view[:_CHUNK]) :]
                except BlockingIOError:
                    await _until_ready(loop.add_writer, loop.remove_writer, self._out)

    async def close_input(self) -> None:
        """End its input."""
        self.is_closed = True
        if self._is_terminal:
            await self.write(_END_OF_INPUT)
        else:
            with contextlib.suppress(OSError):
                self._stream.socket.shutdown(socket.SHUT_WR)

    async def next_chunk(self) -> bytes:
        """Return output outside of any request; empty at the end."""
        return await read(self._out)

    def is_quiet(self) -> bool:
        """Is it alive and silent? BreachError if it sends something without a request."""
        for fd in (self._out, self._err):
            try:
                # Before the first request this is the error output of a failed start.
                if os.read(fd, 1) and self.is_used:
                    raise BreachError("the sandbox sent data without a request")
                return False
            except BlockingIOError:
                continue
        return True

    async def end(self, grace_s: float = 2.0) -> None:
        """End the shell; never raises."""
        await self._stream.end(grace_s)


async def read(fd: int) -> bytes:
    """Return the next bytes; empty at the end."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            await _until_ready(loop.add_reader, loop.remove_reader, fd)
        except OSError:  # A terminal whose other side is gone says EIO.
            return b""
        else:
            # A flood must not starve the rest of the event loop.
            await asyncio.sleep(0)
            return data


async def _until_ready(add: Callable[..., None], remove: Callable[[int], bool], fd: int) -> None:
    ready = asyncio.Event()
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)
