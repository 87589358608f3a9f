"""What comes with a command, and what is judged of it."""

import re
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace

from kakoi.audit import AuditEntry, Event
from kakoi.errors import ConfigurationError, UserCancelledError
from kakoi.policy.decide import Decision
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


def entry_of(
    decision: Decision, *, id: str, cwd: str, sandbox: str = "", session: str, labels: Labels
) -> AuditEntry:
    """What to record of a decision; without anything else that happens, that it was given."""
    denied = decision.verdict is Verdict.DENY
    return AuditEntry(
        event=Event.REFUSED if denied else Event.JUDGED,
        id=id,
        command=decision.command,
        cwd=cwd,
        sandbox=sandbox,
        verdict=decision.verdict.value,
        rules=tuple(finding.rule for finding in decision.findings),
        reason=decision.findings[0].reason if decision.findings else "",
        session=session or labels.session,
        task=labels.task,
        user=labels.user,
    )


def judged_text(command: Command, variables: Mapping[str, str]) -> str:
    """The text that is judged: what runs, after the assignments that it runs with."""
    words = command.command
    text = words if isinstance(words, str) else shlex.join(words)
    if not variables:
        return text
    return f"{assignments(variables)}\n{text}"


def assignments(variables: Mapping[str, str]) -> str:
    """The variables as text of a shell that sets them."""
    for name in variables:
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigurationError(f"{name!r} is no name of a variable")
    return " ".join(f"{name}={shlex.quote(variables[name])}" for name in variables)


def with_variables(command: Command, variables: Mapping[str, str]) -> Command:
    """The command that has them set."""
    return replace(command, env={**command.env, **variables}) if variables else command


def lost_result(error: str) -> ExecutionResult:
    """Of a command whose sandbox failed."""
    return ExecutionResult(125, "", "", 0, reason=Reason.SANDBOX_LOST, error=error)


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
