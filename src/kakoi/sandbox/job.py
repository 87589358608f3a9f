"""Running commands of a `Sandbox`: a stream of output, and jobs."""

import codecs
import math
import signal as signals
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import replace
from typing import Any, Final, overload

from kakoi._support.late import dataclass
from kakoi._support.text import short_repr
from kakoi.channel.api import (
    DEFAULT_OUTPUT_BYTES,
    MIB,
    Channel,
    JobInfo,
    OutputPart,
    Stream,
    TerminalSize,
    check_type,
    new_id,
)
from kakoi.errors import ConfigurationError, ExecutionError
from kakoi.results import Capture, ExecutionResult, Reason
from kakoi.sandbox.commands import prepare
from kakoi.sandbox.lifecycle import SandboxLife

READ_BYTES: Final = MIB


@dataclass(frozen=True, slots=True)
class Chunk:
    """A part of a command's output.

    `stream`: "stdout" or "stderr". `data`: the bytes. `text`: the same as text; a character that is
    split between two chunks is in the second one.
    """

    stream: Stream
    data: bytes
    text: str


class CommandStream:
    """The output of a command, as it is written: `async for chunk in box.stream("make test")`.

    Leaving the loop ends the command. `async with` ends it at the end of the block at the latest.

        async with box.stream("make test") as running:
            async for chunk in running:
                print(chunk.text, end="")
        print(running.result)
    """

    def __init__(self, life: SandboxLife, command: str | Sequence[str], **given: Any) -> None:
        self._life = life
        self._command = command
        self._given = given
        self.id = new_id()
        self._result: ExecutionResult | None = None
        self._iterator: AsyncIterator[Chunk] | None = None
        self._is_begun = False

    @property
    def result(self) -> ExecutionResult:
        """The result, once the output has ended. Raises ConfigurationError before."""
        if self._result is None:
            raise ConfigurationError(
                "the command has no result yet", hint="read its output to the end first"
            )
        return self._result

    def __aiter__(self) -> AsyncIterator[Chunk]:
        if self._result is not None:
            raise ConfigurationError("the output was already read", hint="call `stream` again")
        return self._begin() if self._iterator is None else self._iterator

    async def __aenter__(self) -> "CommandStream":
        self._iterator = self._begin()
        return self

    def _begin(self) -> AsyncIterator[Chunk]:
        if self._is_begun:
            raise ConfigurationError("the command was already started", hint="call `stream` again")
        self._is_begun = True
        return self._chunks()

    async def __aexit__(self, *error: object) -> None:
        if self._iterator is not None:
            await self._iterator.aclose()  # type: ignore[attr-defined]  # It is a generator.

    async def _chunks(self) -> AsyncIterator[Chunk]:
        gate, command = await prepare(self._life, self._command, id=self.id, **self._given)
        limit = command.max_output_bytes
        kept: dict[Stream, Capture] = {"stdout": Capture(limit), "stderr": Capture(limit)}
        new_decoder = codecs.getincrementaldecoder("utf-8")
        decoders: dict[Stream, codecs.IncrementalDecoder] = {
            "stdout": new_decoder("replace"),
            "stderr": new_decoder("replace"),
        }
        async with AsyncExitStack() as stack:
            running = await stack.enter_async_context(gate.open(command))
            async for stream, data in running.output():
                kept[stream].feed(data)
                yield Chunk(stream, data, decoders[stream].decode(data))
            for stream, decoder in decoders.items():
                if rest := decoder.decode(b"", final=True):  # A character that never came whole.
                    yield Chunk(stream, b"", rest)
            self._result = _with_output(await running.result(), kept["stdout"], kept["stderr"])


