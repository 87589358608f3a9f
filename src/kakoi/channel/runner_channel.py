"""RunnerChannel: commands, jobs and files of one sandbox, over the stream to its runner."""

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from kakoi._support.asyncio import wait_through
from kakoi.channel.api import (
    MAX_FILE_BYTES,
    MIB,
    Command,
    FileEvent,
    FileInfo,
    JobInfo,
    OutputPart,
    Stream,
    TerminalSize,
)
from kakoi.channel.delivery import RunnerSettings
from kakoi.channel.output_buffer import OutputBuffer
from kakoi.channel.runner_answers import (
    Hello,
    check_id,
    lost_result,
    number,
    parse_jobs,
    parse_result,
)
from kakoi.channel.runner_files import RunnerFiles
from kakoi.channel.runner_stream import (
    DEFAULT_TIMEOUTS,
    Carrier,
    Loss,
    RunnerRequests,
    RunnerStream,
    RunnerTimeouts,
    open_runner_stream,
)
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.process.stream import Launch, ProcessStream
from kakoi.results import Capture, ExecutionResult
from kakoi.runner import frames

_ALL = 2**62
_STREAMS: dict[int, Stream] = {frames.STDOUT: "stdout", frames.STDERR: "stderr"}


async def open_channel(
    launch: Launch,
    settings: RunnerSettings,
    start: Callable[[Launch], ProcessStream] = ProcessStream,
    timeouts: RunnerTimeouts = DEFAULT_TIMEOUTS,
) -> "RunnerChannel":
    """Start a runner by `launch` and open a channel to it; SandboxError says why it failed."""
    return RunnerChannel(
        await open_runner_stream(launch, settings, start, timeouts), timeouts.grace_s
    )


