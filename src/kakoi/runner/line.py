"""Our end of a channel: one stream to a runner, many requests over it at once.

The other end is hostile: it may be a command that has taken the runner's place. What it sends is
bounded in size, number and order, and checked; a breach ends the channel and the sandbox with it.
Nothing from it is evaluated, imported or used as a path here.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from kakoi.errors import ExecutionError, SandboxError
from kakoi.process.stream import Launch, ProcessStream
from kakoi.runner import frames
from kakoi.runner.answers import Hello, parse_object
from kakoi.runner.delivery import GREETING, NO_PYTHON, NoPythonError, RunnerSettings, delivery

_GONE = "its runner is gone"
_LONGEST_GREETING = 200
_MAX_UNSENT = 4 * 1024 * 1024
# Credit is given back in steps: a frame for each byte that came would be more than the byte.
_CREDIT_STEP = frames.WINDOW // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait for a runner that may be dead, stopped or hostile.

    `hello_s`: for its greeting. `silence_s`: if it owes us an answer and says nothing for so long,
    it is asked if it is alive, and has as long again to say so. `grace_s`: how long after a
    command's time is up, or after a cancellation, the answer may take.
    """

    hello_s: float = 60.0
    silence_s: float = 15.0
    grace_s: float = 10.0


DEFAULT_PATIENCE = Patience()


@dataclass(eq=False)
class Exchange:
    """One request under way. Output goes to `on_data`; the channel never stores any."""

    number: int
    answer: asyncio.Future[dict[str, Any]]
    on_data: Callable[[int, bytes], None] | None
    # What the other end may still send us, what it is to be given back, what we may still send.
    allowed: int = frames.WINDOW
    taken: int = 0
    credit: int = frames.WINDOW
    credit_came: asyncio.Event = field(default_factory=asyncio.Event)


