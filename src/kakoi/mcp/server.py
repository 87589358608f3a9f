"""The MCP server: translates requests for tools, resources and prompts, and their answers."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    Prompt,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
    Tool,
    ToolAnnotations,
)

from kakoi import __version__
from kakoi._support.late import dataclass
from kakoi._support.parsing import nearest
from kakoi._support.text import shown
from kakoi.agents.command_prompt import command_executor_prompt, read_project_template
from kakoi.audit import AuditRecord, encode, tail
from kakoi.errors import AuditError, ConfigurationError
from kakoi.mcp.approval import ApprovalNeeded, PendingQuestions, caller_from, user_contact
from kakoi.policy.description import policy_as_dict, policy_as_text
from kakoi.tools.approval import ANSWER_TIMEOUT_S
from kakoi.tools.arguments import Argument, input_schema
from kakoi.tools.catalogue import TOOLS, ToolSpec
from kakoi.tools.replies import ToolResult
from kakoi.tools.sessions import DEFAULT_SESSION, Caller, ToolSession
from kakoi.tools.toolset import Toolset

if TYPE_CHECKING:
    from kakoi.mcp.task_environments import TaskToolsets


def _no_questions() -> PendingQuestions:
    return PendingQuestions(time.monotonic, timeout_s=ANSWER_TIMEOUT_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The tools that a server offers, and what it needs besides. `name`: the server's name."""

    tools: "Toolset | TaskToolsets"
    name: str
    audit_file: Path
    questions: PendingQuestions = field(default_factory=_no_questions)

    def may_read(self, session: ToolSession, record: AuditRecord, *, named: bool) -> bool:
        """Whether the client of that session can read the record; with `named`, only that session.

        On stdio the client belongs to the user of the log, and can read what happened in this
        workspace or these environments; an HTTP client can read about its own calls.
        """
        is_here = self.tools.is_about(record)
        if named:
            return is_here and record.session == session.label
        return is_here and (
            session.caller == Caller() or record.session.startswith(session.label_prefix)
        )


RequestContext = ServerRequestContext[Any, Any]
_META: Final = "kakoi"
_AUDIT_RECORDS: Final = 200
_PROMPT: Final = "command_execution"
_AUDIT, _POLICY, _POLICY_JSON = "kakoi://audit", "kakoi://policy", "kakoi://policy.json"
_JSONL: Final = "application/jsonl"
_INSTRUCTIONS: Final = (
    "Commands run in a sandbox with the workspace {workspace}. A policy judges every one first: "
    "a refusal says why and what to do instead; do not try to get around it. A command that takes "
    "longer than `yield_ms` continues as a job: read_output, write_stdin, stop_command. "
    "check_command says what would be refused."
)


def make_server(state: ServerState) -> Server[Any]:
    """Return the server for `state`."""
    handlers = _Handlers(state)
    return Server(
        state.name,
        version=__version__,
        title="kakoi",
        instructions=_INSTRUCTIONS.format(workspace=shown(state.tools.workspace)),
        get_tool_input_schema=handlers.input_schema,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_resource_templates,
        on_read_resource=handlers.read_resource,
        on_list_prompts=handlers.list_prompts,
        on_get_prompt=handlers.get_prompt,
    )


