"""OpenAI Agents: an executor for its `ShellTool`. `pip install 'kakoi[openai-agents]'`.

async with Sandbox(approve=approve_as_framework) as box:
    agent = Agent(name="Coder", tools=[shell_tool(box)])
"""

from typing import Any

from kakoi._support.extras import missing_framework

try:
    from agents import RunContextWrapper
    from agents.tool import (
        ShellActionRequest,
        ShellCallOutcome,
        ShellCommandOutput,
        ShellCommandRequest,
        ShellResult,
        ShellTool,
    )
except ModuleNotFoundError as error:
    raise missing_framework(error, extra="openai-agents") from error

from kakoi.integrations.commands import (
    REFUSALS,
    approve_as_framework,
    approved,
    check_kept,
    question_about,
    refusal_text,
)
from kakoi.results import Reason
from kakoi.sandbox.sandbox import Sandbox

__all__ = ["approve_as_framework", "shell_tool"]


def shell_tool(box: Sandbox) -> ShellTool:
    """Return the tool of an agent whose commands run in a sandbox.

    Calls with a command that needs approval are interruptions of the run. If the sandbox has
    `approve=approve_as_framework`, a call that was approved runs.
    """

    asked: set[str] = set()

    async def needs_approval(
        context: RunContextWrapper[Any], action: ShellActionRequest, call_id: str
    ) -> bool:
        if any([await question_about(box, command) for command in action.commands]):
            asked.add(call_id)
        return call_id in asked

    async def execute(request: ShellCommandRequest) -> ShellResult:
        action = request.data.action
        timeout = action.timeout_ms / 1000 if action.timeout_ms else None
        # A call that was asked about gets here only if it was approved.
        with approved(request.data.call_id in asked):
            output = [await _output(box, command, timeout) for command in action.commands]
        return ShellResult(output, max_output_length=action.max_output_length)

    return ShellTool(executor=execute, needs_approval=needs_approval)


async def _output(box: Sandbox, command: str, timeout: float | None) -> ShellCommandOutput:
    try:
        result = await box.run(command, timeout=timeout)
    except REFUSALS as error:
        ended = ShellCallOutcome("exit", 126)
        return ShellCommandOutput("", f"{refusal_text(error)}\n", ended, command)
    check_kept(result)
    is_late = result.reason in (Reason.TIMED_OUT, Reason.IDLE_TIMEOUT)
    ended = ShellCallOutcome("timeout") if is_late else ShellCallOutcome("exit", result.exit_code)
    data = {"reason": str(result.reason)}
    return ShellCommandOutput(
        result.stdout, result.stderr or result.error, ended, command, provider_data=data
    )
