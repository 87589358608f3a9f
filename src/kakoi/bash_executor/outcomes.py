"""What came of a command, in the words of spec C."""

from dataclasses import dataclass

from kakoi.errors import (
    ExecutionTimeoutError,
    KakoiError,
    SandboxError,
    SecurityError,
    TimeoutError,
)
from kakoi.results import ExecutionResult, Reason, mark_truncated


@dataclass(frozen=True, slots=True)
class Answer:
    """A result as the face gives it. `error` and `code`: there was none, and why."""

    stdout: str
    stderr: str
    cwd: str
    exit_code: int
    error: str = ""
    code: str = ""

    @property
    def ok(self) -> bool:
        """Did it end by itself, with 0?"""
        return self.exit_code == 0 and not self.error

    def as_dict(self) -> dict[str, str]:
        """As spec C has it: everything is text."""
        told = {
            "stdout": self.stdout,
            "stderr": self.stderr,
            "cwd": self.cwd,
            "exit_code": str(self.exit_code),
        }
        return told | {"error": self.error, "code": self.code} if self.error else told


def answer_of(result: ExecutionResult, *, cwd: str, limit_s: float, note: str) -> Answer:
    """The result, if there is one; else what spec C raises. `note`: one more line for stderr."""
    stdout, stderr = _output(result)
    if result.reason in (Reason.TIMED_OUT, Reason.IDLE_TIMEOUT):
        raise ExecutionTimeoutError(
            f"Command timed out after {limit_s:g}s",
            details={"timeout": limit_s * 1000, "stdout": stdout, "stderr": stderr, "cwd": cwd},
            hint="give it more time (`executor.timeout`), or less to do",
        )
    if result.reason in (Reason.SANDBOX_LOST, Reason.CANCELLED):
        raise SandboxError(
            f"the sandbox was lost: {result.error}" if result.error else "the sandbox was lost",
            details={"stdout": stdout, "stderr": stderr, "cwd": cwd},
            hint="run it again: the next command opens a new one",
        )
    if result.reason is Reason.NEVER_STARTED:
        note = f"kakoi: the command was not started: {result.error}\n"
    elif result.error:
        note = f"kakoi: {result.error}\n{note}"
    if note and stderr and not stderr.endswith("\n"):
        note = f"\n{note}"
    return Answer(stdout, stderr + note, cwd, result.exit_code)


def failed_answer(error: KakoiError, *, cwd: str) -> Answer:
    """An error as one of several answers, with the exit status that `kakoi run` would have."""
    status = 125
    if isinstance(error, TimeoutError):
        status = 124
    elif isinstance(error, SecurityError):
        status = 126
    stdout, stderr = (str(error.details.get(name, "")) for name in ("stdout", "stderr"))
    return Answer(stdout, stderr, cwd, status, str(error), error.code)


def cancelled_answer(cwd: str) -> Answer:
    """It was ended, or not begun, because another one failed."""
    return Answer("", "", cwd, 130, "another command of the batch failed", "CANCELLED")


def _output(result: ExecutionResult) -> tuple[str, str]:
    stdout, stderr = result.stdout, result.stderr
    if result.stdout_truncated:
        stdout = mark_truncated(stdout, total_bytes=result.stdout_bytes)
    if result.stderr_truncated:
        stderr = mark_truncated(stderr, total_bytes=result.stderr_bytes)
    return stdout, stderr
