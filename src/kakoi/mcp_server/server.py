"""The MCP server: requests to tools, resources and prompts, and their answers."""

import asyncio
import json
import re
from functools import partial
from typing import Any, Final

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
)

from kakoi import __version__
from kakoi.agent.prompt import command_executor_prompt, own_template
from kakoi.audit import encode, tail
from kakoi.errors import (
    AuditError,
    ConfigurationError,
    KakoiError,
    SandboxError,
    UserCancelledError,
)
from kakoi.mcp_server.arguments import read_arguments, schema_of
from kakoi.mcp_server.asking import MustAsk, Person
from kakoi.mcp_server.callers import caller_of
from kakoi.mcp_server.house import House, ToolCall
from kakoi.mcp_server.replies import error_reply
from kakoi.mcp_server.sessions import DEFAULT_SESSION
from kakoi.mcp_server.tools import OFFERS
from kakoi.policy.describing import policy_as_dict, policy_as_text
from kakoi.printable import shown
from kakoi.sandbox.adapter import with_way_out
from kakoi.sections import nearest

Context = ServerRequestContext[Any, Any]
_SESSION_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_AUDIT_RECORDS: Final = 200
_PROMPT: Final = "command_execution"
_AUDIT, _POLICY, _POLICY_JSON = "kakoi://audit", "kakoi://policy", "kakoi://policy.json"
_JSONL: Final = "application/jsonl"
_INSTRUCTIONS: Final = (
    "Commands run in a sandbox with the workspace {workspace}. Every one is judged first: a "
    "refusal says why and what to do instead; do not try to get around it. A command that takes "
    "longer than `yield_ms` goes on as a job: read_output, write_stdin, stop_command. "
    "check_command says what would be refused."
)


def make_server(house: House) -> Server[Any]:
    """The server of `house`."""
    doors = _Handlers(house)
    return Server(
        house.name,
        version=__version__,
        title="kakoi",
        instructions=_INSTRUCTIONS.format(workspace=shown(house.workspace)),
        get_tool_input_schema=doors.input_schema,
        on_list_tools=doors.list_tools,
        on_call_tool=doors.call_tool,
        on_list_resources=doors.list_resources,
        on_list_resource_templates=doors.list_resource_templates,
        on_read_resource=doors.read_resource,
        on_list_prompts=doors.list_prompts,
        on_get_prompt=doors.get_prompt,
    )


class _Handlers:
    def __init__(self, house: House) -> None:
        self._house = house

    # --- Tools -------------------------------------------------------------------------------

    def input_schema(self, name: str) -> dict[str, Any] | None:
        offer = OFFERS.get(self._own_name(name))
        return None if offer is None else schema_of(offer.arguments)

    async def list_tools(
        self, _context: Context, _params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=[offer.tool(name) for name, offer in OFFERS.items()])

    async def call_tool(
        self, context: Context, params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        name = self._own_name(params.name)
        if name not in OFFERS:
            raise MCPError(
                code=INVALID_PARAMS,
                message=f"there is no tool {params.name[:64]!r}{nearest(name, OFFERS)}",
            )
        try:
            call = self._call(context, name, params)
        except KakoiError as error:
            return error_reply(error)
        try:
            return await OFFERS[name].work(self._house, call)
        except MustAsk as asking:
            return asking.result
        except UserCancelledError as error:
            return error_reply(error, await call.person.question())
        except SandboxError as error:
            return error_reply(await with_way_out(error, self._house.gate.sandbox))
        except (KakoiError, OSError) as error:
            return error_reply(error)

    def _own_name(self, name: str) -> str:
        """Spec A's clients put the name of the server in front."""
        return name.removeprefix(f"{self._house.name}/")

    def _call(self, context: Context, name: str, params: CallToolRequestParams) -> ToolCall:
        given = {key: value for key, value in (params.arguments or {}).items() if value is not None}
        arguments = read_arguments(OFFERS[name].arguments, given)
        session_name = _checked_name(arguments.get("session", DEFAULT_SESSION))
        session = self._house.sessions.get(caller_of(context), session_name)
        person = Person(context, params, session, self._house.questions)
        return ToolCall(
            context=context,
            session=session,
            person=person,
            given=frozenset(given),
            arguments=arguments,
        )

    # --- Resources and prompts ---------------------------------------------------------------

    async def list_resources(
        self, _context: Context, _params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        told = (
            (_AUDIT, "audit log", f"Your last {_AUDIT_RECORDS} records.", _JSONL),
            (_POLICY, "policy", "What may run, and why.", "text/plain"),
            (_POLICY_JSON, "policy for programs", "What may run, as JSON.", "application/json"),
        )
        return ListResourcesResult(
            resources=[
                Resource(uri=uri, name=name, description=doc, mime_type=kind)
                for uri, name, doc, kind in told
            ]
        )

    async def list_resource_templates(
        self, _context: Context, _params: PaginatedRequestParams | None
    ) -> ListResourceTemplatesResult:
        doc = "The last records of a session, by the name that an answer has told."
        template = ResourceTemplate(
            uri_template=f"{_AUDIT}/{{session}}",
            name="audit log of a session",
            description=doc,
            mime_type=_JSONL,
        )
        return ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, context: Context, params: ReadResourceRequestParams
    ) -> ReadResourceResult:
        uri = str(params.uri)
        policy = self._house.gate.policy
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

    async def _audit(self, context: Context, name: str) -> str:
        """The records that this client may read. Redacted already: so they were written."""
        house, caller = self._house, caller_of(context)
        if not caller.is_connected and not name:
            hint = f"{_AUDIT}/SESSION has the records of the session that an answer has named"
            raise MCPError(
                code=INVALID_PARAMS, message=f"nobody knows which records are yours; {hint}"
            )
        try:
            session = house.sessions.get(caller, name or DEFAULT_SESSION)
            wanted = partial(house.may_read, session, named=bool(name))
            records = await asyncio.to_thread(tail, house.audit_file, _AUDIT_RECORDS, wanted)
        except (AuditError, ConfigurationError) as error:
            code = INTERNAL_ERROR if isinstance(error, AuditError) else INVALID_PARAMS
            message = f"{shown(str(error))}; {shown(error.hint)}"
            raise MCPError(code=code, message=message) from error
        return b"".join(encode(record) for record in records).decode("ascii")

    async def list_prompts(
        self, _context: Context, _params: PaginatedRequestParams | None
    ) -> ListPromptsResult:
        doc = "What a model is to be told about commands here."
        return ListPromptsResult(prompts=[Prompt(name=_PROMPT, description=doc)])

    async def get_prompt(
        self, _context: Context, params: GetPromptRequestParams
    ) -> GetPromptResult:
        if params.name != _PROMPT:
            raise MCPError(
                code=INVALID_PARAMS,
                message=f"there is no prompt {params.name[:64]!r}; there is `{_PROMPT}`",
            )
        try:
            template = await asyncio.to_thread(own_template, self._house.workspace)
        except ConfigurationError as error:
            raise MCPError(code=INVALID_PARAMS, message=str(error)) from error
        text = command_executor_prompt(self._house.gate.policy, template)
        return GetPromptResult(
            messages=[PromptMessage(role="user", content=TextContent(text=text))]
        )


def _checked_name(session: str) -> str:
    if not _SESSION_NAME.fullmatch(session):
        raise ConfigurationError("`session` must be 1 to 64 of A-Z a-z 0-9 . _ -")
    return session
