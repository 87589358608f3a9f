"""One shell of ours inside a sandbox without Python: started once, asked again and again.

posix.sh is its text and says what goes over the line. The other end is hostile: what comes from it
is output, unless it begins with a nonce that only this one request was given.
"""

import asyncio
import contextlib
import dataclasses
import os
import re
import secrets
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from kakoi.errors import SandboxError
from kakoi.process.stream import Launch, ProcessStream
from kakoi.runner.commands import Stream

_CHUNK = 256 * 1024
_LONGEST_LINE = 200
_LONGEST_PATH = 4096
_MOST_WORDS = 2000
_BOOT = 'eval "$KAKOI_SH"'
# The second half of the pipeline ends the shell that waits for the first, which is nobody's from
# then on. A plain `&` would have it ignore SIGINT for good.
_DETACH = '"$@" </dev/null >/dev/null 2>&1 | kill -9 $$'
_STARTED = re.compile(rb" started ([0-9]{1,10}) ([0-9]{1,10})")
_END = re.compile(rb" end ([a-z_-]{1,20}) ([0-9]{1,3})" + rb" ([0-9]{1,15})" * 3)
_PLAIN = re.compile(rb"[ -\[\]-~]*")


class Launcher(Protocol):
    """How to start `argv` inside the sandbox, with its standard streams connected."""

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] = ..., terminal: bool = ...
    ) -> Launch: ...


class BreachError(SandboxError):
    """The other end does not keep to the protocol."""


@dataclass(frozen=True, slots=True)
class Place:
    """What a sandbox has: a folder for us, an init that keeps processes, a shell.

    `init` is empty where there is none; `flag` makes it a child subreaper; `loud` makes it say how
    its child ended. `channel` names the shells that belong together.
    """

    launch: Launcher
    channel: str
    base: str = ""
    init: str = ""
    flag: str = ""
    loud: str = ""
    shell: str = "/bin/sh"

    def shell_launch(self, spec: str = "", *, kept: bool = True, terminal: bool = False) -> Launch:
        """What starts a shell of ours; `kept`: below an init of its own."""
        argv = self._argv(f"kakoi-{self.channel}", spec, kept=kept)
        return self.launch(argv, env={"KAKOI_SH": script()}, terminal=terminal)

    def job_launch(self, spec: str) -> Launch:
        """What starts a shell of ours that stays when what started it has ended."""
        argv = self._argv("kakoi-job", spec, kept=True)
        return self.launch(["sh", "-c", _DETACH, "kakoi-job", *argv], env={"KAKOI_SH": script()})

    def _argv(self, name: str, spec: str, *, kept: bool) -> list[str]:
        above = [self.init, *([self.flag] if self.flag else []), "--"]
        words = ["sh", "-c", _BOOT, name, spec, self.base, self.init, self.loud, self.shell]
        return [*above, *words] if kept and self.init else words


@dataclass(frozen=True, slots=True)
class Ending:
    """The last words of an answer; posix.sh says what they mean."""

    kind: str
    status: int
    ended: int = 0
    survivors: int = 0
    ticks: int = 0
    path: bytes = b""


class Listener(Protocol):
    """Who waits for an answer."""

    def on_started(self, root: int, main: int) -> None: ...
    async def on_data(self, stream: Stream, data: bytes) -> None:
        """Take output; as long as this waits, no more of that stream is read."""
        ...


@cache
def script() -> str:
    """The text of our shell, without its comments."""
    texts = [Path(__file__).with_name(name) for name in ("posix.sh", "posix_orders.sh")]
    lines = [line.strip() for text in texts for line in text.read_text("ascii").splitlines()]
    return "\n".join(line for line in lines if line and not line.startswith("#"))


def escaped(text: str | bytes) -> bytes:
    """One line from which `printf %b` makes the same bytes again."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if not _PLAIN.fullmatch(data):
        data = re.sub(rb"[^ -\[\]-~]", lambda found: b"\\0%03o" % found[0][0], data)
    return data + b"\n"


def request(verb: str, *words: object, lines: Sequence[str | bytes] = ()) -> bytes:
    """A request: words that are safe as they are, and lines that may hold anything."""
    head = f"{verb}\n" + (" ".join(map(str, words)) + "\n" if words else "")
    return head.encode("ascii") + b"".join(map(escaped, lines))


class _Cutter:
    """Takes our own lines out of a stream that is otherwise the command's."""

    def __init__(self, nonce: bytes) -> None:
        self._nonce = nonce
        self.held = b""

    def feed(self, chunk: bytes) -> Iterator[tuple[bool, bytes]]:
        """Output (False) and lines of ours without the nonce (True), in their order."""
        self.held += chunk
        while (at := self.held.find(self._nonce)) >= 0:
            if at:
                yield False, self.held[:at]
                self.held = self.held[at:]
            end = self.held.find(b"\n")
            if end < 0 and len(self.held) < _LONGEST_LINE:
                return
            if not 0 <= end < _LONGEST_LINE:
                raise BreachError("a line of the sandbox has no end")
            line, self.held = self.held[len(self._nonce) : end], self.held[end + 1 :]
            yield True, line.removesuffix(b"\r")
        # A part of a nonce may be at the end; the rest of it comes with the next chunk.
        longest = min(len(self._nonce) - 1, len(self.held))
        keep = next((n for n in range(longest, 0, -1) if self.held.endswith(self._nonce[:n])), 0)
        output, self.held = self.held[: len(self.held) - keep], self.held[len(self.held) - keep :]
        if output:
            yield False, output


