"""What comes with a command, and what is judged of it."""

import asyncio
import contextlib
import re
import shlex
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace

from kakoi.errors import ConfigurationError, KakoiError, UserCancelledError
from kakoi.policy.decide import Decision, is_for_any_shell
from kakoi.policy.rules import Verdict
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import Command

Approver = Callable[[Decision], Awaitable[bool]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels:
    """Whose commands these are, for the record."""

    session: str = ""
    task: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What one call of many brings along, beside its command.

    `variables`: what the agent wants to be set. They are judged as assignments in front of the
        command; those in `Command.env` are the operator's own and are not.
    `approver`: whom to ask in this call, instead of the gate's.
    `session`: the label, instead of the gate's.
    `ready`: is awaited when a job was let through, before it starts; may refuse by raising.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    approver: Approver | None = None
    session: str = ""
    ready: Callable[[], Awaitable[None]] | None = None


def judged_text(command: Command, variables: Mapping[str, str]) -> str:
    """The text that is judged: what runs, after the assignments that it runs with."""
    words = command.command
    text = words if isinstance(words, str) else shlex.join(words)
    if not variables:
        return text
    return f"{assignments(variables)}\n{text}"


def depends_on_its_shell(command: Command, decision: Decision) -> bool:
    """Whether a shell that is not bash may find something else in it, which is not refused yet."""
    is_text = isinstance(command.command, str)
    is_refused = decision.verdict is Verdict.DENY
    return is_text and not is_refused and not is_for_any_shell(decision.command)


def assignments(variables: Mapping[str, str]) -> str:
    """The variables as text of a shell that sets them."""
    for name in variables:
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigurationError(f"{name!r} is no name of a variable")
    return " ".join(f"{name}={shlex.quote(variables[name])}" for name in variables)


def with_variables(command: Command, variables: Mapping[str, str]) -> Command:
    """The command that has them set."""
    return replace(command, env={**command.env, **variables}) if variables else command


def lost_result(error: BaseException) -> ExecutionResult:
    """Of a command whose sandbox failed."""
    details = error.details if isinstance(error, KakoiError) else {}
    if details.get("reason") is Reason.OUT_OF_MEMORY:
        return ExecutionResult(137, "", "", 0, reason=Reason.OUT_OF_MEMORY, error=str(error))
    return ExecutionResult(125, "", "", 0, reason=Reason.SANDBOX_LOST, error=str(error))


def cancelled_result() -> ExecutionResult:
    """Of a command that was given up."""
    return ExecutionResult(130, "", "", 0, reason=Reason.CANCELLED)


def not_agreed(decision: Decision, who: str) -> UserCancelledError:
    """That a command needs approval and does not have it."""
    if not decision.findings:
        return UserCancelledError(
            f"every command needs approval here, and {who}", details={"command": decision.command}
        )
    worst = decision.findings[0]
    return UserCancelledError(
        f"this command needs approval, and {who}: {worst.reason}",
        details={"rule": worst.rule, "command": decision.command},
        hint=worst.hint,
    )


async def undisturbed(work: Coroutine[object, object, None]) -> None:
    """Wait for `work`, which has an end, whoever interrupts."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([task])
