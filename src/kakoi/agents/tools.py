"""MCPToolClient: kakoi's tools and those of MCP servers, under names that every model accepts.

kakoi's tools keep their names and are called directly. Tools of servers get the name of their
server as a prefix, so that none can pose as ours. What servers return is checked, limited in
length, and passed to the model unchanged.
"""

import asyncio
import contextlib
import hashlib
import json
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, Final

from kakoi._support.late import dataclass, pattern
from kakoi._support.text import shown
from kakoi.agents.command_prompt import OWN_SERVER
from kakoi.agents.command_server import CommandServer
from kakoi.agents.conversation import ToolDescription, ToolReply, ToolRequest, is_too_deep
from kakoi.agents.servers import ServerSpec, ToolServer, connect_to_url, start_server
from kakoi.errors import ConfigurationError, KakoiError
from kakoi.policy.decide import Decision
from kakoi.policy.explanation import format_decision, without_hints
from kakoi.tools.approval import ApprovalAnswer, Question, UserContact
from kakoi.tools.arguments import input_schema
from kakoi.tools.catalogue import COMMAND_TOOLS, TOOLS
from kakoi.tools.replies import error_reply
from kakoi.tools.toolset import Toolset

_NAME: Final = pattern(r"[^A-Za-z0-9_-]")
_LONGEST_NAME: Final = 64
_LONGEST_DOC: Final = 4096
_LONGEST_SCHEMA: Final = 32 * 1024
_MOST_TOOLS: Final = 128
DEFAULT_OUTPUT_CHARS: Final = 32_000
_NO_ARGUMENTS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
# Asks the user a question.
AskUser = Callable[[Question], Coroutine[object, object, ApprovalAnswer]]


@dataclass(frozen=True, slots=True)
class _ServerTool:
    server: ToolServer | CommandServer
    name: str


class MCPToolClient:
    """All tools that a model has. `problems`: servers and tools that cannot be used, and why.

    `own`: kakoi's tools, if the model has them; `ask`: asks the user for approval of what they do.
    `name`: the name of the server that kakoi's tools belong to.
    `runs_commands`: whether kakoi's own tools include those that run commands.
    """

    def __init__(
        self,
        own: Toolset | None = None,
        *,
        name: str = OWN_SERVER,
        runs_commands: bool = True,
        ask: AskUser | None = None,
        output_chars: int = DEFAULT_OUTPUT_CHARS,
    ) -> None:
        self.problems: list[str] = []
        self._own = own
        self._name = name
        self._contact = None if ask is None else UserContact(ask=ask)
        self._output_chars = output_chars
        self._server_tools: dict[str, _ServerTool] = {}
        self._descriptions: dict[str, ToolDescription] = {}
        for tool, spec in TOOLS.items() if own is not None else ():
            if tool in COMMAND_TOOLS and not runs_commands:
                continue
            schema = input_schema(spec.arguments)
            self._descriptions[tool] = ToolDescription(name=tool, doc=spec.doc, schema=schema)

    @property
    def tools(self) -> Sequence[ToolDescription]:
        """Every tool, each name once."""
        return list(self._descriptions.values())

    async def call_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolReply:
        """Call a tool by its qualified name: `command-executor/execute_command`, `SERVER/TOOL`."""
        return await self.call(ToolRequest(id="call", tool=name, arguments=arguments))

    async def call(self, request: ToolRequest) -> ToolReply:
        """Call the tool. A tool that fails, hangs or is gone also gives a reply."""
        name = self._offered_name(request.tool)
        if name not in self._descriptions:
            known = ", ".join(self._descriptions)
            text = f"there is no tool {shown(request.tool)[:64]!r}; the tools are {known}"
            return ToolReply(request=request, text=text, is_error=True)
        server_tool = self._server_tools.get(name)
        if server_tool is not None:
            return await self._call_server(request, server_tool)
        assert self._own is not None  # noqa: S101 - every other tool is one of ours
        result = await self._own.call(name, request.arguments, contact=self._contact)
        text = shorten_output(result.text, self._output_chars, result.meta)
        return ToolReply(request=request, text=text, is_error=result.is_error, meta=result.meta)

    def _offered_name(self, name: str) -> str:
        """Return the name that the model was offered for a qualified one."""
        server, _, tool = name.rpartition("/")
        if server == self._name and tool in TOOLS and tool in self._descriptions:
            return tool
        theirs = f"{server}__{tool}"
        return theirs if theirs in self._server_tools else name

    async def _call_server(self, request: ToolRequest, tool: _ServerTool) -> ToolReply:
        try:
            answer = await tool.server.call(tool.name, request.arguments)
        except KakoiError as error:
            reply = error_reply(error)
            return ToolReply(request=request, text=reply.text, is_error=True, meta=reply.meta)
        content = answer.get("content") if isinstance(answer, dict) else None
        if not isinstance(answer, dict) or not isinstance(content, list) or is_too_deep(answer):
            text = f"the MCP server `{tool.server.name}` returned an invalid result"
            return ToolReply(request=request, text=text, is_error=True)
        texts = list(_texts(content))
        if not texts and answer.get("structuredContent") is not None:
            texts = [json.dumps(answer["structuredContent"], ensure_ascii=False)]
        # Without its metadata: servers are not trusted about verdicts and jobs.
        return ToolReply(
            request=request,
            text=shorten_output("\n".join(texts), self._output_chars, {}),
            is_error=answer.get("isError") is True,
        )

    # --- Names -------------------------------------------------------------------------------

    def add(self, server: ToolServer | CommandServer, tools: Sequence[object]) -> None:
        """Add the tools of a server. Invalid ones are left out and listed in `problems`."""
        if server.error:
            self.problems.append(f"the MCP server `{server.name}` cannot be used: {server.error}")
        if len(tools) > _MOST_TOOLS:
            self.problems.append(
                f"the MCP server `{server.name}` has {len(tools)} tools; "
                f"only the first {_MOST_TOOLS} are used"
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
                    "has an unsupported input schema"
                )
                continue
            offered = self._free_name(f"{server.name}__{name}")
            doc = described.get("description")
            self._server_tools[offered] = _ServerTool(server, name)
            self._descriptions[offered] = ToolDescription(
                name=offered,
                doc=doc[:_LONGEST_DOC] if isinstance(doc, str) else "",
                schema=schema,
            )

    def leave_out(self, names: Collection[str]) -> None:
        """Remove these tools, also where another server has them. A project's rules can do that."""
        for name in [other for each in names for other in (each, f"{self._name}__{each}")]:
            self._descriptions.pop(name, None)
            self._server_tools.pop(name, None)

    def _free_name(self, wanted: str) -> str:
        """Return an unused name that models accept; the same tools always get the same names."""
        name = _NAME.sub("_", wanted)
        if name != wanted or len(name) > _LONGEST_NAME or name in self._descriptions:
            digest = hashlib.sha256(wanted.encode("utf-8", "replace")).hexdigest()[:8]
            name = f"{name[: _LONGEST_NAME - 9]}_{digest}"
        while name in self._descriptions:
            name = f"{name[: _LONGEST_NAME - 1]}_" if len(name) < _LONGEST_NAME else f"_{name[:-1]}"
        return name


