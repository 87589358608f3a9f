"""RunnerChannel: commands, jobs and files of one sandbox, over the line to its runner."""

import asyncio
import base64
import contextlib
import errno
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.process.stream import Launch, ProcessStream
from kakoi.results import Capture, ExecutionResult
from kakoi.runner import frames
from kakoi.runner.answers import (
    Hello,
    check_id,
    lost_result,
    number,
    parse_failure,
    parse_file,
    parse_files,
    parse_jobs,
    parse_result,
)
from kakoi.runner.commands import (
    MAX_FILE_BYTES,
    MIB,
    Command,
    FileInfo,
    JobInfo,
    OutputPart,
    Stream,
    TerminalSize,
)
from kakoi.runner.delivery import RunnerSettings
from kakoi.runner.line import DEFAULT_PATIENCE, Carrier, Exchange, Line, Patience, open_line
from kakoi.runner.loss import Loss
from kakoi.runner.unread import Unread

_ALL = 2**62
_STREAMS: dict[int, Stream] = {frames.STDOUT: "stdout", frames.STDERR: "stderr"}


async def open_channel(
    launch: Launch,
    settings: RunnerSettings,
    start: Callable[[Launch], ProcessStream] = ProcessStream,
    patience: Patience = DEFAULT_PATIENCE,
) -> "RunnerChannel":
    """Start a runner by `launch` and open a channel to it; SandboxError says why it failed."""
    return RunnerChannel(await open_line(launch, settings, start, patience), patience.grace_s)


