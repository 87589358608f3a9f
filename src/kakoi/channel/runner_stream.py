"""The client end of the stream to a runner: many concurrent requests over one connection.

The other end is untrusted: a command may have taken the runner's place. What it sends is limited in
size, number and order, and checked; a violation ends the channel and the sandbox with it. Nothing
from it is evaluated, imported or used as a path on this side.
"""

import asyncio
import contextlib
import json
import math
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from dataclasses import field, replace
from typing import Any, Protocol

from kakoi._support.late import dataclass
from kakoi.channel.delivery import GREETING, NO_PYTHON, NoPythonError, RunnerSettings, delivery
from kakoi.channel.runner_answers import Hello, parse_failure, parse_object
from kakoi.errors import ExecutionError, SandboxError
from kakoi.process.stream import Launch, ProcessStream
from kakoi.results import ExecutionResult, Reason
from kakoi.runner import frames

_GONE = "its runner is gone"
_LONGEST_GREETING = 200
_MAX_UNSENT = 4 * 1024 * 1024
# Credit is returned in steps: a frame per byte received would be bigger than the byte.
_CREDIT_STEP = frames.WINDOW // 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RunnerTimeouts:
    """How long to wait for a runner that may be dead, stopped or hostile.

    `hello_s`: for its greeting. `silence_s`: a runner that owes an answer and sends nothing for
    this long is pinged, and has as long again to answer. `grace_s`: how long the answer can take
    after a command's timeout or after a cancellation.
    """

    hello_s: float = 60.0
    silence_s: float = 15.0
    grace_s: float = 10.0


DEFAULT_TIMEOUTS = RunnerTimeouts()


@dataclass(eq=False)
class Exchange:
    """A request in progress. Output goes to `on_data`; the channel stores none."""

    number: int
    answer: asyncio.Future[dict[str, Any]]
    on_data: Callable[[int, bytes], None] | None
    # Bytes the other end can still send, bytes to return as credit, bytes we can still send.
    allowed: int = frames.WINDOW
    taken: int = 0
    credit: int = frames.WINDOW
    credit_came: asyncio.Event = field(default_factory=asyncio.Event)
    _waiters: list[asyncio.Future[None]] = field(default_factory=list)

    async def answered(self) -> dict[str, Any]:
        """Return the answer when it is there. Cancelling this wait affects nothing else."""
        # Not `asyncio.shield`: each answer would take one more turn of the loop.
        if not self.answer.done():
            waiter: asyncio.Future[None] = self.answer.get_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        return self.answer.result()

    def wake(self) -> None:
        """Nothing more will come: wake those who wait for the answer or for credit."""
        self.credit_came.set()
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class FrameStream(asyncio.BufferedProtocol):
    """Sends and receives frames over one stream; see `Exchange`."""

    def __init__(self, settings: RunnerSettings | None, timeouts: RunnerTimeouts) -> None:
        self._settings = settings  # None: the runner is already running.
        self._silence_s = timeouts.silence_s
        self._expires = math.inf
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._decoder = frames.Decoder()
        # Allocated once: allocating it for each read would take longer than the read.
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
        # A few frames on the way, so that both ends can work at the same time.
        stream = transport.get_extra_info("socket")
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, frames.WINDOW)

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
            self.lose(f"its runner violates the protocol: {error}")

    def _boot(self, data: bytes, settings: RunnerSettings) -> bytes:
        """Answer the greeting of a Python by sending the runner; returns what follows it."""
        self._first_bytes += data
        line, newline, rest = self._first_bytes.partition(b"\n")
        greeting = GREETING.fullmatch(line + newline)
        if greeting is not None:
            self._settings = None
            if settings.lifetime_s is not None:
                self._expires = self._loop.time() + settings.lifetime_s
            if self._transport is not None:
                magic = bytes.fromhex(greeting[1].decode())
                self._transport.write(delivery(settings, magic))
            return rest
        if newline or len(line) > _LONGEST_GREETING:
            self.lose("it does not greet as a runner does")
        return b""

    def connection_lost(self, exc: Exception | None) -> None:
        self.lose(_GONE if self._loop.time() < self._expires else "its lifetime has ended")

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
            exchange.credit += frames.parse_credit(body)
            if exchange.credit > frames.WINDOW:
                raise frames.BadFrame("more credit than was used")
            exchange.credit_came.set()
        elif kind == frames.ANSWER:
            answer = parse_object(body)
            del self._exchanges[number]
            if not exchange.answer.done():
                exchange.answer.set_result(answer)
            exchange.wake()
        else:
            raise frames.BadFrame(f"kind {kind} from a runner")

    def _take_hello(self, number: int, body: bytes) -> None:
        if self.hello.done() or number != 0:
            raise frames.BadFrame("a second greeting")
        self.hello.set_result(Hello.parse(parse_object(body)))

    def lose(self, why: str) -> None:
        """Give up the other end; every pending request fails with `why`."""
        if self.lost:
            return
        self.lost = why
        error: SandboxError = SandboxError(f"the sandbox was lost: {why}")
        if not self.hello.done():
            if self._first_bytes.startswith(NO_PYTHON):
                error = NoPythonError("there is no python3 >= 3.8 in the sandbox")
            self.hello.set_exception(error)
            self.hello.exception()  # Marked as retrieved, even if nobody awaits it.
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
        """Register a new request; `order` sends it."""
        if len(self._exchanges) >= frames.MAX_REQUESTS - 1:  # One is reserved for our ping.
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
                    "the command and its environment are too long",
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
        """`size` bytes of output were consumed: let the other end send as many again."""
        exchange.taken += size
        if exchange.taken >= _CREDIT_STEP and exchange.number in self._exchanges:
            exchange.allowed += exchange.taken
            self.write(frames.CREDIT, exchange.number, frames.NUMBER.pack(exchange.taken))
            exchange.taken = 0

    async def feed(self, exchange: Exchange, data: bytes) -> None:
        """Send input as fast as it is read. Input after the command's end is dropped."""
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
            self.lose(f"its runner has not responded for {silent_s:.0f} s")
            return
        self._asked_if_alive = None
        if self._loop.time() - self._last_heard >= self._silence_s:
            self._asked_if_alive = self._loop.time()
            self.write(frames.REQUEST, self._new_exchange(None).number, b'{"op": "ping"}')
        self._watch()


