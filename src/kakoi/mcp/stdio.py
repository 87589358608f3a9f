"""JSON-RPC messages over stdin and stdout, one per line.

Invalid messages get an error response, and an endless line uses no memory. While a client does not
read, no more input is taken from it. Reads and writes can block forever, so they run in threads
that do not delay our exit.
"""

import asyncio
import contextlib
import fcntl
import json
import logging
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorData,
    JSONRPCError,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from kakoi._support.asyncio import BlockingCalls
from kakoi._support.files import read_some, write_whole

MAX_MESSAGE_BYTES: Final = 16 * 1024 * 1024
_CHUNK: Final = 64 * 1024
_LONGEST_NAME: Final = 256
# The number of requests that can wait for answers while the client does not read.
_MOST_UNANSWERED: Final = 256
_log = logging.getLogger(__name__)
Incoming = SessionMessage | Exception


@contextlib.contextmanager
def claim_stdio() -> Iterator[tuple[int, int]]:
    """Reserve stdin and stdout for the protocol. Until the end, other code that reads stdin gets
    nothing, and other code that writes to stdout writes to stderr."""
    fds = [fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3) for fd in (0, 1)]
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.dup2(2, 1)
    os.close(nothing)
    try:
        yield fds[0], fds[1]
    finally:
        # Not closed: a thread may still read, and its descriptor must not be reused.
        os.dup2(fds[0], 0)
        os.dup2(fds[1], 1)


class LineSplitter:
    """Splits input into lines. A line that is too long is returned as None."""

    def __init__(self, longest: int = MAX_MESSAGE_BYTES) -> None:
        self._longest = longest
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> list[bytes | None]:
        """Return the lines that `data` completes."""
        *ends, rest = data.split(b"\n")
        found: list[bytes | None] = []
        for end in ends:
            self._take(end)
            found.append(b"".join(self._parts) if self._size <= self._longest else None)
            self._parts, self._size = [], 0
        self._take(rest)
        return found

    def _take(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._longest:
            self._parts = []
        elif data:
            self._parts.append(data)


class StdioTransport:
    """Both directions, in the form the SDK expects."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._reader = BlockingCalls()
        self._writer = BlockingCalls()
        self._turn = asyncio.Lock()
        self._unanswered = 0
        self._is_writing = False
        self._wrote = asyncio.Event()
        self._scope = anyio.CancelScope()

    @contextlib.asynccontextmanager
    async def streams(
        self,
    ) -> AsyncIterator[
        tuple[MemoryObjectReceiveStream[Incoming], MemoryObjectSendStream[SessionMessage]]
    ]:
        """Open the incoming and outgoing streams. Leaving the block ends both at once."""
        into, incoming = anyio.create_memory_object_stream[Incoming](0)
        outgoing, out = anyio.create_memory_object_stream[SessionMessage](0)
        async with anyio.create_task_group() as group:
            self._scope = group.cancel_scope
            group.start_soon(self._read, into)
            group.start_soon(self._write, out)
            yield incoming, outgoing
            group.cancel_scope.cancel()

    async def _read(self, into: MemoryObjectSendStream[Incoming]) -> None:
        lines = LineSplitter()
        async with into:
            while data := await self._chunk():
                for line in lines.feed(data):
                    message = None if line is not None and not line.strip() else _parse(line)
                    if isinstance(message, SessionMessage):
                        self._unanswered += isinstance(message.message, JSONRPCRequest)
                        await into.send(message)
                    elif message is not None:
                        await self._put(message)
                while self._unanswered >= _MOST_UNANSWERED and self._is_writing:
                    self._wrote.clear()
                    await self._wrote.wait()

    async def _chunk(self) -> bytes:
        try:
            return await self._reader.call(read_some, self._reading, _CHUNK)
        except OSError as error:
            _log.warning("cannot read stdin: %s", error.strerror)
            return b""

    async def _write(self, out: MemoryObjectReceiveStream[SessionMessage]) -> None:
        async with out:
            async for item in out:
                if isinstance(item.message, JSONRPCResponse | JSONRPCError):
                    self._unanswered -= 1
                await self._put(item.message)

    async def _put(self, message: Any) -> None:
        text: str = message.model_dump_json(by_alias=True, exclude_unset=True)
        data = text.encode("utf-8", "replace") + b"\n"
        async with self._turn:
            self._is_writing = True
            try:
                await self._writer.call(write_whole, self._writing, data)
            except OSError:  # The reader is gone for good.
                self._scope.cancel()
            self._is_writing = False
            self._wrote.set()


def _parse(line: bytes | None) -> SessionMessage | JSONRPCError:
    """Return the message in a line, or the error response to send."""
    if line is None:
        return _error(PARSE_ERROR, f"a message can have at most {MAX_MESSAGE_BYTES} bytes")
    try:
        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
        # An id of another type makes it no valid request, but the sender waits for an answer.
        if not isinstance(message, JSONRPCNotification) or b'"id"' not in line:
            return SessionMessage(message)
        if "id" not in json.loads(line):
            return SessionMessage(message)
    except (ValidationError, ValueError, RecursionError):
        pass
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        return _error(PARSE_ERROR, "the line is not valid JSON")
    given = found.get("id") if isinstance(found, dict) else None
    return _error(INVALID_REQUEST, "the line is not a JSON-RPC message", _request_id(given))


def _request_id(given: object) -> str | int | None:
    """Return the id of a request, if it is valid."""
    if isinstance(given, str) and len(given) <= _LONGEST_NAME and given.isascii():
        return given
    is_number = isinstance(given, int) and not isinstance(given, bool)
    return given if is_number and isinstance(given, int) and abs(given) < 2**63 else None


def _error(code: int, message: str, number: str | int | None = None) -> JSONRPCError:
    error = ErrorData(code=code, message=message)
    return JSONRPCError(jsonrpc="2.0", id=number, error=error)