class Stream(asyncio.BufferedProtocol):
    """Frames over one stream. `exchange` is all that the rest of our end needs."""

    def __init__(self, settings: RunnerSettings | None, patience: Patience) -> None:
        self._settings = settings  # None: the runner is there already.
        self._silence_s = patience.silence_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = frames.Decoder()
        # To allocate this much anew for each few bytes would take longer than to read them.
        self._received = memoryview(bytearray(frames.MAX_DATA))
        self._exchanges: dict[int, Exchange] = {}
        self._last_number = 0
        self._last_heard = self._loop.time()
        self._asked_if_alive: float | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._watchdog: asyncio.TimerHandle | None = None
        self._first_bytes = b""
        self.hello: asyncio.Future[Hello] = self._loop.create_future()
        self.lost = ""

    # --- What asyncio calls ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - it was made for a socket
        self._transport = transport
        transport.set_write_buffer_limits(high=_MAX_UNSENT)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._received

    def buffer_updated(self, nbytes: int) -> None:
        data = bytes(self._received[:nbytes])
        self._last_heard = self._loop.time()
        if self._settings is not None and not (data := self._boot(data, self._settings)):
            return
        try:
            for kind, number, body in self._decoder.feed(data):
                self._take(kind, number, body)
        except frames.BadFrame as error:
            self.lose(f"its runner does not keep to the protocol: {error}")

    def _boot(self, data: bytes, settings: RunnerSettings) -> bytes:
        """Answer the greeting of a Python with the runner; returns what follows it."""
        self._first_bytes += data
        line, newline, rest = self._first_bytes.partition(b"\n")
        greeting = GREETING.fullmatch(line + newline)
        if greeting is not None:
            self._settings = None
            if self._transport is not None:
                magic = bytes.fromhex(greeting[1].decode())
                self._transport.write(delivery(settings, magic))
            return rest
        if newline or len(line) > _LONGEST_GREETING:
            self.lose("it does not greet as a runner does")
        return b""

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(_GONE)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # --- From the runner ---------------------------------------------------------------------

    def _take(self, kind: int, number: int, body: bytes) -> None:
        if kind == frames.HELLO:
            self._take_hello(number, body)
            return
        exchange = self._exchanges.get(number)
        if exchange is None or not self.hello.done():
            raise frames.BadFrame("a frame that nobody asked for")
        if kind in (frames.STDOUT, frames.STDERR):
            exchange.allowed -= len(body)
            if exchange.allowed < 0 or exchange.on_data is None or not body:
                raise frames.BadFrame("more output than allowed")
            exchange.on_data(kind, body)
        elif kind == frames.CREDIT:
            exchange.credit += frames.number_of(body)
            if exchange.credit > frames.WINDOW:
                raise frames.BadFrame("more credit than was used")
            exchange.credit_came.set()
        elif kind == frames.ANSWER:
            answer = parse_object(body)
            del self._exchanges[number]
            if not exchange.answer.done():
                exchange.answer.set_result(answer)
            exchange.credit_came.set()
        else:
            raise frames.BadFrame(f"kind {kind} from a runner")

    def _take_hello(self, number: int, body: bytes) -> None:
        if self.hello.done() or number != 0:
            raise frames.BadFrame("a second greeting")
        self.hello.set_result(Hello.parse(parse_object(body)))

    def lose(self, why: str) -> None:
        """The other end is of no use any more: everybody who waits for it is told."""
        if self.lost:
            return
        self.lost = why
        error: SandboxError = SandboxError(f"the sandbox was lost: {why}")
        if not self.hello.done():
            if self._first_bytes.startswith(NO_PYTHON):
                error = NoPythonError("there is no python3 >= 3.8 in the sandbox")
            self.hello.set_exception(error)
            self.hello.exception()  # Seen, even if nobody waits for it.
        exchanges, self._exchanges = self._exchanges, {}
        for exchange in exchanges.values():
            _fail(exchange, error)
        self._writable.set()
        if self._watchdog is not None:
            self._watchdog.cancel()
        if self._transport is not None:
            self._transport.abort()

    # --- To the runner -----------------------------------------------------------------------

    def open(self, on_data: Callable[[int, bytes], None] | None = None) -> Exchange:
        """A number for a new request; `order` sends it."""
        if len(self._exchanges) >= frames.MAX_REQUESTS - 1:  # One is for us.
            raise SandboxError(
                f"more than {frames.MAX_REQUESTS} requests at once in one sandbox",
                hint="wait for some of them to end",
            )
        exchange = self._new_exchange(on_data)
        if self.lost:
            del self._exchanges[exchange.number]
            _fail(exchange, SandboxError(f"the sandbox was lost: {self.lost}"))
        elif self._watchdog is None:
            self._watch()
        return exchange

    def _new_exchange(self, on_data: Callable[[int, bytes], None] | None) -> Exchange:
        self._last_number = self._last_number % 0xFFFFFFFF + 1
        exchange = Exchange(self._last_number, self._loop.create_future(), on_data)
        self._exchanges[exchange.number] = exchange
        return exchange

    async def order(self, exchange: Exchange, order: dict[str, Any]) -> None:
        """Send the request; waits while the other end does not read."""
        body = json.dumps(order).encode()
        try:
            if len(body) > frames.MAX_JSON:
                raise ExecutionError(
                    "the command and its environment are too long to be handed over",
                    hint="put the data into a file, or on stdin",
                )
            while not self._writable.is_set():
                await self._writable.wait()
        except BaseException:
            self._exchanges.pop(exchange.number, None)
            exchange.answer.cancel()
            raise
        self.write(frames.REQUEST, exchange.number, body)

    def write(self, kind: int, number: int, body: bytes = b"") -> None:
        if self._transport is not None and not self.lost:
            self._transport.write(frames.frame(kind, number, body))

    def allow(self, exchange: Exchange, size: int) -> None:
        """`size` bytes of output have been taken: the other end may send as many again."""
        exchange.taken += size
        if exchange.taken >= _CREDIT_STEP and exchange.number in self._exchanges:
            exchange.allowed += exchange.taken
            self.write(frames.CREDIT, exchange.number, frames.NUMBER.pack(exchange.taken))
            exchange.taken = 0

    async def feed(self, exchange: Exchange, data: bytes) -> None:
        """Send input as fast as it is taken. What nobody takes any more is dropped."""
        view = memoryview(data)
        while view and not exchange.answer.done():
            if not self._writable.is_set():
                await self._writable.wait()
                continue
            if exchange.credit == 0:
                exchange.credit_came.clear()
                await exchange.credit_came.wait()
                continue
            size = min(len(view), exchange.credit, frames.MAX_DATA)
            exchange.credit -= size
            self.write(frames.INPUT, exchange.number, bytes(view[:size]))
            view = view[size:]

    # --- Is it alive? ------------------------------------------------------------------------

    def _watch(self) -> None:
        self._watchdog = self._loop.call_later(self._silence_s, self._check)

    def _check(self) -> None:
        self._watchdog = None
        if not self._exchanges or self.lost:
            self._asked_if_alive = None
            return
        asked = self._asked_if_alive
        if asked is not None and self._last_heard < asked:
            silent_s = self._loop.time() - self._last_heard
            self.lose(f"its runner has not answered for {silent_s:.0f} s")
            return
        self._asked_if_alive = None
        if self._loop.time() - self._last_heard >= self._silence_s:
            self._asked_if_alive = self._loop.time()
            self.write(frames.REQUEST, self._new_exchange(None).number, b'{"op": "ping"}')
        self._watch()