def _fail(exchange: Exchange, error: SandboxError) -> None:
    if not exchange.answer.done():
        exchange.answer.set_exception(error)
        exchange.answer.exception()  # Marked as retrieved, even if nobody awaits it.
    exchange.wake()


class Carrier(Protocol):
    """The process that carries a stream, or a stand-in for it."""

    @property
    def stderr(self) -> str: ...
    @property
    def pid(self) -> int: ...
    async def end(self, grace_s: float = ...) -> None: ...


class RunnerStream:
    """The frames of a runner and the process that carries them; `close` ends both."""

    def __init__(self, frame_stream: FrameStream, process: Carrier) -> None:
        self.frames = frame_stream
        self.process = process

    async def close(self, grace_s: float = 2.0) -> None:
        # The frames first: they must not watch a closed socket whose number may be reused.
        self.frames.lose("it was closed")
        await self.process.end(grace_s)


async def open_direct_stream(
    connection: socket.socket, carrier: Carrier, timeouts: RunnerTimeouts = DEFAULT_TIMEOUTS
) -> RunnerStream:
    """Open a stream over a socket that leads to a runner; SandboxError if it does not greet."""
    stream = FrameStream(None, timeouts)
    loop = asyncio.get_running_loop()
    await loop.create_connection(lambda: stream, sock=connection)
    try:
        async with asyncio.timeout(timeouts.hello_s):
            await asyncio.shield(stream.hello)
    except BaseException as error:
        stream.lose("it did not greet")
        if isinstance(error, TimeoutError):
            raise SandboxError("the runner did not greet on its direct socket") from error
        raise
    return RunnerStream(stream, carrier)


async def open_runner_stream(
    launch: Launch,
    settings: RunnerSettings,
    start: Callable[[Launch], ProcessStream] = ProcessStream,
    timeouts: RunnerTimeouts = DEFAULT_TIMEOUTS,
) -> RunnerStream:
    """Start a runner by `launch` and wait for its greeting; SandboxError says why it failed.

    NoPythonError: the sandbox works, but has no Python, so it needs a PosixChannel.
    """
    stream = FrameStream(settings, timeouts)
    process = start(launch)
    runner_stream = RunnerStream(stream, process)
    loop = asyncio.get_running_loop()
    try:
        await loop.create_connection(lambda: stream, sock=process.socket)
        async with asyncio.timeout(timeouts.hello_s):
            await asyncio.shield(stream.hello)
    except (SandboxError, TimeoutError) as error:
        stream.lose(f"it did not greet within {timeouts.hello_s:.0f} s")
        try:
            if isinstance(error, SandboxError):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(
                        1.0
                    ):  # Its last stderr output may still be in transit.
                        await process.wait()
        finally:
            await runner_stream.close(grace_s=0)
        if isinstance(error, NoPythonError):
            raise
        stderr = process.stderr.strip()
        # stderr explains only a runner that exited by itself, not one that we gave up.
        why = stderr if stderr and stream.lost == _GONE else stream.lost
        raise SandboxError(
            f"the sandbox could not be started: {why}",
            details={"program": launch.argv[0], "stderr": stderr, "lost": stream.lost},
        ) from error
    except BaseException:
        await runner_stream.close(grace_s=0)
        raise
    return runner_stream


