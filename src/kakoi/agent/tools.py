"""MCPToolClient: the tools of MCP servers, under names that every model takes.

Our own server's tools keep their names; those of others get the name of their server in front, so
that none can pass for ours. What servers say is checked, bounded, and told to the model as it is.
"""

import asyncio
import contextlib
import hashlib
import json
import re
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kakoi.agent.conversation import Offer, Reply, Request, is_too_deep
from kakoi.agent.servers import Ask, Server, ServerSpec, at_address, in_process, started
from kakoi.errors import KakoiError
from kakoi.printable import shown

_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_NAME: Final = 64
_LONGEST_DOC: Final = 4096
_LONGEST_SCHEMA: Final = 32 * 1024
_MOST_TOOLS: Final = 128
_META: Final = "kakoi"
DEFAULT_OUTPUT_CHARS: Final = 32_000
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class _Tool:
    server: Server
    name: str
    is_ours: bool


class MCPToolClient:
    """Every tool of every server. `problems`: servers and tools that cannot be used, and why."""

    def __init__(self, *, output_chars: int = DEFAULT_OUTPUT_CHARS) -> None:
        self.problems: list[str] = []
        self._output_chars = output_chars
        self._offers: dict[str, Offer] = {}
        self._tools: dict[str, _Tool] = {}

    @property
    def offers(self) -> Sequence[Offer]:
        """Every tool, each name once."""
        return list(self._offers.values())

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> Reply:
        """Spec A's way to call a tool (`command-executor/execute_command`)."""
        tool = name.rpartition("/")[2]
        return await self.call(Request(id="call", tool=tool, arguments=arguments))

    async def call(self, request: Request) -> Reply:
        """Do it. A tool that fails, hangs or is gone is a reply, too."""
        tool = self._tools.get(request.tool)
        if tool is None:
            known = ", ".join(self._offers)
            text = f"there is no tool {shown(request.tool)[:64]!r}; the tools are {known}"
            return Reply(request=request, text=text, is_error=True)
        try:
            answer = await tool.server.call(tool.name, request.arguments)
        except KakoiError as error:
            return Reply(request=request, text=shown(str(error)), is_error=True)
        return self._reply(request, answer, tool)

    def _reply(self, request: Request, answer: object, tool: _Tool) -> Reply:
        content = answer.get("content") if isinstance(answer, dict) else None
        if not isinstance(answer, dict) or not isinstance(content, list) or is_too_deep(answer):
            text = f"the MCP server `{tool.server.name}` answered with something that is no result"
            return Reply(request=request, text=text, is_error=True)
        texts = list(_texts(content))
        if not texts and answer.get("structuredContent") is not None:
            texts = [json.dumps(answer["structuredContent"], ensure_ascii=False)]
        meta = answer.get("_meta")
        # Only of ours: what others say of verdicts and jobs is not to be believed.
        told = meta.get(_META) if tool.is_ours and isinstance(meta, dict) else None
        facts = told if isinstance(told, dict) else {}
        return Reply(
            request=request,
            text=bounded("\n".join(texts), self._output_chars, facts),
            is_error=answer.get("isError") is True,
            meta=facts,
        )

    # --- Names -------------------------------------------------------------------------------

    def add(self, server: Server, tools: Sequence[object], *, is_ours: bool) -> None:
        """Offer these tools of a server. What is none is left out, and `problems` says so."""
        if server.why:
            self.problems.append(f"the MCP server `{server.name}` cannot be used: {server.why}")
        if len(tools) > _MOST_TOOLS:
            self.problems.append(
                f"the MCP server `{server.name}` has {len(tools)} tools; "
                f"the first {_MOST_TOOLS} are offered"
            )
        for described in tools[:_MOST_TOOLS]:
            name = described.get("name") if isinstance(described, dict) else None
            if not isinstance(described, dict) or not isinstance(name, str) or not name:
                self.problems.append(f"the MCP server `{server.name}` has a tool without a name")
                continue
            schema = described.get("inputSchema") or _NO_ARGUMENTS
            if not _is_schema(schema):
                self.problems.append(
                    f"the tool `{shown(name)[:64]}` of the MCP server `{server.name}` "
                    "describes its arguments in a way that cannot be passed on"
                )
                continue
            offered = self._free_name(name if is_ours else f"{server.name}__{name}")
            doc = described.get("description")
            self._tools[offered] = _Tool(server, name, is_ours)
            self._offers[offered] = Offer(
                name=offered,
                doc=doc[:_LONGEST_DOC] if isinstance(doc, str) else "",
                schema=schema,
            )

    def leave_out(self, names: Collection[str]) -> None:
        """Offer these tools no more: whoever tightens may do that."""
        for name in names:
            self._offers.pop(name, None)
            self._tools.pop(name, None)

    def _free_name(self, wanted: str) -> str:
        """A name that models take and nobody has; the same tools get the same names."""
        name = _NAME.sub("_", wanted)
        if name != wanted or len(name) > _LONGEST_NAME or name in self._tools:
            digest = hashlib.sha256(wanted.encode("utf-8", "replace")).hexdigest()[:8]
            name = f"{name[: _LONGEST_NAME - 9]}_{digest}"
        while name in self._tools:
            name = f"{name[: _LONGEST_NAME - 1]}_" if len(name) < _LONGEST_NAME else f"_{name[:-1]}"
        return name


@contextlib.asynccontextmanager
async def open_tools(
    own: object | None,
    others: Sequence[ServerSpec] = (),
    *,
    ask: Ask | None = None,
    output_chars: int = DEFAULT_OUTPUT_CHARS,
) -> AsyncIterator[MCPToolClient]:
    """The tools of our own server and of others; all lines are closed at the end.

    A server that cannot be reached is a problem, which the client tells, and no error.
    """
    client = MCPToolClient(output_chars=output_chars)
    servers = []
    if own is not None:
        servers.append(Server("kakoi", in_process(own, ask), timeout_s=None))
    for spec in others:
        opening = started(spec) if spec.command else at_address(spec)
        servers.append(Server(spec.name, opening, timeout_s=spec.timeout_s))
    try:
        found = await asyncio.gather(*(server.tools() for server in servers))
        for number, (server, tools) in enumerate(zip(servers, found, strict=True)):
            client.add(server, tools, is_ours=own is not None and number == 0)
        yield client
    finally:
        await asyncio.gather(*(server.close() for server in servers))


# --- What servers say ------------------------------------------------------------------------


def _is_schema(schema: object) -> bool:
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return False
    return not is_too_deep(schema) and len(json.dumps(schema)) <= _LONGEST_SCHEMA


def _texts(content: Sequence[object]) -> Iterator[str]:
    for part in content:
        if not isinstance(part, dict):
            continue
        text = part.get("text")
        inner = part.get("resource")
        if not isinstance(text, str) and isinstance(inner, dict):
            text = inner.get("text")
        if isinstance(text, str):
            yield text.encode("utf-8", "replace").decode()
        else:
            data = part.get("data")
            size = f", {len(data)} characters of base64" if isinstance(data, str) else ""
            yield f"[{shown(str(part.get('type')))[:32]}{size}: not shown]"


def bounded(text: str, limit: int, meta: Mapping[str, Any]) -> str:
    """A long text by its beginning and end, with how to get at the rest."""
    if len(text) <= limit:
        return text
    half = limit // 2
    job = meta.get("job_id")
    way = f'; read_output(job_id="{job}", offset=…) has all of it' if isinstance(job, str) else ""
    cut = f"\n[… {len(text) - 2 * half} characters left out{way} …]\n"
    return f"{text[:half]}{cut}{text[-half:]}"
