"""Runs a model's command for a framework: what the model reads, and who has approved it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from kakoi.errors import (
    ConfigurationError,
    KakoiError,
    SandboxError,
    SecurityError,
    UserCancelledError,
)
from kakoi.policy.decide import Decision
from kakoi.policy.explanation import format_decision
from kakoi.policy.rules import Verdict
from kakoi.results import ExecutionResult, Reason
from kakoi.sandbox.sandbox import Sandbox
from kakoi.tools.replies import (
    error_reply,
    format_blocked,
    format_ending,
    join_streams,
    with_trailer,
)

# The model can read why, and try another way.
REFUSALS: Final = (SecurityError, UserCancelledError, ConfigurationError)
NewSandbox = Callable[..., Sandbox]

# Set for the call that the framework's user has allowed, and for what that call awaits.
_IS_APPROVED: Final[ContextVar[bool]] = ContextVar("kakoi_is_approved", default=False)


@contextmanager
def approved(answer: object) -> Iterator[None]:
    """Let `approve_as_framework` answer yes in this block, if the framework's user said yes."""
    token = _IS_APPROVED.set(answer is True)
    try:
        yield
    finally:
        _IS_APPROVED.reset(token)


async def approve_as_framework(_decision: Decision) -> bool:
    """Answer as the framework's user did: `Sandbox(approve=approve_as_framework)`."""
    return _IS_APPROVED.get()


async def question_about(box: Sandbox, command: str) -> str:
    """Return what a person must be asked before `command` can run; empty: nothing."""
    return question_of(await box.check(command))


def question_of(decision: Decision) -> str:
    """Return what a person must be asked because of a decision; empty: nothing."""
    return format_decision(decision) if decision.verdict is Verdict.ASK else ""


async def reply_to_command(box: Sandbox, command: str, *, timeout: float | None = None) -> str:
    """Run a command and return what the model reads: its output and how it ended, or a refusal.

    Raises SandboxError if the sandbox failed, which is not the model's fault.
    """
    try:
        result = await box.run(command, timeout=timeout)
    except REFUSALS as error:
        return refusal_text(error)
    return result_text(result)


def refusal_text(error: KakoiError) -> str:
    """Return why a command did not run, with the hint."""
    return error_reply(error).text


def result_text(result: ExecutionResult) -> str:
    """Return the output of a command and how it ended. Raises SandboxError if that was lost."""
    check_kept(result)
    text, _ = join_streams(result.stdout, result.stderr)
    cut = "output truncated" if result.truncated else ""
    return with_trailer(text + format_blocked(result, text), *format_ending(result), cut)


def check_kept(result: ExecutionResult) -> None:
    """Raise SandboxError if the sandbox was lost while the command ran."""
    if result.reason is Reason.SANDBOX_LOST:
        raise SandboxError(result.error or "the sandbox was lost", details={"result": result})