class Loss:
    """Why a sandbox was lost, the same for everything that was lost with it.

    `ran_out`: tells whether the kernel killed something in it for lack of memory; None if that
    cannot be known. It is called once, after the loss. `note`: text to add to the error.
    """

    def __init__(self) -> None:
        self.ran_out: Callable[[], Awaitable[bool]] | None = None
        self.note = ""
        self._looking: asyncio.Task[Reason] | None = None

    async def explained(self, lost: ExecutionResult) -> ExecutionResult:
        """Return the result of a lost command, with the reason."""
        if self.note:
            lost = replace(lost, error=f"{lost.error}; {self.note}")
        if await self._reason() is Reason.SANDBOX_LOST:
            return lost
        return replace(lost, reason=Reason.OUT_OF_MEMORY, exit_code=137)

    async def explained_error(self, lost: SandboxError) -> SandboxError:
        """Return the error for any other lost request. `details` has the reason."""
        if await self._reason() is Reason.SANDBOX_LOST:
            return lost
        return SandboxError(
            f"{lost.message}; it ran out of memory",
            details={**lost.details, "reason": Reason.OUT_OF_MEMORY},
            hint="give the sandbox more memory, or run fewer commands at a time",
        )

    async def _reason(self) -> Reason:
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> Reason:
        ran_out = self.ran_out is not None and await self.ran_out()
        return Reason.OUT_OF_MEMORY if ran_out else Reason.SANDBOX_LOST


class RunnerRequests:
    """Sends orders (runner/orders.py) and returns their answers."""

    def __init__(self, frame_stream: FrameStream) -> None:
        self.frames = frame_stream
        self.loss = Loss()

    async def ask(
        self, order: dict[str, Any], on_data: Callable[[int, bytes], None] | None = None
    ) -> dict[str, Any]:
        """Return the untrusted answer to an order."""
        exchange = self.frames.open(on_data)
        await self.frames.order(exchange, order)
        return await self.answer(exchange, order)

    async def answer(self, exchange: Exchange, order: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to an order that was sent; OSError if it failed."""
        try:
            answer = await exchange.answered()
        except asyncio.CancelledError:
            self.call_off(exchange)
            raise
        except SandboxError as error:
            raise await self.loss.explained_error(error) from None
        if "errno" in answer:
            with self.trusting_nothing():
                failure = parse_failure(answer, order.get("path"), order.get("id"))
            raise failure
        return answer

    def call_off(self, exchange: Exchange) -> None:
        """Cancel a request, unless it was answered. Output that is still in transit is dropped."""
        exchange.on_data = lambda _kind, _body: None
        if not exchange.answer.done():
            self.frames.write(frames.CANCEL, exchange.number)

    async def data(self, order: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """Yield what an order sends before its answer, which is then checked for an error.

        A slow reader slows the runner down. Leaving early cancels the request.
        """
        parts: asyncio.Queue[bytes] = asyncio.Queue()  # Bounded by the credit of the exchange.
        exchange = self.frames.open(lambda _kind, body: parts.put_nowait(body))
        exchange.answer.add_done_callback(lambda _answer: parts.put_nowait(b""))
        await self.frames.order(exchange, order)
        try:
            while part := await parts.get():
                yield part
                self.frames.allow(exchange, len(part))
                await asyncio.sleep(0)  # A window full of parts must not starve everybody else.
            await self.answer(exchange, order)
        finally:
            self.call_off(exchange)

    @contextlib.contextmanager
    def trusting_nothing(self) -> Iterator[None]:
        """Lose the runner if what it sent makes no sense."""
        try:
            yield
        except frames.BadFrame as error:
            self.frames.lose(f"its runner violates the protocol: {error}")
            raise SandboxError(f"the sandbox was lost: {self.frames.lost}") from error