class RunnerChannel:
    """The way into a sandbox that has a runner; see `Channel`."""

    def __init__(self, line: Line, grace_s: float = DEFAULT_PATIENCE.grace_s) -> None:
        self._line = line
        # The runner keeps the time; if a command has not ended by then, it breaks its word.
        self.grace_s = grace_s
        self._closing: asyncio.Task[None] | None = None
        self.loss = Loss()

    @property
    def lost(self) -> bool:
        """Is the other end gone?"""
        return bool(self._line.stream.lost)

    @property
    def shell(self) -> str:
        """`bash` or `sh`; see `Channel.shell`."""
        return "bash" if self.hello.shell.endswith("/bash") else "sh"

    @property
    def hello(self) -> Hello:
        """Who the runner says it is."""
        return self._line.stream.hello.result()

    @property
    def carrier(self) -> Carrier:
        """What carries the stream."""
        return self._line.process

    async def run(self, command: Command) -> ExecutionResult:
        """Run to the end; see `Channel.run`."""
        async with _Running(self, self._line, command, live=False) as running:
            return await running.result()

    def open(self, command: Command) -> "_Running":
        """Run with live output and input; see `Channel.open`."""
        return _Running(self, self._line, command, live=True)

    async def start(self, command: Command) -> str:
        """Start a job; see `Channel.start`."""
        given = command.stdin or b""
        if len(given) > frames.WINDOW:
            raise ConfigurationError(
                f"stdin has {len(given)} bytes; a job can be given {frames.WINDOW} at its start",
                hint="write a file and let the job read that, or use write_stdin",
            )
        order = _order(command, send_limit=0) | {"background": True}
        # With the order, not after it: a job that is asked for twice must not read it twice.
        order |= {"input": base64.b64encode(given).decode(), "input_ends": not command.stdin_open}
        with self._trusting_nothing():
            check_id(await self.ask(order), command.id)
        return command.id

    async def list_jobs(self) -> list[JobInfo]:
        """Every job that is remembered, running or not."""
        with self._trusting_nothing():
            return parse_jobs(await self.ask({"op": "list"}))

    async def read_output(
        self, job: str, stream: Stream, *, offset: int = 0, limit: int = MIB, wait_s: float = 0
    ) -> OutputPart:
        """A part of a job's output; see `Channel.read_output`."""
        data = bytearray()
        order = {"op": "read", "id": job, "stream": int(stream == "stderr"), "offset": offset}
        order |= {"limit": min(limit, frames.WINDOW), "wait_s": wait_s}
        said = await self.ask(order, lambda _kind, body: data.extend(body))
        with self._trusting_nothing():
            if len(data) > limit:
                raise frames.BadFrame("more output than was asked for")
            lost = max(0, number(said, "total") - number(said, "stored"))
        return OutputPart(bytes(data), offset, offset + len(data), said.get("ended") is True, lost)

    async def write_stdin(self, job: str, data: bytes, *, close: bool = False) -> None:
        """Give a job input; BlockingIOError if it does not read what it has got already."""
        for at in range(0, max(1, len(data)), size := frames.MAX_DATA):
            part, is_last = data[at : at + size].decode("latin-1"), at + size >= len(data)
            await self.ask({"op": "write", "id": job, "data": part, "close": close and is_last})

    async def stop_job(self, job: str) -> ExecutionResult:
        """End a job and everything it started."""
        with self._trusting_nothing():
            return parse_result(await self.ask({"op": "stop", "id": job}), job)

    async def wait_job(self, job: str, *, wait_s: float | None = None) -> ExecutionResult | None:
        """A job's result, or None if it still runs after `wait_s`."""
        with self._trusting_nothing():
            answer = await self.ask({"op": "wait", "id": job, "wait_s": wait_s})
            return None if answer.get("running") is True else parse_result(answer, job)

    async def read_file(self, path: str, *, offset: int = 0, limit: int = MAX_FILE_BYTES) -> bytes:
        """The bytes of a file; OSError with EFBIG if there are more than `limit`."""
        data = bytearray()

        def take(_kind: int, body: bytes) -> None:
            data.extend(body)
            if len(data) <= limit + 1:
                self._line.stream.allow(exchange, len(body))

        # One more than wanted: whether there is more is known then.
        order = {"op": "read_file", "path": path, "offset": offset, "limit": limit + 1}
        exchange = self._line.stream.open(take)
        await self._answer(exchange, order)
        if len(data) > limit:
            raise OSError(errno.EFBIG, f"the file has more than {limit} bytes", path)
        return bytes(data)

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file in one step."""
        if len(data) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"more than {MAX_FILE_BYTES} bytes", path)
        order = {"op": "write_file", "path": path, "mode": mode, "limit": len(data)}
        exchange = self._line.stream.open()
        await self._line.stream.order(exchange, order)
        try:
            await self._line.stream.feed(exchange, data)
            self._line.stream.write(frames.INPUT, exchange.number)
        except asyncio.CancelledError:
            self._line.stream.write(frames.CANCEL, exchange.number)
            raise
        await self._answer(exchange, None, path)

    async def list_files(self, path: str, *, limit: int = 10_000) -> list[FileInfo]:
        """What is in a folder; OSError with EOVERFLOW if it is more than `limit`."""
        with self._trusting_nothing():
            return parse_files(await self.ask({"op": "list_files", "path": path, "limit": limit}))

    async def stat_file(self, path: str) -> FileInfo:
        """What a path names; a link is told as a link."""
        with self._trusting_nothing():
            return parse_file(await self.ask({"op": "stat_file", "path": path}))

    async def close(self) -> None:
        """Give the channel up; returns when the stream's process is gone."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._line.close())
        await asyncio.shield(self._closing)

    async def ask(
        self, order: dict[str, Any], on_data: Callable[[int, bytes], None] | None = None
    ) -> dict[str, Any]:
        """The answer to an order of runner/orders.py; nothing in it is to be trusted."""
        return await self._answer(self._line.stream.open(on_data), order)

    async def _answer(
        self, exchange: Exchange, order: dict[str, Any] | None, path: str | None = None
    ) -> dict[str, Any]:
        if order is not None:
            await self._line.stream.order(exchange, order)
        try:
            answer = await asyncio.shield(exchange.answer)
        except asyncio.CancelledError:
            exchange.on_data = lambda _kind, _body: None  # It may be on its way; nobody wants it.
            self._line.stream.write(frames.CANCEL, exchange.number)
            raise
        except SandboxError as error:
            raise await self.loss.explained_error(error) from None
        if "errno" in answer:
            with self._trusting_nothing():
                asked = order or {}
                failure = parse_failure(answer, path or asked.get("path"), asked.get("id"))
            raise failure
        return answer

    @contextlib.contextmanager
    def _trusting_nothing(self) -> Iterator[None]:
        try:
            yield
        except frames.BadFrame as error:
            self._line.stream.lose(f"its runner does not keep to the protocol: {error}")
            raise SandboxError(f"the sandbox was lost: {self._line.stream.lost}") from error


def _order(command: Command, *, send_limit: int) -> dict[str, Any]:
    words, size = command.command, command.terminal
    return {
        "op": "run",
        "id": command.id,
        "command": words if isinstance(words, str) else list(words),
        "cwd": command.cwd,
        "env": dict(command.env),
        "stdin": command.stdin is not None or command.stdin_open,
        "terminal": None if size is None else [size.rows, size.columns],
        "timeout_s": command.timeout_s,
        "idle_timeout_s": command.idle_timeout_s,
        "send_limit": send_limit,
        "spill": command.spill_bytes,
        "report_shell": command.report_shell,
    }