class RunnerChannel:
    """The channel into a sandbox that has a runner; see `Channel`."""

    def __init__(self, stream: RunnerStream, grace_s: float = DEFAULT_TIMEOUTS.grace_s) -> None:
        self._stream = stream
        # The runner enforces timeouts; a command that runs longer means that it failed to.
        self.grace_s = grace_s
        self._closing: asyncio.Task[None] | None = None
        # How many commands are running in the foreground.
        self.running = 0
        self._requests = RunnerRequests(stream.frames)
        self._files = RunnerFiles(self._requests)

    @property
    def lost(self) -> bool:
        """Is the other end gone?"""
        return bool(self._stream.frames.lost)

    @property
    def shell(self) -> str:
        """`bash` or `sh`; see `Channel.shell`."""
        return "bash" if self.hello.shell.endswith("/bash") else "sh"

    @property
    def hello(self) -> Hello:
        """The runner's greeting."""
        return self._stream.frames.hello.result()

    @property
    def loss(self) -> Loss:
        """Why the sandbox was lost."""
        return self._requests.loss

    @property
    def carrier(self) -> Carrier:
        """The process that carries the stream."""
        return self._stream.process

    async def run(self, command: Command) -> ExecutionResult:
        """Run to the end; see `Channel.run`."""
        async with _RunnerCommand(self, self._stream, command, live=False) as running:
            return await running.result()

    def open(self, command: Command) -> "_RunnerCommand":
        """Run with live output and input; see `Channel.open`."""
        return _RunnerCommand(self, self._stream, command, live=True)

    async def start(self, command: Command) -> str:
        """Start a job; see `Channel.start`."""
        stdin = command.stdin or b""
        if len(stdin) > frames.WINDOW:
            raise ConfigurationError(
                f"stdin has {len(stdin)} bytes; a job can start with {frames.WINDOW} at most",
                hint="write a file for the job to read, or use write_stdin",
            )
        order = _order(command, send_limit=0) | {"background": True}
        # With the order, not after it: a job that is requested twice must not read it twice.
        order |= {"input": base64.b64encode(stdin).decode(), "input_ends": not command.stdin_open}
        with self.trusting_nothing():
            check_id(await self.ask(order), command.id)
        return command.id

    async def list_jobs(self) -> list[JobInfo]:
        """Return every remembered job, running or not."""
        with self.trusting_nothing():
            return parse_jobs(await self.ask({"op": "list"}))

    async def read_output(
        self, job: str, stream: Stream, *, offset: int = 0, limit: int = MIB, wait_s: float = 0
    ) -> OutputPart:
        """Return a part of a job's output; see `Channel.read_output`."""
        data = bytearray()
        order = {"op": "read", "id": job, "stream": int(stream == "stderr"), "offset": offset}
        order |= {"limit": min(limit, frames.WINDOW), "wait_s": wait_s}
        answer = await self.ask(order, lambda _kind, body: data.extend(body))
        with self.trusting_nothing():
            if len(data) > limit:
                raise frames.BadFrame("more output than was asked for")
            lost = max(0, number(answer, "total") - number(answer, "stored"))
        return OutputPart(
            bytes(data), offset, offset + len(data), answer.get("ended") is True, lost
        )

    async def write_stdin(self, job: str, data: bytes, *, close: bool = False) -> None:
        """Send input to a job; BlockingIOError if it has too much unread input."""
        for at in range(0, max(1, len(data)), size := frames.MAX_DATA):
            part, is_last = data[at : at + size].decode("latin-1"), at + size >= len(data)
            await self.ask({"op": "write", "id": job, "data": part, "close": close and is_last})

    async def stop_job(self, job: str) -> ExecutionResult:
        """End a job and everything it started."""
        with self.trusting_nothing():
            return parse_result(await self.ask({"op": "stop", "id": job}), job)

    async def wait_job(self, job: str, *, wait_s: float | None = None) -> ExecutionResult | None:
        """Return a job's result, or None if it is still running after `wait_s`."""
        with self.trusting_nothing():
            answer = await self.ask({"op": "wait", "id": job, "wait_s": wait_s})
            return None if answer.get("running") is True else parse_result(answer, job)

    async def signal_job(self, job: str, number: int) -> None:
        """Send a signal to a job's process group; see `Channel.signal_job`."""
        await self.ask({"op": "signal", "id": job, "number": number})

    async def resize_job(self, job: str, size: TerminalSize) -> None:
        """Set the size of a job's terminal; see `Channel.resize_job`."""
        await self.ask({"op": "resize", "id": job, "rows": size.rows, "columns": size.columns})

    async def read_file(self, path: str, *, offset: int = 0, limit: int = MAX_FILE_BYTES) -> bytes:
        """Return the bytes of a file; see `Channel.read_file`."""
        return await self._files.read(path, offset, limit)

    def stream_file(self, path: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file; see `Channel.stream_file`."""
        return self._files.stream(path, offset)

    async def write_file(
        self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int = 0o644
    ) -> None:
        """Create or replace a file in one step; see `Channel.write_file`."""
        await self._files.write(path, data, mode)

    async def list_files(self, path: str, *, depth: int = 1, limit: int = 10_000) -> list[FileInfo]:
        """Return the files in a directory; see `Channel.list_files`."""
        return await self._files.list(path, depth, limit)

    async def stat_file(self, path: str) -> FileInfo:
        """Return what a path names; links are not followed."""
        return await self._files.stat(path)

    async def make_dir(self, path: str, *, mode: int = 0o755, parents: bool = True) -> bool:
        """Make a directory; see `Channel.make_dir`."""
        return await self._files.make_dir(path, mode, parents=parents)

    async def move_file(self, source: str, destination: str) -> None:
        """Rename a file or directory; see `Channel.move_file`."""
        await self._files.move(source, destination)

    async def remove_file(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or a directory; see `Channel.remove_file`."""
        await self._files.remove(path, recursive=recursive)

    def watch_files(
        self, path: str, *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileEvent]]:
        """Watch a file or directory; see `Channel.watch_files`."""
        return self._files.watch(path, recursive=recursive)

    async def close(self, grace_s: float = 2.0) -> None:
        """Close the channel; returns when the process of the stream is gone.

        `grace_s`: how long that process has to exit by itself.
        """
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._stream.close(grace_s))
        await asyncio.shield(self._closing)

    async def ask(
        self, order: dict[str, Any], on_data: Callable[[int, bytes], None] | None = None
    ) -> dict[str, Any]:
        """Return the untrusted answer to an order (runner/orders.py)."""
        return await self._requests.ask(order, on_data)

    def trusting_nothing(self) -> AbstractContextManager[None]:
        """Lose the sandbox if what it sent makes no sense."""
        return self._requests.trusting_nothing()


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


