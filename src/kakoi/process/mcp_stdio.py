"""A client for an MCP server on its standard streams: one JSON message per line.

    ours    initialize, notifications/initialized, tools/list, tools/call, notifications/cancelled
    theirs  answers; `ping`, which is answered; other requests, which are refused; notifications,
            which are ignored

The server is not trusted. Line length, pending requests and unsent data are limited, an answer
without a matching request is ignored, and a line that is not JSON closes the connection.
"""

import asyncio
import contextlib
import json
import socket
from typing import Final

from kakoi.errors import ExecutionError, SandboxError
from kakoi.process.executor import ProcessExecutor
from kakoi.process.stream import Launch, ProcessStream

# The newest revision that we have checked. A server that supports only an older one answers with
# that one, and the messages used here are the same in all of them.
_REVISION: Final = "2025-06-18"
_MAX_PENDING: Final = 64
_MAX_UNSENT: Final = 4 * 1024 * 1024
_METHOD_NOT_FOUND: Final = -32601
MAX_LINE_BYTES: Final = 32 * 1024 * 1024


class McpError(SandboxError):
    """The server answered with an error."""


class McpLine:
    """An open connection. The caller must `close` it."""

    def __init__(self, stream: ProcessStream, *, name: str, max_line_bytes: int) -> None:
        self._stream = stream
        self._name = name
        self._max_line_bytes = max_line_bytes
        self._pending: dict[int, asyncio.Future[dict[str, object]]] = {}
        self._last_id = 0
        self._failure: SandboxError | None = None
        self._unsent = bytearray()
        self._something_to_send = asyncio.Event()
        self._tasks = [asyncio.ensure_future(self._read()), asyncio.ensure_future(self._write())]

    @classmethod
    async def open(
        cls,
        executor: ProcessExecutor,
        launch: Launch,
        *,
        timeout_s: float,
        max_line_bytes: int = MAX_LINE_BYTES,
    ) -> "McpLine":
        """Start the server and initialize it. SandboxError: it does not start or answer in time."""
        name = launch.argv[0]
        try:
            stream = executor.stream(launch)
        except ExecutionError as error:
            raise SandboxError(str(error), details=error.details, hint=error.hint) from error
        line = cls(stream, name=name, max_line_bytes=max_line_bytes)
        try:
            await line._greet(timeout_s)
        except TimeoutError as error:
            await line.close(at_once=True)
            raise SandboxError(
                f"`{name}` has not answered within {timeout_s:g} s{line._last_words()}"
            ) from error
        except BaseException:
            await line.close(at_once=True)
            raise
        return line

    @property
    def lost(self) -> bool:
        """Has the server exited, or has it broken the protocol?"""
        return self._failure is not None

    async def tools(self, *, timeout_s: float) -> set[str]:
        """Return the names of the tools on the first page of the server's list."""
        answer = await self.request("tools/list", {}, timeout_s=timeout_s)
        tools = answer.get("tools")
        if not isinstance(tools, list):
            raise McpError(f"`{self._name}` returned no list of tools")
        names = (each.get("name") for each in tools if isinstance(each, dict))
        return {name for name in names if isinstance(name, str)}

    async def call(self, tool: str, arguments: object, *, timeout_s: float | None) -> str:
        """Return a tool's answer as text.

        McpError: the tool failed. TimeoutError: no answer in time.
        """
        params = {"name": tool, "arguments": arguments}
        answer = await self.request("tools/call", params, timeout_s=timeout_s)
        content = answer.get("content")
        parts = content if isinstance(content, list) else []
        texts = [part.get("text") for part in parts if isinstance(part, dict)]
        text = "".join(each for each in texts if isinstance(each, str))
        if answer.get("isError") is True:
            raise McpError(f"`{tool}` failed: {_short(text) or 'it does not say why'}")
        if not isinstance(content, list):
            raise McpError(f"`{tool}` answered without content")
        return text

    async def request(
        self, method: str, params: object, *, timeout_s: float | None
    ) -> dict[str, object]:
        """Send a request and return its result.

        On timeout or cancellation, the request is withdrawn (`notifications/cancelled`).
        McpError: the server refuses. SandboxError: it is gone. TimeoutError: no answer in time.
        """
        if self._failure is not None:
            raise self._failure
        if len(self._pending) >= _MAX_PENDING:
            raise SandboxError(f"`{self._name}` owes {_MAX_PENDING} answers already")
        self._last_id += 1
        number = self._last_id
        self._send({"id": number, "method": method, "params": params})
        answer = asyncio.get_running_loop().create_future()
        self._pending[number] = answer
        try:
            async with asyncio.timeout(timeout_s):
                message = await answer
        except (TimeoutError, asyncio.CancelledError):
            about = {"requestId": number, "reason": "nobody waits any more"}
            with contextlib.suppress(SandboxError):
                self._send({"method": "notifications/cancelled", "params": about})
            raise
        finally:
            del self._pending[number]
        return self._result(method, message)

    async def close(self, grace_s: float = 2.0, *, at_once: bool = False) -> None:
        """End the server and fail all pending requests. Never raises.

        A server without pending requests gets `grace_s` to exit by itself, unless `at_once`.
        """
        may_go = not (at_once or self.lost or self._pending)
        self._fail("it was closed")
        for task in self._tasks:
            task.cancel()
        try:
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if may_go:
                await self._hang_up(grace_s)
        finally:
            await self._stream.end(grace_s)

    async def _hang_up(self, grace_s: float) -> None:
        """Close the server's stdin, as MCP specifies, and wait until it has exited."""
        with contextlib.suppress(OSError, TimeoutError):
            self._stream.socket.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(grace_s):
                await self._stream.wait()

    # --- Sending -----------------------------------------------------------------------------

    async def _greet(self, timeout_s: float) -> None:
        us = {"name": "kakoi", "version": "1"}
        params = {"protocolVersion": _REVISION, "capabilities": {}, "clientInfo": us}
        await self.request("initialize", params, timeout_s=timeout_s)
        self._send({"method": "notifications/initialized"})

    def _result(self, method: str, message: dict[str, object]) -> dict[str, object]:
        error = message.get("error")
        if error is not None:
            text = error.get("message") if isinstance(error, dict) else None
            why = _short(text) if isinstance(text, str) else "it does not say why"
            raise McpError(f"`{self._name}` refuses {method}: {why}")
        result = message.get("result")
        if not isinstance(result, dict):
            raise McpError(f"`{self._name}` answers {method} without a result")
        return result

    def _send(self, message: dict[str, object]) -> None:
        if self._failure is not None:
            raise self._failure
        line = json.dumps({"jsonrpc": "2.0", **message}).encode("ascii") + b"\n"
        if len(self._unsent) + len(line) > _MAX_UNSENT:
            raise self._fail("it does not read its input")
        self._unsent += line
        self._something_to_send.set()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._something_to_send.wait()
            self._something_to_send.clear()
            data, self._unsent = self._unsent, bytearray()
            try:
                await loop.sock_sendall(self._stream.socket, data)
            except OSError:
                return  # The reader also sees the end, after the server's last messages.

    # --- Receiving ---------------------------------------------------------------------------

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        buffer = bytearray()
        try:
            while chunk := await loop.sock_recv(self._stream.socket, 256 * 1024):
                *lines, rest = chunk.split(b"\n")
                for line in lines:
                    buffer += line
                    if len(buffer) <= self._max_line_bytes and buffer.strip():
                        self._take(bytes(buffer))
                    self._check(buffer)
                    buffer.clear()
                buffer += rest
                self._check(buffer)
                if self._failure is not None:
                    return
        except OSError:
            pass
        except _BreachError as breach:
            self._fail(str(breach))
            return
        # The server has exited or is about to. The rest of its stderr may still arrive.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await self._stream.wait()
        self._fail("it has ended")

    def _check(self, buffer: bytearray) -> None:
        if len(buffer) > self._max_line_bytes:
            raise _BreachError(f"it sent a line of more than {self._max_line_bytes} bytes")

    def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            shown = _short(line[:400].decode("utf-8", "replace"))
            raise _BreachError(f"it does not speak MCP: {shown}") from None
        if not isinstance(message, dict):
            return  # A batch or a bare value. We sent no batch, so it answers nothing.
        number, method = message.get("id"), message.get("method")
        if isinstance(method, str):
            if number is not None:
                self._answer(number, method)
        elif type(number) is int and number in self._pending:
            answer = self._pending[number]
            if not answer.done():
                answer.set_result(message)

    def _answer(self, number: object, method: str) -> None:
        """Answer a request of the server: `ping` gets an empty result, all others an error."""
        if not isinstance(number, int | str) or len(str(number)) > 100:
            raise _BreachError("it sent a request with an invalid id")
        refusal = {"code": _METHOD_NOT_FOUND, "message": "there is no such method here"}
        reply: dict[str, object] = {"result": {}} if method == "ping" else {"error": refusal}
        with contextlib.suppress(SandboxError):
            self._send({"id": number, **reply})

    def _fail(self, why: str) -> SandboxError:
        """Fail all pending requests and every later one. Returns the error."""
        if self._failure is None:
            self._failure = SandboxError(
                f"the line to `{self._name}` is lost: {why}{self._last_words()}"
            )
        for answer in self._pending.values():
            if not answer.done():
                answer.set_exception(self._failure)
        return self._failure

    def _last_words(self) -> str:
        stderr = _short(self._stream.stderr)
        return f"; its stderr: {stderr}" if stderr else ""


class _BreachError(Exception):
    """The server violates the protocol."""


def _short(text: str) -> str:
    """Return untrusted text as one short printable line for an error message."""
    shown = " ".join("".join(c if c.isprintable() else " " for c in text[:4000]).split())
    return shown if len(shown) <= 500 else shown[:497] + "..."