class _Handlers:
    def __init__(self, state: ServerState) -> None:
        self._state = state

    # --- Tools -------------------------------------------------------------------------------

    def input_schema(self, name: str) -> dict[str, Any] | None:
        spec = TOOLS.get(self._own_name(name))
        return None if spec is None else input_schema(self._state.tools.arguments_of(spec))

    async def list_tools(
        self, _context: RequestContext, _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        arguments_of = self._state.tools.arguments_of
        return ListToolsResult(
            tools=[_tool(name, spec, arguments_of(spec)) for name, spec in TOOLS.items()]
        )

    async def call_tool(
        self, context: RequestContext, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        name = self._own_name(params.name)
        if name not in TOOLS:
            raise MCPError(
                code=INVALID_PARAMS,
                message=f"there is no tool {params.name[:64]!r}{nearest(name, TOOLS)}",
            )

        async def report(spent_s: float, sentence: str) -> None:
            await context.session.report_progress(spent_s, None, sentence)

        try:
            result = await self._state.tools.call(
                name,
                params.arguments or {},
                caller=caller_from(context),
                contact=user_contact(context, params, self._state.questions),
                report=report,
            )
        except ApprovalNeeded as asking:
            return asking.result
        return _call_result(result)

    def _own_name(self, name: str) -> str:
        """Strip the name of the server, which some clients put in front of the tool name."""
        return name.removeprefix(f"{self._state.name}/")

    # --- Resources and prompts ---------------------------------------------------------------

    async def list_resources(
        self, _context: RequestContext, _params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        resources = (
            (_AUDIT, "audit log", f"Your last {_AUDIT_RECORDS} records.", _JSONL),
            (_POLICY, "policy", "What may run, and why.", "text/plain"),
            (_POLICY_JSON, "policy for programs", "What may run, as JSON.", "application/json"),
        )
        return ListResourcesResult(
            resources=[
                Resource(uri=uri, name=name, description=doc, mime_type=kind)
                for uri, name, doc, kind in resources
            ]
        )

    async def list_resource_templates(
        self, _context: RequestContext, _params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        doc = "The last records of one session. Answers name their session."
        template = ResourceTemplate(
            uri_template=f"{_AUDIT}/{{session}}",
            name="audit log of a session",
            description=doc,
            mime_type=_JSONL,
        )
        return ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, context: RequestContext, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        uri = str(params.uri)
        policy = self._state.tools.policy
        if uri == _AUDIT or uri.startswith(f"{_AUDIT}/"):
            text, kind = await self._audit(context, uri.removeprefix(_AUDIT)[1:]), _JSONL
        elif uri == _POLICY:
            text, kind = policy_as_text(policy), "text/plain"
        elif uri == _POLICY_JSON:
            text, kind = json.dumps(policy_as_dict(policy), indent=2), "application/json"
        else:
            known = nearest(uri, (_AUDIT, _POLICY, _POLICY_JSON))
            message = f"there is no resource {uri[:100]!r}{known}"
            raise MCPError(code=INVALID_PARAMS, message=message)
        return ReadResourceResult(
            contents=[TextResourceContents(uri=uri, mime_type=kind, text=text)]
        )

    async def _audit(self, context: RequestContext, name: str) -> str:
        """Return the records that this client can read. They were redacted when written."""
        state, caller = self._state, caller_from(context)
        if not caller.is_connected and not name:
            hint = f"{_AUDIT}/SESSION has the records of a session that an answer named"
            raise MCPError(
                code=INVALID_PARAMS, message=f"your records cannot be identified; {hint}"
            )
        try:
            session = state.tools.session(caller, name or DEFAULT_SESSION)
            wanted = partial(state.may_read, session, named=bool(name))
            records = await asyncio.to_thread(tail, state.audit_file, _AUDIT_RECORDS, wanted)
        except (AuditError, ConfigurationError) as error:
            code = INTERNAL_ERROR if isinstance(error, AuditError) else INVALID_PARAMS
            message = f"{shown(str(error))}; {shown(error.hint)}"
            raise MCPError(code=code, message=message) from error
        return b"".join(encode(record) for record in records).decode("ascii")

    async def list_prompts(
        self, _context: RequestContext, _params: PaginatedRequestParams | None
    ) -> ListPromptsResult:
        doc = "Instructions for a model about running commands here."
        return ListPromptsResult(prompts=[Prompt(name=_PROMPT, description=doc)])

    async def get_prompt(
        self, _context: RequestContext, params: GetPromptRequestParams
    ) -> GetPromptResult:
        if params.name != _PROMPT:
            raise MCPError(
                code=INVALID_PARAMS,
                message=f"there is no prompt {params.name[:64]!r}; there is `{_PROMPT}`",
            )
        tools, template = self._state.tools, None
        try:
            if tools.is_local:
                template = await asyncio.to_thread(read_project_template, tools.workspace)
        except ConfigurationError as error:
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from error
        text = command_executor_prompt(tools.policy, template, server=self._state.name)
        return GetPromptResult(
            messages=[PromptMessage(role="user", content=TextContent(text=text))]
        )


def _tool(name: str, spec: ToolSpec, arguments: Mapping[str, Argument]) -> Tool:
    """Return the tool as clients see it. No output schema: some clients then show only that."""
    return Tool(
        name=name,
        title=spec.title,
        description=spec.doc,
        input_schema=input_schema(arguments),
        annotations=ToolAnnotations(
            title=spec.title,
            read_only_hint=spec.only_reads,
            destructive_hint=spec.destroys,
            idempotent_hint=spec.may_repeat or spec.only_reads,
            open_world_hint=spec.reaches_out,
        ),
    )


def _call_result(result: ToolResult) -> CallToolResult:
    return CallToolResult(
        content=[TextContent(text=result.text)],
        is_error=result.is_error,
        _meta={_META: dict(result.meta)} if result.meta else None,
    )
