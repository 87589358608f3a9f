"""An MCP server of the user's that runs a task's commands in its container, instead of kakoi.

Each command is judged, approved and recorded here before the call is passed on, with the id of the
task's container. Only tools that can be judged in this way are offered: they take the id of a
container and a command, and need nothing else. How a command runs and ends is up to the server.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi._support.text import shown
from kakoi.agents.servers import ToolServer
from kakoi.channel.api import Channel, Command
from kakoi.errors import ConfigurationError, SecurityError
from kakoi.gate import Approver, Call, Gate
from kakoi.results import ExecutionResult

_CONTAINER: Final = "container_id"
_COMMAND: Final = "command"
_FILLED: Final = frozenset((_CONTAINER, _COMMAND))
_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        _COMMAND: {"type": "string", "description": "The shell command."},
        _CONTAINER: {
            "type": "string",
            "description": "The id of your environment (optional); no other can be used.",
        },
    },
    "required": [_COMMAND],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class CommandServer:
    """The tools of `server` that run commands in `container`, behind `gate`.

    `directory`: where the server's commands start. `approver`: asked where the policy says so.
    `left_out`: the tools that cannot be judged.
    """

    server: ToolServer
    gate: Gate
    container: str
    directory: str
    approver: Approver | None
    left_out: list[str]

    @property
    def name(self) -> str:
        """The name of the server."""
        return self.server.name

    @property
    def error(self) -> str:
        """Why it cannot be used, if so."""
        return self.server.error

    async def tools(self) -> list[object]:
        """Return the tools that can be judged. ConfigurationError: there are none."""
        described = [each for each in await self.server.tools() if isinstance(each, dict)]
        usable = [each for each in described if _can_be_judged(each)]
        others = [each.get("name") for each in described if each not in usable]
        self.left_out.extend(shown(str(name))[:64] for name in others)
        if not usable:
            why = self.error or (
                f"none of its tools takes `{_CONTAINER}` and `{_COMMAND}` and needs nothing else, "
                "so kakoi cannot say where to run, and its commands could run on this machine"
            )
            raise ConfigurationError(
                f"tasks.mcp_server.command names a server that cannot be used: {why}",
                hint="remove it: kakoi then runs the commands itself",
            )
        return [{**each, "inputSchema": _SCHEMA} for each in usable]

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> object:
        """Judge the command, and pass the call on. Raises KakoiError."""
        command = self._command(arguments)
        answers: list[object] = []

        async def pass_on(_channel: Channel) -> ExecutionResult:
            given = {_CONTAINER: self.container, _COMMAND: command}
            answers.append(await self.server.call(tool, given))
            return _recorded(answers[0], self.name)

        asked = Command(command=command, cwd=self.directory)
        await self.gate.perform(asked, pass_on, Call(approver=self.approver))
        return answers[0]

    def _command(self, arguments: Mapping[str, Any]) -> str:
        """Return the command, if the arguments are what the schema says."""
        unknown = sorted(str(each) for each in arguments if each not in _FILLED)
        if unknown:
            raise ConfigurationError(
                f"there is no argument `{shown(unknown[0])[:64]}`; the tool takes `{_COMMAND}`"
            )
        container = arguments.get(_CONTAINER)
        if container not in (None, "", self.container):
            raise SecurityError(
                f"the environment {container!r:.80} is not yours", hint=f"omit `{_CONTAINER}`"
            )
        command = arguments.get(_COMMAND)
        if not isinstance(command, str):
            raise ConfigurationError(f"`{_COMMAND}` must be text")
        return command


def _can_be_judged(described: Mapping[str, Any]) -> bool:
    schema = described.get("inputSchema")
    properties = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(schema, dict) or not isinstance(properties, dict):
        return False
    required = schema.get("required", [])
    return (
        isinstance(described.get("name"), str)
        and all(_is_text(properties.get(name)) for name in _FILLED)
        and isinstance(required, Sequence)
        and _FILLED.issuperset(map(str, required))
    )


def _is_text(described: object) -> bool:
    return isinstance(described, dict) and described.get("type") == "string"


def _recorded(answer: object, server: str) -> ExecutionResult:
    """Return what can be recorded about the end of a command that a server ran."""
    result = answer if isinstance(answer, dict) else {}
    structured = result.get("structuredContent")
    code = structured.get("exit_code") if isinstance(structured, dict) else None
    if type(code) is int:
        return ExecutionResult(code, "", "", 0)
    failed = result.get("isError") is True
    ends = "reports a failure" if failed else "reports no exit code"
    return ExecutionResult(int(failed), "", "", 0, error=f"the MCP server `{server}` {ends}")
