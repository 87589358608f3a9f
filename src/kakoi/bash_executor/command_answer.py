"""Results of the gate as the blocking interface returns or raises them."""

from kakoi._support.late import dataclass
from kakoi.errors import (
    ExecutionTimeoutError,
    KakoiError,
    SandboxError,
    SecurityError,
    TimeoutError,
)
from kakoi.results import ExecutionResult, Reason, mark_truncated


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The answer to one command. `error` and `code`: why there is no result; empty if there is."""

    stdout: str
    stderr: str
    cwd: str
    exit_code: int
    error: str = ""
    code: str = ""

    @property
    def ok(self) -> bool:
        """True if the command ended by itself with exit code 0."""
        return self.exit_code == 0 and not self.error

    def as_dict(self) -> dict[str, str]:
        """Return the answer as `execute` returns it: every value is a string."""
        fields = {
            "stdout": self.stdout,
            "stderr": self.stderr,
            "cwd": self.cwd,
            "exit_code": str(self.exit_code),
        }
        return fields | {"error": self.error, "code": self.code} if self.error else fields


def answer_from_result(
    result: ExecutionResult, *, cwd: str, limit_s: float, note: str
) -> CommandAnswer:
    """Return the answer; raise if the command timed out or lost its sandbox.

    `note`: a line to append to stderr.
    """
    stdout, stderr = _output(result)
    if result.reason in (Reason.TIMED_OUT, Reason.IDLE_TIMEOUT):
        raise ExecutionTimeoutError(
            f"Command timed out after {limit_s:g}s",
            details={"timeout": limit_s * 1000, "stdout": stdout, "stderr": stderr, "cwd": cwd},
            hint="raise `executor.timeout`, or run a shorter command",
        )
    if result.reason in (Reason.SANDBOX_LOST, Reason.CANCELLED):
        raise SandboxError(
            f"the sandbox was lost: {result.error}" if result.error else "the sandbox was lost",
            details={"stdout": stdout, "stderr": stderr, "cwd": cwd},
            hint="run it again: the next command opens a new sandbox",
        )
    if result.reason is Reason.NEVER_STARTED:
        note = f"kakoi: the command was not started: {result.error}\n"
    elif result.error:
        note = f"kakoi: {result.error}\n{note}"
    if note and stderr and not stderr.endswith("\n"):
        note = f"\n{note}"
    return CommandAnswer(stdout, stderr + note, cwd, result.exit_code)


def answer_from_error(error: KakoiError, *, cwd: str) -> CommandAnswer:
    """Return an error as one of several answers, with the exit code that `kakoi run` would use."""
    status = 125
    if isinstance(error, TimeoutError):
        status = 124
    elif isinstance(error, SecurityError):
        status = 126
    stdout, stderr = (str(error.details.get(name, "")) for name in ("stdout", "stderr"))
    return CommandAnswer(stdout, stderr, cwd, status, str(error), error.code)


def cancelled_answer(cwd: str) -> CommandAnswer:
    """Return the answer of a command that was stopped or not started because another one failed."""
    return CommandAnswer("", "", cwd, 130, "another command of the batch failed", "CANCELLED")


def _output(result: ExecutionResult) -> tuple[str, str]:
    stdout, stderr = result.stdout, result.stderr
    if result.stdout_truncated:
        stdout = mark_truncated(stdout, total_bytes=result.stdout_bytes)
    if result.stderr_truncated:
        stderr = mark_truncated(stderr, total_bytes=result.stderr_bytes)
    return stdout, stderr
