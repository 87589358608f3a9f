"""Connections to MCP servers that the settings name: programs and URLs.

Each connection is held open by its own task: a server that dies or breaks the protocol ends that
task and nothing else. Servers return plain JSON values; the caller must check them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import Any, Final, Protocol, TypeVar

from kakoi._support.late import dataclass
from kakoi._support.redact import redact
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.process.executor import ProcessExecutor
from kakoi.process.mcp_stdio import McpLine
from kakoi.process.stream import Launch

_T = TypeVar("_T")
_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
# For one HTTP response, or everything a server sends unasked while connected.
_MAX_STREAM_BYTES: Final = 32 * 1024 * 1024
_MOST_PAGES: Final = 16
_GOODBYE_S: Final = 10.0
# The variables that a started program gets from our environment; keys are not among them.
PASSED_ON: Final = ("HOME", "LANG", "LOGNAME", "PATH", "TERM", "TMPDIR", "USER")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """An MCP server: either the command that starts it or its URL.

    `headers` are sent to `url`; `env` is the whole environment of `command`. Both can hold secrets.
    """

    name: str
    command: Sequence[str] = ()
    url: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = 120.0

    def __post_init__(self) -> None:
        if bool(self.command) == bool(self.url):
            raise ConfigurationError(
                f"the MCP server `{self.name}` needs either a command or a url",
                hint="agent.mcp_servers: [{name: NAME, command: [PROGRAM, ARGUMENT]}]",
            )


class ServerConnection(Protocol):
    """An open connection to an MCP server."""

    async def tools(self) -> list[object]:
        """Return the server's description of each of its tools."""
        ...

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> object:
        """Return the answer to a call. Raises if the server refuses or is gone."""
        ...


Opening = AbstractAsyncContextManager[ServerConnection]


class ToolServer:
    """One server, held by its own task. `error`: why it cannot be used, if so."""

    def __init__(self, name: str, opening: Opening, *, timeout_s: float) -> None:
        self.name = name
        self.error = ""
        self._opening = opening
        self._timeout_s = timeout_s
        self._connection: asyncio.Future[ServerConnection] = (
            asyncio.get_running_loop().create_future()
        )
        self._closing = asyncio.Event()
        self._holding = asyncio.ensure_future(self._hold())

    async def tools(self) -> list[object]:
        """Return its tools; empty if it cannot be used, and then `error` says why."""
        try:
            return await self._ask(lambda connection: connection.tools())
        except SandboxError as error:
            self.error = self.error or str(error)
            return []

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> object:
        """Return the answer of a tool. Raises SandboxError."""
        return await self._ask(lambda connection: connection.call(tool, arguments))

    async def close(self) -> None:
        """Disconnect. Never raises, never waits for long."""
        self._closing.set()
        await asyncio.wait([self._holding], timeout=_GOODBYE_S)
        self._holding.cancel()
        await asyncio.gather(self._holding, return_exceptions=True)

    async def _hold(self) -> None:
        try:
            async with self._opening as connection:
                self._connection.set_result(connection)
                await self._closing.wait()
        except Exception as error:
            # Any error is the server's; the loop continues without it.
            self.error = self.error or _describe(error)
        finally:
            self._connection.cancel()

    async def _ask(
        self, question: Callable[[ServerConnection], Coroutine[object, object, _T]]
    ) -> _T:
        asking = asyncio.ensure_future(self._question(question))
        try:
            await asyncio.wait(
                [asking, self._holding],
                timeout=self._timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not asking.done() and self._holding.done():
                # Its last answer may have arrived together with its end.
                await asyncio.wait([asking], timeout=0.1)
        finally:
            ended_by_itself = asking.done()
            asking.cancel()
            await asyncio.wait([asking], timeout=_GOODBYE_S)
        if ended_by_itself and not asking.cancelled():
            return asking.result()
        if self._holding.done():
            raise SandboxError(f"the MCP server `{self.name}` is gone{_suffix(self.error)}")
        raise SandboxError(
            f"the MCP server `{self.name}` did not answer within {self._timeout_s:g} s"
        )

    async def _question(
        self, question: Callable[[ServerConnection], Coroutine[object, object, _T]]
    ) -> _T:
        connection = await asyncio.shield(self._connection)
        try:
            return await question(connection)
        except Exception as error:
            raise SandboxError(
                f"the MCP server `{self.name}` failed: {_describe(error)}"
            ) from error


def _suffix(error: str) -> str:
    return f": {error}" if error else ""


def _describe(error: BaseException) -> str:
    """Return the error in one line: the first error of a group, without secrets."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    words = " ".join(str(error).split())[:500] or type(error).__name__
    return redact(words)


# --- A program -------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def start_server(spec: ServerSpec) -> AsyncIterator[ServerConnection]:
    """Start a server under a keeper: none of its processes outlive the block."""
    launch = Launch(argv=list(spec.command), env=dict(spec.env), kept=True)
    line = await McpLine.open(
        ProcessExecutor(), launch, timeout_s=spec.timeout_s, max_line_bytes=_MAX_LINE_BYTES
    )
    try:
        yield _ProgramConnection(line)
    finally:
        await line.close()


class _ProgramConnection:
    def __init__(self, line: McpLine) -> None:
        self._connection = line

    async def tools(self) -> list[object]:
        found: list[object] = []
        params: dict[str, object] = {}
        for _page in range(_MOST_PAGES):
            answer = await self._connection.request("tools/list", params, timeout_s=None)
            tools = answer.get("tools")
            found += tools if isinstance(tools, list) else []
            cursor = answer.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                break
            params = {"cursor": cursor}
        return found

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> object:
        params = {"name": tool, "arguments": dict(arguments)}
        return await self._connection.request("tools/call", params, timeout_s=None)


# --- A URL -----------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def connect_to_url(spec: ServerSpec) -> AsyncIterator[ServerConnection]:
    """Connect to a server at a URL (streamable HTTP), through the SDK."""
    # Imported late: it is an extra, takes long, and few agents use such a server.
    try:
        from mcp import Client
        from mcp.client.streamable_http import streamable_http_client
    except ModuleNotFoundError:
        raise ConfigurationError("a server at a URL needs: pip install 'kakoi[mcp]'") from None

    from kakoi.agents.http import restricted_client

    async with restricted_client(
        headers=spec.headers, timeout_s=spec.timeout_s, max_bytes=_MAX_STREAM_BYTES
    ) as http:
        transport = streamable_http_client(spec.url, http_client=http)
        async with Client(transport) as client:
            yield _SdkConnection(client)


class _SdkConnection:
    def __init__(self, client: Any) -> None:
        self._client = client

    async def tools(self) -> list[object]:
        found: list[object] = []
        cursor = None
        for _page in range(_MOST_PAGES):
            answer = await self._client.list_tools(cursor=cursor)
            found += [tool.model_dump(mode="json", by_alias=True) for tool in answer.tools]
            cursor = answer.next_cursor
            if not cursor:
                break
        return found

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> object:
        answer = await self._client.call_tool(tool, dict(arguments))
        result: object = answer.model_dump(mode="json", by_alias=True)
        return result
