"""The one exception tree.

KakoiError (also named BashExecutorError)     code, details, hint
├── ConfigurationError
├── SecurityError                     the policy said no (carries the Decision)
│   ├── CommandNotAllowedError
│   └── BlockedPatternError
├── UserCancelledError                a person said no
├── AuditError                        AUDIT_FAILED; what happens cannot be recorded, or read
├── ExecutionError                    no exit code could be had
│   └── TimeoutError                  also the builtin
└── SandboxError                      the place failed, not the command
    ├── EnvironmentUnavailableError   ENVIRONMENT_UNAVAILABLE
    ├── ImagePullError                IMAGE_PULL_FAILED
    └── ExecutionTimeoutError         EXECUTION_TIMEOUT; also TimeoutError: every `except` holds

An error states the fact (`str(error)`), carries a stable `code` for programs, `details` for
logs, and a `hint` at the way out. A command that exits with a non-zero status is no error.
"""

import builtins
from collections.abc import Mapping
from typing import ClassVar


class KakoiError(Exception):
    """Everything kakoi raises on purpose."""

    code: ClassVar[str] = "KAKOI_ERROR"

    def __init__(
        self,
        message: str,
        *,
        details: Mapping[str, object] | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details: dict[str, object] = dict(details or {})
        self.hint = hint

    def __str__(self) -> str:
        return self.message


BashExecutorError = KakoiError


class ConfigurationError(KakoiError):
    """A setting, a file or an argument is wrong, and the message says which."""

    code = "CONFIGURATION_ERROR"


class SecurityError(KakoiError):
    """The policy said no; `decision` says why, if there was one."""

    code = "COMMAND_REFUSED"

    def __init__(
        self,
        message: str,
        *,
        decision: object | None = None,
        details: Mapping[str, object] | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(message, details=details, hint=hint)
        self.decision = decision


class CommandNotAllowedError(SecurityError):
    """A program of the command is not on the list."""

    code = "COMMAND_NOT_ALLOWED"


class BlockedPatternError(SecurityError):
    """The text holds a pattern that the policy refuses outright."""

    code = "BLOCKED_PATTERN"


class EmptyCommandError(SecurityError, ValueError):
    """There is no command in the text. A ValueError too: it is the caller's slip."""

    code = "EMPTY_COMMAND"


class UserCancelledError(KakoiError):
    """A person was asked and said no, or nobody was there to be asked."""

    code = "USER_CANCELLED"


class AuditError(KakoiError):
    """The audit log cannot be written or read; what cannot be recorded must not run."""

    code = "AUDIT_FAILED"


class ExecutionError(KakoiError):
    """The command could not be run to an exit code."""

    code = "EXECUTION_FAILED"


class TimeoutError(ExecutionError, builtins.TimeoutError):
    """The command ran longer than its limit; everything it started is dead."""

    code = "TIMED_OUT"


class SandboxError(KakoiError):
    """The place to run failed; the command is not to blame."""

    code = "SANDBOX_FAILED"


class EnvironmentUnavailableError(SandboxError):
    """No sandbox of the wanted kind can be used on this machine."""

    code = "ENVIRONMENT_UNAVAILABLE"


class ImagePullError(SandboxError):
    """A container image is neither here nor to be had."""

    code = "IMAGE_PULL_FAILED"


class ExecutionTimeoutError(SandboxError, TimeoutError):
    """A time limit ran out, in the words of spec B; every spec's `except` catches it."""

    code = "EXECUTION_TIMEOUT"