class _Running:
    """A command in the foreground; see `Running`."""

    def __init__(self, channel: RunnerChannel, line: Line, command: Command, *, live: bool) -> None:
        self._channel = channel
        self._stream = line.stream
        self._command = command
        self._live = live
        # One byte more than is kept: so it is known here where a cut has to be made.
        self._send_limit = _ALL if live else command.max_output_bytes + 1
        self._loop = asyncio.get_running_loop()
        self._kept = {kind: Capture(command.max_output_bytes) for kind in _STREAMS}
        self._unread = Unread(self._loop.time)
        self._arrived = asyncio.Event()
        self._feeding: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._began = self._loop.time()

    @property
    def id(self) -> str:
        """The name of the command."""
        return self._command.id

    async def __aenter__(self) -> "_Running":
        command = self._command
        self._exchange = self._stream.open(self._on_data)
        if command.timeout_s is not None:
            self._due = self._loop.time() + command.timeout_s + self._channel.grace_s
            self._deadline = self._loop.call_at(self._due, self._look_at_the_clock)
        try:
            await self._stream.order(self._exchange, _order(command, send_limit=self._send_limit))
        except BaseException:
            self._let_go()
            raise
        if command.stdin is not None:
            self._feeding = asyncio.ensure_future(self._feed_first(command.stdin))
        if self._live:
            self._exchange.answer.add_done_callback(lambda _answer: self._arrived.set())
        return self

    async def __aexit__(self, *error: object) -> None:
        try:
            if not self._exchange.answer.done():
                await self._cancel()
            elif self._stream.lost:
                await self._channel.close()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        if self._feeding is not None:
            self._feeding.cancel()
        self._exchange.on_data = None  # Or we and all we keep would stay in a circle.

    async def _cancel(self) -> None:
        """End it, and wait until it has ended, whatever happens to us meanwhile."""
        self._stream.write(frames.CANCEL, self._exchange.number)
        overdue = self._loop.call_later(self._channel.grace_s, self._give_up)
        self._drain()
        cancelled: asyncio.CancelledError | None = None
        while not self._exchange.answer.done():
            try:
                await asyncio.wait([self._exchange.answer])
            except asyncio.CancelledError as error:
                cancelled = error
        overdue.cancel()
        if self._stream.lost:
            await self._channel.close()
        if cancelled is not None:
            raise cancelled

    def _look_at_the_clock(self) -> None:
        # While nobody reads, the runner waits for us: the answer comes after the output.
        due = self._due + self._unread.waited_s
        now = self._loop.time()
        if self._unread:
            due = max(due, now + self._channel.grace_s)
        if due > now:
            self._deadline = self._loop.call_at(due, self._look_at_the_clock)
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._stream.lose("its runner did not end a command in time")

    async def _feed_first(self, data: bytes) -> None:
        await self._stream.feed(self._exchange, data)
        if not self._command.stdin_open:
            self._stream.write(frames.INPUT, self._exchange.number)

    def _on_data(self, kind: int, body: bytes) -> None:
        self._kept[kind].feed(body)
        if self._live:
            self._unread.put(_STREAMS[kind], body)
            self._arrived.set()
        elif self._kept[kind].total_bytes > self._send_limit:
            raise frames.BadFrame("more output than was asked for")
        else:
            self._stream.allow(self._exchange, len(body))

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """What it writes, as it writes it."""
        while True:
            while self._unread:
                stream, body = self._unread.take()
                yield stream, body
                self._stream.allow(self._exchange, len(body))
            if self._exchange.answer.done():
                return
            self._arrived.clear()
            await self._arrived.wait()

    def _drain(self) -> None:
        """Nobody reads: let it write."""
        self._live = False
        self._stream.allow(self._exchange, self._unread.clear())

    async def write(self, data: bytes) -> None:
        """Give it input; waits while it does not read."""
        if self._feeding is not None:
            await asyncio.shield(self._feeding)
        await self._stream.feed(self._exchange, data)

    async def close_stdin(self) -> None:
        """Its input ends here (on a terminal: Ctrl-D)."""
        if self._feeding is not None:
            await asyncio.shield(self._feeding)
        if not self._exchange.answer.done():
            self._stream.write(frames.INPUT, self._exchange.number)

    async def resize(self, size: TerminalSize) -> None:
        """Tell its terminal how big it is now."""
        order = {"op": "resize", "id": self.id, "rows": size.rows, "columns": size.columns}
        await self._channel.ask(order)

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        await self._channel.ask({"op": "signal", "id": self.id, "number": number})

    async def result(self) -> ExecutionResult:
        """What came of it."""
        self._drain()
        try:
            answer = await asyncio.shield(self._exchange.answer)
            with self._channel._trusting_nothing():
                if "errno" in answer:
                    raise frames.BadFrame("an error in the place of a result")
                return parse_result(answer, self.id, *self._kept.values())
        except SandboxError as error:
            # First of all the end of everything that may still run there.
            await self._channel.close()
            spent_ms = round((self._loop.time() - self._began) * 1000)
            lost = lost_result(self.id, str(error), spent_ms, *self._kept.values())
            return await self._channel.loss.explained(lost)
