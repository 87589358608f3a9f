"""The one exception tree.

KakoiError (also named BashExecutorError)     code, details, hint
├── ConfigurationError
├── SecurityError                     the policy said no (carries the Decision)
│   ├── CommandNotAllowedError
│   ├── BlockedPatternError
│   └── EmptyCommandError             also ValueError
├── UserCancelledError                a person said no
├── AuditError                        AUDIT_FAILED; what happens cannot be recorded, or read
├── SourceError                       SOURCE_FAILED; an issue tracker did not do what it was asked
├── QueueError                        QUEUE_FAILED; the queue of tasks cannot be used
├── CommandFailedError                COMMAND_FAILED; also RuntimeError; only of spec D's built-ins
├── ModelError                        MODEL_FAILED; a model could not be asked
├── ExecutionError                    no exit code could be had
│   └── TimeoutError                  also the builtin
└── SandboxError                      the place failed, not the command
    ├── EnvironmentUnavailableError   ENVIRONMENT_UNAVAILABLE
    ├── ImagePullError                IMAGE_PULL_FAILED
    ├── LimitError                    LIMIT_NOT_KEPT
    └── ExecutionTimeoutError         EXECUTION_TIMEOUT; also TimeoutError: every `except` holds

An error states the fact (`str(error)`), carries a stable `code` for programs, `details` for
logs, and a `hint` at the way out. A command that exits with a non-zero status is no error, but
for the built-in functions of spec D, which promise that something was done.
Facts are told in English; where spec B has words of its own, in those if the language of this
process (KAKOI_LANG, else its locale) is Japanese.
"""

import builtins
import os
from collections.abc import Mapping
from typing import ClassVar


class KakoiError(Exception):
    """Everything kakoi raises on purpose."""

    code: ClassVar[str] = "KAKOI_ERROR"
    in_japanese: ClassVar[str] = ""  # With the names of details in braces.

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
        if self.in_japanese and _language() == "ja":
            try:
                return self.in_japanese.format_map(self.details)
            except (KeyError, TypeError, ValueError):
                return self.message  # The fact is another one than the spec had in mind.
        return self.message


def _language() -> str:
    """The language of this process's messages, as two letters; empty if nothing says it."""
    names = ("KAKOI_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    return next((os.environ[name] for name in names if os.environ.get(name)), "")[:2]


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


class SourceError(KakoiError):
    """A place that tasks come from failed, or gave what it must not give.

    `details` has `status` (of its answer, 0 if there was none) and, where it says when to come
    again, `retry_after_s`.
    """

    code = "SOURCE_FAILED"


class QueueError(KakoiError):
    """The queue of tasks cannot be used, or a lease of it is no longer ours."""

    code = "QUEUE_FAILED"


class CommandFailedError(KakoiError, RuntimeError):
    """A command that was to succeed has not; `details` has what it said and its status."""

    code = "COMMAND_FAILED"


class ModelError(KakoiError):
    """The model could not be asked, or its answer was none.

    `is_passing`: the same question may be answered later; `wait_s` is when, if the server says so.
    `is_too_long`: the conversation does not fit into the model's window.
    """

    code = "MODEL_FAILED"

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        is_passing: bool = False,
        is_too_long: bool = False,
        wait_s: float | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.is_passing = is_passing
        self.is_too_long = is_too_long
        self.wait_s = wait_s


class ExecutionError(KakoiError):
    """The command could not be run to an exit code."""

    code = "EXECUTION_FAILED"


class TimeoutError(ExecutionError, builtins.TimeoutError):
    """The command ran longer than its limit; everything it started is dead."""

    code = "TIMED_OUT"


class SandboxError(KakoiError):
    """The place to run failed; the command is not to blame."""

    code = "SANDBOX_FAILED"


class LimitError(SandboxError):
    """A limit that was asked for by name would not hold in this sandbox."""

    code = "LIMIT_NOT_KEPT"


class EnvironmentUnavailableError(SandboxError):
    """No sandbox of the wanted kind can be used on this machine."""

    code = "ENVIRONMENT_UNAVAILABLE"
    in_japanese = "サンドボックス環境が利用できません: {environmentType}"


class ImagePullError(SandboxError):
    """A container image is neither here nor to be had."""

    code = "IMAGE_PULL_FAILED"
    in_japanese = "Dockerイメージの取得に失敗しました: {image}"


class ExecutionTimeoutError(SandboxError, TimeoutError):
    """A time limit ran out, in the words of spec B; every spec's `except` catches it."""

    code = "EXECUTION_TIMEOUT"
    in_japanese = "実行がタイムアウトしました: {timeout:.0f}ms"