class Exec:
    """A shell of ours; requests go to it one after the other. `end` must be called.

    `is_used`: something was asked already. `on_up` is called when it begins to answer. `said`: the
    words of whoever should have started it.
    """

    def __init__(self, launch: Launch, *, terminal: bool = False) -> None:
        # A terminal on our side has no size: otherwise the program in between would pass that on,
        # sooner or later, and undo what was set inside.
        launch = dataclasses.replace(launch, separate_stderr=True, terminal=terminal)
        self._stream = ProcessStream(launch)
        self._key = secrets.token_hex(16)
        self.is_used = False
        self.on_up: Callable[[], None] = lambda: None
        self._said = bytearray()
        fd = self._stream.terminal_fd
        self._is_terminal = fd is not None
        self._out = self._stream.socket.fileno() if fd is None else fd
        self._err = self._out if fd is not None else self._stream.stderr_fd or -1

    @property
    def said(self) -> str:
        return self._said.decode("utf-8", "replace").strip()

    def full_request(self, nonce: str, body: bytes) -> bytes:
        """What has to arrive there: the key before the first request, and on each."""
        key = "" if self.is_used else f"{self._key}\n"
        self.is_used = True
        return f"{key}{self._key} {nonce}\n".encode() + body

    async def ask(self, body: bytes, listener: Listener) -> Ending | None:
        """Send a request and take in its answer; None if the stream ended before it did."""
        nonce = secrets.token_hex(16)
        writing = asyncio.ensure_future(self.write(self.full_request(nonce, body)))
        try:
            return await self.hear(nonce, listener)
        finally:
            await cancelled(writing)

    async def hear(self, nonce: str, listener: Listener) -> Ending | None:
        """Take in the answer to a request that gets there by itself."""
        if self._is_terminal:
            return await self._hear_words(_Cutter(nonce.encode()), listener, "stdout")
        output = asyncio.ensure_future(self._hear_output(_Cutter(nonce.encode()), listener))
        try:
            ending = await self._hear_words(_Cutter(nonce.encode()), listener, "stderr")
            return ending if await output else None
        finally:
            await cancelled(output)

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
        has_started = False
        ending: Ending | None = None
        path = bytearray()
        while chunk := await read(self._err):
            for is_line, data in cutter.feed(chunk):
                if is_line and (found := _STARTED.fullmatch(data)):
                    has_started = True
                    self.on_up()
                    listener.on_started(int(found[1]), int(found[2]))
                elif is_line and (found := _END.fullmatch(data)):
                    numbers = [int(word) for word in found.groups()[1:]]
                    ending = Ending(found[1].decode(), *numbers)
                elif is_line and ending is not None and not data:
                    return dataclasses.replace(ending, path=bytes(path))
                elif is_line:
                    raise BreachError("the sandbox does not keep to the protocol")
                elif ending is not None:
                    path += data[: _LONGEST_PATH + 1 - len(path)]
                elif has_started:
                    await listener.on_data(stream, data)
                else:
                    self._said += data[: _MOST_WORDS - len(self._said)]
        return None

    async def write(self, data: bytes) -> None:
        """Send input as fast as it is taken. What nobody takes any more is dropped."""
        loop = asyncio.get_running_loop()
        view = memoryview(data)
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            while view:
                try:
                    view = view[os.write(self._out, view[:_CHUNK]) :]
                except BlockingIOError:
                    await _until_ready(loop.add_writer, loop.remove_writer, self._out)

    async def close_input(self) -> None:
        """Its input ends here; on a terminal that is what people type for it."""
        if self._is_terminal:
            await self.write(b"\x04")
        else:
            with contextlib.suppress(OSError):
                self._stream.socket.shutdown(socket.SHUT_WR)

    async def next_chunk(self) -> bytes:
        """What comes on its output outside of any request; nothing at the end."""
        return await read(self._out)

    def is_quiet(self) -> bool:
        """Is it there, with nothing to say? Nobody has asked it anything."""
        for fd in (self._out, self._err):
            try:
                if os.read(fd, 1):
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
    ready = asyncio.get_running_loop().create_future()
    add(fd, lambda: ready.done() or ready.set_result(None))
    try:
        await ready
    finally:
        remove(fd)


async def cancelled(task: "asyncio.Future[object]") -> None:
    """Cancel it, and wait until it is over, however it ends."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.exception()
