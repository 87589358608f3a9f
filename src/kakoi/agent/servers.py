"""Lines to MCP servers: ours in this process, one that is started, one at an address.

Each line is held open by a task of its own: a server that dies or breaks the protocol ends that
task and nothing else. What comes over a line is plain JSON values; whoever asked has to check them.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeVar

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.process.executor import ProcessExecutor
from kakoi.process.stream import Launch
from kakoi.redact import redact
from kakoi.sandbox.mcp_line import McpLine

_T = TypeVar("_T")
_MAX_LINE_BYTES: Final = 4 * 1024 * 1024
# Of one answer over HTTP, or of all that a server says unasked while its line is open.
_MAX_STREAM_BYTES: Final = 32 * 1024 * 1024
_MOST_PAGES: Final = 16
_GOODBYE_S: Final = 10.0
# What a program that was started gets of our environment; keys are not among it.
PASSED_ON: Final = ("HOME", "LANG", "LOGNAME", "PATH", "TERM", "TMPDIR", "USER")
Ask = Callable[[str], Coroutine[object, object, bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """A server of somebody else's: how to start it, or where it is. One of the two.

    `headers` go to `url`, `env` is all that `command` gets. They may hold secrets.
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


class Line(Protocol):
    """An open line."""

    async def tools(self) -> list[object]:
        """What the server says of each of its tools."""
        ...

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> object:
        """What it answers to a call; raises if it refuses, or is gone."""
        ...


Opening = AbstractAsyncContextManager[Line]


class Server:
    """One server, held by a task of its own. `why`: what is wrong with it, if it cannot be used."""

    def __init__(self, name: str, opening: Opening, *, timeout_s: float | None) -> None:
        self.name = name
        self.why = ""
        self._opening = opening
        self._timeout_s = timeout_s
        self._line: asyncio.Future[Line] = asyncio.get_running_loop().create_future()
        self._closing = asyncio.Event()
        self._holding = asyncio.ensure_future(self._hold())

    async def tools(self) -> list[object]:
        """Its tools; none if it cannot be used, and `why` then says so."""
        try:
            return await self._ask(lambda line: line.tools())
        except SandboxError as error:
            self.why = self.why or str(error)
            return []

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> object:
        """What a tool answers. SandboxError: nothing, and why."""
        return await self._ask(lambda line: line.call(tool, arguments))

    async def close(self) -> None:
        """Let go of it. Never raises, never waits for long."""
        self._closing.set()
        await asyncio.wait([self._holding], timeout=_GOODBYE_S)
        self._holding.cancel()
        await asyncio.gather(self._holding, return_exceptions=True)

    async def _hold(self) -> None:
        try:
            async with self._opening as line:
                self._line.set_result(line)
                await self._closing.wait()
        except Exception as error:
            # Whatever it is, it is the server's, and the loop goes on without it.
            self.why = self.why or _told(error)
        finally:
            self._line.cancel()

    async def _ask(self, question: Callable[[Line], Coroutine[object, object, _T]]) -> _T:
        asking = asyncio.ensure_future(self._question(question))
        try:
            await asyncio.wait(
                [asking, self._holding],
                timeout=self._timeout_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
            if not asking.done() and self._holding.done():
                # Its last answer may have come with its end.
                await asyncio.wait([asking], timeout=0.1)
        finally:
            ended_by_itself = asking.done()
            asking.cancel()
            await asyncio.wait([asking], timeout=_GOODBYE_S)
        if ended_by_itself and not asking.cancelled():
            return asking.result()
        if self._holding.done():
            raise SandboxError(f"the MCP server `{self.name}` is gone{_because(self.why)}")
        raise SandboxError(
            f"the MCP server `{self.name}` has not answered within {self._timeout_s or 0:g} s"
        )

    async def _question(self, question: Callable[[Line], Coroutine[object, object, _T]]) -> _T:
        line = await asyncio.shield(self._line)
        try:
            return await question(line)
        except Exception as error:
            raise SandboxError(f"the MCP server `{self.name}` failed: {_told(error)}") from error


def _because(why: str) -> str:
    return f": {why}" if why else ""


def _told(error: BaseException) -> str:
    """What went wrong, in one line: the first cause of a group, without secrets."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    words = " ".join(str(error).split())[:500] or type(error).__name__
    return redact(words)


# --- A program -------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def started(spec: ServerSpec) -> AsyncIterator[Line]:
    """A server that is started, under a keeper: nothing of it outlives the block."""
    launch = Launch(argv=list(spec.command), env=dict(spec.env), kept=True)
    line = await McpLine.open(
        ProcessExecutor(), launch, timeout_s=spec.timeout_s, max_line_bytes=_MAX_LINE_BYTES
    )
    try:
        yield _Started(line)
    finally:
        await line.close()


class _Started:
    def __init__(self, line: McpLine) -> None:
        self._line = line

    async def tools(self) -> list[object]:
        found: list[object] = []
        params: dict[str, object] = {}
        for _page in range(_MOST_PAGES):
            answer = await self._line.request("tools/list", params, timeout_s=None)
            tools = answer.get("tools")
            found += tools if isinstance(tools, list) else []
            cursor = answer.get("nextCursor")
            if not isinstance(cursor, str) or not cursor:
                break
            params = {"cursor": cursor}
        return found

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> object:
        params = {"name": tool, "arguments": dict(arguments)}
        return await self._line.request("tools/call", params, timeout_s=None)


# --- By the SDK ------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def in_process(server: object, ask: Ask | None = None) -> AsyncIterator[Line]:
    """Our own server (`kakoi.mcp_server.server.make_server`), without a transport.

    `ask`: puts a question of its policy to a person. Without it the answer is no.
    """
    from mcp import Client
    from mcp_types import ElicitRequestFormParams, ElicitResult

    async def answer(_context: object, params: object) -> ElicitResult:
        agreed = False
        if isinstance(params, ElicitRequestFormParams) and ask is not None:
            agreed = await ask(params.message)
        return ElicitResult(action="accept" if agreed else "decline")

    callback: Any = answer if ask is not None else None
    async with Client(server, elicitation_callback=callback) as client:  # type: ignore[arg-type]  # A door's value, which this layer must not name.
        yield _BySdk(client)


@contextlib.asynccontextmanager
async def at_address(spec: ServerSpec) -> AsyncIterator[Line]:
    """A server at an address (streamable HTTP)."""
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    from kakoi.agent.wire import wary_client

    async with wary_client(
        headers=spec.headers, timeout_s=spec.timeout_s, max_bytes=_MAX_STREAM_BYTES
    ) as http:
        transport = streamable_http_client(spec.url, http_client=http)
        async with Client(transport) as client:
            yield _BySdk(client)


class _BySdk:
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
        told: object = answer.model_dump(mode="json", by_alias=True)
        return told
