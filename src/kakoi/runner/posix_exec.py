"""One shell of ours inside a sandbox without Python: started once, asked again and again.

posix.sh is its text and says what goes over the line. What comes from there is output, unless it
begins with a nonce that only this one request was given.
"""

import asyncio
import contextlib
import dataclasses
import os
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from kakoi.errors import ExecutionError, SandboxError
from kakoi.process.stream import Launch, ProcessStream
from kakoi.runner.commands import Stream
from kakoi.runner.posix_words import BreachError, Ending, Kept, parse_line
from kakoi.waiting import cancel

_CHUNK = 256 * 1024
_LONGEST_LINE = 200
_LONGEST_REPORT = 40 * 1024
_MOST_WORDS = 2000
_TEXTS = ("posix.sh", "posix_jobs.sh", "posix_watch.sh", "posix_orders.sh")
# In the environment and not among the arguments: `pkill -f` must not find there what it looks for.
_BOOT = 'eval "$KAKOI_SH"'
# The second half of the pipeline ends the shell that waits for the first, which is nobody's from
# then on. A plain `&` would have it ignore SIGINT for good.
_DETACH = '"$@" </dev/null >/dev/null 2>&1 | kill -9 $$'
_END_OF_INPUT = b"\x04"  # A terminal has no end; this is what people type.


class Launcher(Protocol):
    """How to start `argv` inside the sandbox, with its standard streams connected."""

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] = ..., terminal: bool = ...
    ) -> Launch: ...


@dataclass(frozen=True, slots=True)
class Place:
    """What a sandbox has: a folder for us, an init that keeps processes, a shell for commands.

    `init` is empty where there is none; `flag` makes it a child subreaper; `loud` makes it say how
    its child ended. `channel` names the shells that belong together.
    `limits`: shell text that lowers the limits of a process, before it becomes a command.
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
        """What starts a shell of ours; `kept`: below an init of its own."""
        argv = self._argv(f"kakoi-{self.channel}", spec, kept=kept)
        return self.launch(argv, env={"KAKOI_SH": script()}, terminal=terminal)

    def job_launch(self, spec: str) -> Launch:
        """What starts a shell of ours that stays when what started it has ended."""
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
    """The text of our shell, without its comments."""
    texts = [Path(__file__).with_name(name).read_text("ascii") for name in _TEXTS]
    lines = [line.strip() for text in texts for line in text.splitlines()]
    return "\n".join(line for line in lines if line and not line.startswith("#"))


class Listener(Protocol):
    """Who waits for an answer."""

    def on_started(self, kept: Kept) -> None: ...
    async def on_data(self, stream: Stream, data: bytes) -> None:
        """Take output; as long as this waits, no more of that stream is read."""
        ...


class _Cutter:
    """Takes our own lines out of a stream that is otherwise the command's."""

    def __init__(self, nonce: str) -> None:
        self._nonce = nonce.encode()
        self._held = b""

    def feed(self, chunk: bytes) -> Iterator[tuple[bool, bytes]]:
        """Output (False) and lines of ours without the nonce (True), in their order."""
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