class Job:
    """A command that runs in the background; from `Sandbox.start`.

    job = await box.start("python -m http.server 8000")
    print((await job.read(wait=5)).data)
    await job.stop()
    """

    def __init__(
        self, life: SandboxLife, id: str, command: str, *, max_output: int = DEFAULT_OUTPUT_BYTES
    ) -> None:
        self._life = life
        self.id = id
        self.command = command
        self._max_output = max_output
        self._result: ExecutionResult | None = None

    def __repr__(self) -> str:
        return f"<Job {self.id}: {self.command[:60]}>"

    @property
    def result(self) -> ExecutionResult | None:
        """The result, if `wait` or `stop` has returned it."""
        return self._result

    async def read(
        self,
        offset: int = 0,
        wait: float = 0,
        *,
        stream: Stream = "stdout",
        limit: int = READ_BYTES,
    ) -> OutputPart:
        """Return output from `offset` on; waits up to `wait` seconds for the first byte.

        Go on at `next_offset`. The output of a terminal is all in `stdout`.
        """
        check_type("offset", offset, int)
        check_type("limit", limit, int)
        check_type("wait", wait, int, float)
        if stream not in ("stdout", "stderr"):
            raise ConfigurationError(f"stream is {stream!r}; it must be `stdout` or `stderr`")
        if offset < 0 or limit < 1 or not 0 <= wait <= 3600:
            raise ConfigurationError(
                f"offset {offset}, limit {limit}, wait {wait}: offset and wait must not be "
                "negative, limit must be above zero, and wait at most 3600 seconds"
            )
        channel = await self._channel()
        return await channel.read_output(self.id, stream, offset=offset, limit=limit, wait_s=wait)

    async def write(self, data: str | bytes) -> None:
        """Write to its input. Raises ExecutionError if it takes no more input."""
        channel = await self._channel()
        with _as_execution_error("write to"):
            await channel.write_stdin(self.id, _bytes(data))

    async def close_stdin(self) -> None:
        """End its input, as Ctrl-D does at a terminal."""
        channel = await self._channel()
        with _as_execution_error("close the input of"):
            await channel.write_stdin(self.id, b"", close=True)

    async def resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal. Raises ExecutionError if it has none."""
        size = TerminalSize(rows=rows, columns=columns)
        channel = await self._channel()
        with _as_execution_error("resize"):
            await channel.resize_job(self.id, size)

    async def signal(self, number: int | str) -> None:
        """Send a signal to its process group: a number, or a name such as `SIGINT`.

        Nothing happens if it has ended.
        """
        channel = await self._channel()
        with _as_execution_error("signal"):
            await channel.signal_job(self.id, _signal_number(number))

    async def _channel(self) -> Channel:
        opened = await self._life.ready()
        return await opened.gate.job_channel(self.id)

    @overload
    async def wait(self) -> ExecutionResult: ...
    @overload
    async def wait(self, timeout: float) -> ExecutionResult | None: ...

    async def wait(self, timeout: float = math.inf) -> ExecutionResult | None:
        """Wait for its end and return its result; None if it still runs after `timeout` seconds.

        Raises SandboxError if this process has detached from the sandbox meanwhile.
        """
        check_type("timeout", timeout, int, float)
        if not timeout >= 0:
            raise ConfigurationError(f"timeout is {timeout}; it must not be negative")
        opened = await self._life.ready()
        wait_s = None if timeout == math.inf else timeout
        result = await opened.gate.wait(self.id, wait_s=wait_s)
        if result is None and wait_s is None:
            self._life.check_owner()
        return None if result is None else await self._finished(result)

    async def stop(self) -> ExecutionResult:
        """End it and everything it started; returns its result."""
        opened = await self._life.ready()
        return await self._finished(await opened.gate.stop(self.id))

    async def _finished(self, result: ExecutionResult) -> ExecutionResult:
        """Keep and return the result, with the head of its output."""
        if result.reason is Reason.SANDBOX_LOST:
            self._result = result  # Its output is lost, too.
        if self._result is None:
            stdout = await self._head("stdout", result.stdout_bytes)
            stderr = await self._head("stderr", result.stderr_bytes)
            self._result = _with_output(result, stdout, stderr)
        return self._result

    async def _head(self, stream: Stream, total: int) -> Capture:
        kept = Capture(self._max_output)
        offset = 0
        while offset < min(self._max_output, total):
            part = await self.read(offset, stream=stream)
            if not part.data:
                break
            kept.feed(part.data)
            offset = part.next_offset
        kept.total_bytes = max(total, kept.total_bytes)
        return kept


@contextmanager
def _as_execution_error(what: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExecutionError(f"cannot {what} the job: {error.strerror or error}") from error


def job_from(life: SandboxLife, info: JobInfo) -> Job:
    """Return the job that the sandbox reports."""
    return Job(life, info.id, info.command)


def _with_output(result: ExecutionResult, stdout: Capture, stderr: Capture) -> ExecutionResult:
    return replace(
        result,
        stdout=stdout.text(),
        stderr=stderr.text(),
        stdout_truncated=stdout.truncated,
        stderr_truncated=stderr.truncated,
    )


def _bytes(data: object) -> bytes:
    if isinstance(data, str):
        return data.encode("utf-8", "surrogateescape")
    check_type("data", data, bytes, bytearray, memoryview)
    return bytes(data)  # type: ignore[call-overload, no-any-return]


def _signal_number(value: int | str) -> int:
    names = signals.Signals.__members__
    if isinstance(value, str):
        name = value.upper() if value.upper().startswith("SIG") else f"SIG{value.upper()}"
        if name in names:
            return int(names[name])
    elif type(value) in (int, signals.Signals) and value in set(names.values()):
        return int(value)
    raise ConfigurationError(
        f"number is {short_repr(value)}; it must be a signal, such as `SIGINT` or 2"
    )
