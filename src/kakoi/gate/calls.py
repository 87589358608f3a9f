"""What a caller passes along with a command: labels, variables, and the text that is judged."""

import inspect
import re
import shlex
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import field, replace
from enum import Enum
from typing import Final

from kakoi._support.late import dataclass
from kakoi.channel.api import Command
from kakoi.errors import ConfigurationError, KakoiError, UserCancelledError
from kakoi.policy.decide import Decision, decide, is_for_any_shell
from kakoi.policy.rules import Policy, Verdict
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.frames import changes_the_shell


class Answer(Enum):
    """A person's answer. HERE: yes, and do not ask again for this in this workspace."""

    NO = "no"
    YES = "yes"
    HERE = "here"

    def __bool__(self) -> bool:
        return self is not Answer.NO


Approver = Callable[[Decision], Awaitable[bool | Answer]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLabels:
    """Labels in the audit log that say whose commands these are."""

    session: str = ""
    task: str = ""
    user: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Options of one call, besides its command.

    `variables`: variables that the agent wants to set. They are judged as assignments in front of
        the command. Variables in `Command.env` are the operator's own and are not judged.
    `approver`: whom to ask in this call, instead of the gate's approver.
    `before_asking`: called before a question is recorded and the approver asked; it raises to put
        the question off to a later call.
    `approved_by`: who has approved it in advance, such as a setting of the operator; recorded with
        the approval. Nobody is asked then; what the policy denies stays denied.
    `session`: the session label, instead of the gate's.
    `ready`: awaited after a job is allowed and before it starts; can refuse by raising.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    approver: Approver | None = None
    before_asking: Callable[[Decision], None] | None = None
    approved_by: str = ""
    session: str = ""
    ready: Callable[[], Awaitable[None]] | None = None


def judged_text(command: Command, variables: Mapping[str, str]) -> str:
    """Return the text to judge: the command, preceded by the assignments that it runs with."""
    words = command.command
    text = words if isinstance(words, str) else shlex.join(words)
    if not variables:
        return text
    return f"{format_assignments(variables)}\n{text}"


def depends_on_shell(command: Command, decision: Decision) -> bool:
    """Whether a shell other than bash might read the text differently (if it is not refused)."""
    is_text = isinstance(command.command, str)
    is_refused = decision.verdict is Verdict.DENY
    return is_text and not is_refused and not is_for_any_shell(decision.command)


def format_assignments(variables: Mapping[str, str]) -> str:
    """Return the variables as shell assignments."""
    for name in variables:
        if not re.fullmatch("[A-Za-z_][A-Za-z0-9_]*", name):
            raise ConfigurationError(f"{name!r} is not a valid variable name")
    return " ".join(f"{name}={shlex.quote(variables[name])}" for name in variables)


def with_variables(command: Command, variables: Mapping[str, str]) -> Command:
    """Return the command with these variables set."""
    return replace(command, env={**command.env, **variables}) if variables else command


async def answer_of(approver: Approver, decision: Decision) -> bool | Answer:
    """Ask, and return the answer. Anything but yes or no is a mistake, and must not mean yes."""
    asked: object = approver(decision)
    if not inspect.isawaitable(asked):
        raise ConfigurationError(
            f"`approve` returned {type(asked).__name__}; it must be an async function",
            hint="write `async def`; kakoi.sync.Sandbox also takes a plain function",
        )
    answer: object = await asked
    if not isinstance(answer, bool | Answer):
        raise ConfigurationError(
            f"`approve` returned {type(answer).__name__}; it must return True or False"
        )
    return answer


def lost_result(error: BaseException) -> ExecutionResult:
    """Return the result of a command whose sandbox failed."""
    details = error.details if isinstance(error, KakoiError) else {}
    if details.get("reason") is Reason.OUT_OF_MEMORY:
        return ExecutionResult(137, "", "", 0, reason=Reason.OUT_OF_MEMORY, error=str(error))
    return ExecutionResult(125, "", "", 0, reason=Reason.SANDBOX_LOST, error=str(error))


def cancelled_result() -> ExecutionResult:
    """Return the result of a command that was cancelled."""
    return ExecutionResult(130, "", "", 0, reason=Reason.CANCELLED)


def approval_error(decision: Decision, who: str) -> UserCancelledError:
    """Return the error for a command or file access that needs approval and did not get it."""
    if decision.allowed:
        return UserCancelledError(
            f"every {decision.kind} needs approval here, and {who}",
            decision=decision,
            details={"command": decision.command},
            hint="somebody has to answer, at a terminal or in an `approve` function",
        )
    worst = decision.findings[0]
    return UserCancelledError(
        f"this {decision.kind} needs approval, and {who}: {worst.reason}",
        decision=decision,
        details={"rule": worst.rule, "command": decision.command},
        hint=worst.hint,
    )


# They precede every later command, and appear in its audit record.
MOST_VARIABLES: Final = 64
MOST_CHARACTERS: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class CarriedVariables:
    """The variables that the next command gets, and why others are left behind."""

    variables: Mapping[str, str]
    left_behind: Mapping[str, str] = field(default_factory=dict)


def carry_variables(
    policy: Policy, had: Mapping[str, str], exports: Mapping[str, str | None], *, cwd: str
) -> CarriedVariables:
    """Decide which variables of one command the next command gets.

    They are judged as what they become: assignments in front of the next command. A variable that
    the policy would refuse there is not carried over. A variable that is carried over is judged
    again with every command that gets it.

    `had`: the carried variables that the command started with. `exports`: what it changed; None
    means unset.
    """
    kept = {name: value for name, value in had.items() if exports.get(name, value) is not None}
    left: dict[str, str] = {}
    wanted: dict[str, str] = {}
    for name, value in exports.items():
        if value is not None:
            wanted[name] = value
        elif name not in had:
            left[name] = "it cannot be unset permanently"
    if not _objection(policy, {**kept, **wanted}, cwd):
        return CarriedVariables({**kept, **wanted}, left)
    for name, value in wanted.items():
        # By itself first, so that the reason is about this variable.
        why = _objection(policy, {name: value}, cwd) or _objection(
            policy, {**kept, name: value}, cwd
        )
        if why:
            left[name] = why
        else:
            kept[name] = value
    return CarriedVariables(kept, left)


def _objection(policy: Policy, variables: Mapping[str, str], cwd: str) -> str:
    """Return why a command cannot get these variables; empty if it can."""
    if not variables:
        return ""
    text = format_assignments(variables)
    if len(variables) > MOST_VARIABLES or len(text) > MOST_CHARACTERS:
        return f"at most {MOST_VARIABLES} variables and {MOST_CHARACTERS} characters are kept"
    if any(map(changes_the_shell, variables)):
        return "it would change how the shell behaves"
    decision = decide(policy, text, cwd=cwd)
    if decision.verdict is Verdict.ALLOW:
        return ""
    return decision.findings[0].reason