@contextlib.asynccontextmanager
async def open_tools(
    own: Toolset | None,
    others: Sequence[ServerSpec] = (),
    *,
    name: str = OWN_SERVER,
    executor: ServerSpec | None = None,
    ask: AskUser | None = None,
    output_chars: int = DEFAULT_OUTPUT_CHARS,
) -> AsyncIterator[MCPToolClient]:
    """Open our own tools and those of servers; all connections are closed at the end.

    A server that cannot be reached is listed in `problems`; it is not an error.
    `executor`: a server that runs the commands instead of our own tools; it must be usable.
    """
    runs_commands = executor is None
    client = MCPToolClient(
        own, name=name, runs_commands=runs_commands, ask=ask, output_chars=output_chars
    )
    specs = [*others, *([executor] if executor is not None else [])]
    servers = [
        ToolServer(
            spec.name,
            start_server(spec) if spec.command else connect_to_url(spec),
            timeout_s=spec.timeout_s,
        )
        for spec in specs
    ]
    try:
        if executor is not None:
            runner = await _command_server(servers[-1], own, ask)
            client.add(runner, await runner.tools())
            client.problems += [
                f"the tool `{each}` of the MCP server `{runner.name}`: its calls cannot be judged"
                for each in runner.left_out
            ]
        ordinary = servers[: len(others)]
        found = await asyncio.gather(*(server.tools() for server in ordinary))
        for server, tools in zip(ordinary, found, strict=True):
            client.add(server, tools)
        yield client
    finally:
        await asyncio.gather(*(server.close() for server in servers))


async def _command_server(
    server: ToolServer, own: Toolset | None, ask: AskUser | None
) -> CommandServer:
    """The server, for the container that our own tools work in."""
    sandbox = None if own is None else await own.gate.open_sandbox()
    container = getattr(sandbox, "container_id", "")
    if own is None or not container:
        raise ConfigurationError(
            "tasks.mcp_server.command names another server, but there is no container whose id "
            "could be passed to it",
            hint="remove it, or let tasks run in a container (`tasks.place`)",
        )
    approver = None if ask is None else _approver(ask)
    return CommandServer(server, own.gate, container, own.workspace, approver, [])


def _approver(ask: AskUser) -> Callable[[Decision], Coroutine[object, object, bool]]:
    async def approve(decision: Decision) -> bool:
        question = Question(text=format_decision(without_hints(decision)), decision=decision)
        return await ask(question) is not ApprovalAnswer.NO

    return approve


# --- Answers of servers ----------------------------------------------------------------------


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


def shorten_output(text: str, limit: int, meta: Mapping[str, Any]) -> str:
    """Return a long text cut in the middle, with how to read the rest."""
    if len(text) <= limit:
        return text
    half = limit // 2
    job = meta.get("job_id")
    way = (
        f'; read_output(job_id="{job}", offset=…) returns all of it' if isinstance(job, str) else ""
    )
    cut = f"\n[… {len(text) - 2 * half} characters omitted{way} …]\n"
    return f"{text[:half]}{cut}{text[-half:]}"