def _fail(exchange: Exchange, error: SandboxError) -> None:
    if not exchange.answer.done():
        exchange.answer.set_exception(error)
        exchange.answer.exception()  # Seen, even if nobody waits for it.
    exchange.credit_came.set()


class Carrier(Protocol):
    """What carries a stream: a process, or whatever has led to another way."""

    @property
    def stderr(self) -> str: ...
    @property
    def pid(self) -> int: ...
    async def end(self, grace_s: float = ...) -> None: ...


class Line:
    """A stream, what carries it, and the end of both."""

    def __init__(self, stream: Stream, process: Carrier) -> None:
        self.stream = stream
        self.process = process

    async def close(self, grace_s: float = 2.0) -> None:
        # The stream first: it must not watch a socket that is closed, and soon somebody else's.
        self.stream.lose("it was closed")
        await self.process.end(grace_s)


async def open_direct(
    connection: socket.socket, carrier: Carrier, patience: Patience = DEFAULT_PATIENCE
) -> Line:
    """A line over a socket that has a runner at its other end; SandboxError if it is silent."""
    stream = Stream(None, patience)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: stream, sock=connection)
    try:
        async with asyncio.timeout(patience.hello_s):
            await asyncio.shield(stream.hello)
    except BaseException as error:
        stream.lose("it did not greet")
        if isinstance(error, TimeoutError):
            raise SandboxError("the runner did not greet on another way to it") from error
        raise
    return Line(stream, carrier)


async def open_line(
    launch: Launch,
    settings: RunnerSettings,
    start: Callable[[Launch], ProcessStream] = ProcessStream,
    patience: Patience = DEFAULT_PATIENCE,
) -> Line:
    """Start a runner by `launch` and wait for its greeting; SandboxError says why it did not come.

    NoPythonError: the place is all right, but another way to run commands in it is needed.
    """
    stream = Stream(settings, patience)
    process = start(launch)
    line = Line(stream, process)
    loop = asyncio.get_running_loop()
    try:
        await loop.create_connection(lambda: stream, sock=process.socket)
        async with asyncio.timeout(patience.hello_s):
            await asyncio.shield(stream.hello)
    except (SandboxError, TimeoutError) as error:
        stream.lose(f"it did not greet within {patience.hello_s:.0f} s")
        try:
            if isinstance(error, SandboxError):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):  # Its last words may be on their way.
                        await process.wait()
        finally:
            await line.close(grace_s=0)
        if isinstance(error, NoPythonError):
            raise
        said = line.process.stderr.strip()
        # One that went by itself said why; one that was given up says what it says because of that.
        why = said if said and stream.lost == _GONE else stream.lost
        raise SandboxError(
            f"the sandbox could not be started: {why}",
            details={"program": launch.argv[0], "stderr": said, "lost": stream.lost},
        ) from error
    except BaseException:
        await line.close(grace_s=0)
        raise
    return line