class _RunnerCommand:
    """A command in the foreground; see `RunningCommand`."""

    def __init__(
        self, channel: RunnerChannel, stream: RunnerStream, command: Command, *, live: bool
    ) -> None:
        self._channel = channel
        self._frames = stream.frames
        self._command = command
        self._live = live
        # One byte more than is kept shows whether the output was truncated.
        self._send_limit = _ALL if live else command.max_output_bytes + 1
        self._loop = asyncio.get_running_loop()
        self._kept = {kind: Capture(command.max_output_bytes) for kind in _STREAMS}
        self._output_buffer = OutputBuffer(self._loop.time)
        self._arrived = asyncio.Event()
        self._feeding: asyncio.Task[None] | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._began = self._loop.time()

    @property
    def id(self) -> str:
        """The id of the command."""
        return self._command.id

    async def __aenter__(self) -> "_RunnerCommand":
        command = self._command
        self._exchange = self._frames.open(self._on_data)
        self._channel.running += 1
        if command.timeout_s is not None:
            self._due = self._loop.time() + command.timeout_s + self._channel.grace_s
            self._deadline = self._loop.call_at(self._due, self._check_deadline)
        try:
            await self._frames.order(self._exchange, _order(command, send_limit=self._send_limit))
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
            elif self._frames.lost:
                await self._channel.close()
        finally:
            self._let_go()

    def _let_go(self) -> None:
        self._channel.running -= 1
        if self._deadline is not None:
            self._deadline.cancel()
        if self._feeding is not None:
            self._feeding.cancel()
        self._exchange.on_data = None  # Breaks a reference cycle that would keep the output alive.

    async def _cancel(self) -> None:
        """End the command and wait until it has ended, even if we are cancelled meanwhile."""
        self._frames.write(frames.CANCEL, self._exchange.number)
        overdue = self._loop.call_later(self._channel.grace_s, self._give_up)
        self._drain()
        cancelled = await wait_through(self._exchange.answer)
        overdue.cancel()
        if self._frames.lost:
            await self._channel.close()
        if cancelled is not None:
            raise cancelled

    def _check_deadline(self) -> None:
        # While nobody reads, the runner waits for us, because the answer follows the output.
        due = self._due + self._output_buffer.waited_s
        now = self._loop.time()
        if self._output_buffer:
            due = max(due, now + self._channel.grace_s)
        if due > now:
            self._deadline = self._loop.call_at(due, self._check_deadline)
        else:
            self._give_up()

    def _give_up(self) -> None:
        self._frames.lose("its runner did not end a command in time")

    async def _feed_first(self, data: bytes) -> None:
        await self._frames.feed(self._exchange, data)
        if not self._command.stdin_open:
            self._frames.write(frames.INPUT, self._exchange.number)

    def _on_data(self, kind: int, body: bytes) -> None:
        self._kept[kind].feed(body)
        if self._live:
            self._output_buffer.put(_STREAMS[kind], body)
            self._arrived.set()
        elif self._kept[kind].total_bytes > self._send_limit:
            raise frames.BadFrame("more output than was asked for")
        else:
            self._frames.allow(self._exchange, len(body))

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Yield output as it is written."""
        while True:
            while self._output_buffer:
                stream, body = self._output_buffer.take()
                yield stream, body
                self._frames.allow(self._exchange, len(body))
            if self._exchange.answer.done():
                return
            self._arrived.clear()
            await self._arrived.wait()

    def _drain(self) -> None:
        """Nobody reads any more: let the command write."""
        self._live = False
        self._frames.allow(self._exchange, self._output_buffer.clear())

    async def write(self, data: bytes) -> None:
        """Send input; waits while the command does not read."""
        if self._feeding is not None:
            await asyncio.shield(self._feeding)
        await self._frames.feed(self._exchange, data)

    async def close_stdin(self) -> None:
        """End the input (on a terminal: Ctrl-D)."""
        if self._feeding is not None:
            await asyncio.shield(self._feeding)
        if not self._exchange.answer.done():
            self._frames.write(frames.INPUT, self._exchange.number)

    async def resize(self, size: TerminalSize) -> None:
        """Set the size of its terminal."""
        order = {"op": "resize", "id": self.id, "rows": size.rows, "columns": size.columns}
        await self._channel.ask(order)

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        await self._channel.ask({"op": "signal", "id": self.id, "number": number})

    async def result(self) -> ExecutionResult:
        """Return the result."""
        self._drain()
        try:
            answer = await self._exchange.answered()
            with self._channel.trusting_nothing():
                if "errno" in answer:
                    raise frames.BadFrame("an error in the place of a result")
                return parse_result(answer, self.id, *self._kept.values())
        except SandboxError as error:
            # First, end everything that may still be running there.
            await self._channel.close()
            spent_ms = round((self._loop.time() - self._began) * 1000)
            lost = lost_result(self.id, str(error), spent_ms, *self._kept.values())
            return await self._channel.loss.explained(lost)