class Exec:
    """A shell of ours; requests go to it one after the other. `end` must be called.

    `is_used`: something was asked already. `on_up` is called when it begins to answer.
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
        self.on_up: Callable[[], object] = lambda: None
        self._said = bytearray()
        fd, stderr = self._stream.terminal_fd, self._stream.stderr_fd
        assert stderr is not None  # noqa: S101 - it was asked for
        self._is_terminal = fd is not None
        self._out = self._stream.socket.fileno() if fd is None else fd
        self._err = stderr if fd is None else fd

    @property
    def said(self) -> str:
        """The words of whoever should have started it."""
        return self._said.decode("utf-8", "replace").strip()

    def full_request(self, nonce: str, body: bytes) -> bytes:
        """What has to arrive there: the key before the first request, and on each."""
        key = "" if self.is_used else f"{self._key}\n"
        self.is_used = True
        return f"{key}{self._key} {nonce}\n".encode() + body

    async def ask(self, body: bytes, listener: Listener, payload: bytes = b"") -> Ending | None:
        """Send a request and take in its answer; None if the stream ended before it did."""
        nonce = secrets.token_hex(16)
        writing = asyncio.ensure_future(self._send(self.full_request(nonce, body), payload))
        try:
            return await self.hear(nonce, listener)
        finally:
            await cancel(writing)

    async def _send(self, *parts: bytes) -> None:
        for part in parts:
            await self.write(part)

    async def hear(self, nonce: str, listener: Listener) -> Ending | None:
        """Take in the answer to a request that gets there by itself."""
        if self._is_terminal:
            return await self._hear_words(_Cutter(nonce), listener, "stdout")
        output = asyncio.ensure_future(self._hear_output(_Cutter(nonce), listener))
        try:
            ending = await self._hear_words(_Cutter(nonce), listener, "stderr")
            return ending if await output else None
        finally:
            await cancel(output)

    async def _hear_output(self, cutter: _Cutter, listener: Listener) -> bool:
        while chunk := await read(self._out):
            for is_line, data in cutter.feed(chunk):
                if is_line:
                    return True
                await listener.on_data("stdout", data)
        return False

    async def _hear_words(
        self, cutter: _Cutter, listener: Listener, stream: Stream
    ) -> Ending | None:
        last: Kept | Ending | None = None
        report = bytearray()
        while chunk := await read(self._err):
            for is_line, data in cutter.feed(chunk):
                if is_line:
                    line = parse_line(data)
                    if line is None and isinstance(last, Ending):
                        return dataclasses.replace(last, report=bytes(report))
                    last = line
                    self.on_up()
                    if isinstance(line, Kept):
                        listener.on_started(line)
                elif isinstance(last, Ending):
                    report += data[: _LONGEST_REPORT - len(report)]
                elif last is not None:
                    await listener.on_data(stream, data)
                else:
                    self._said += data[: _MOST_WORDS - len(self._said)]
        return None

    async def write(self, data: bytes) -> None:
        """Send input as fast as it is taken. What nobody takes any more is dropped."""
        loop = asyncio.get_running_loop()
        view = memoryview(data)
        with contextlib.suppress(ConnectionError):
            while view:
                try:
                    view = view[os.write(self._out, view[:_CHUNK]) :]
                except BlockingIOError:
                    await _until_ready(loop.add_writer, loop.remove_writer, self._out)

    async def close_input(self) -> None:
        """Its input ends here."""
        if self._is_terminal:
            await self.write(_END_OF_INPUT)
        else:
            with contextlib.suppress(OSError):
                self._stream.socket.shutdown(socket.SHUT_WR)

    async def next_chunk(self) -> bytes:
        """What comes on its output outside of any request; nothing at the end."""
        return await read(self._out)

    def is_quiet(self) -> bool:
        """Is it there, and silent? BreachError if it speaks without having been asked."""
        for fd in (self._out, self._err):
            try:
                # Before the first request these are the words of whoever could not start it.
                if os.read(fd, 1) and self.is_used:
                    raise BreachError("the sandbox speaks without having been asked")
                return False
            except BlockingIOError:
                continue
        return True

    async def end(self, grace_s: float = 2.0) -> None:
        """Let it go; never raises."""
        await self._stream.end(grace_s)


async def read(fd: int) -> bytes:
    """The next bytes, or nothing at the end."""
    loop = asyncio.get_running_loop()
    while True:
        try:
            data = os.read(fd, _CHUNK)
        except BlockingIOError:
            await _until_ready(loop.add_reader, loop.remove_reader, fd)
        except OSError:  # A terminal whose other side is gone says EIO.
            return b""
        else:
            # A flood must not keep the loop from everybody else.
            await asyncio.sleep(0)
            return data


async def _until_ready(add: Callable[..., None], remove: Callable[[int], bool], fd: int) -> None:
    ready = asyncio.Event()
    add(fd, ready.set)
    try:
        await ready.wait()
    finally:
        remove(fd)
