"""The one exception tree.

KakoiError (also named BashExecutorError)     code, details, hint
├── ConfigurationError
│   └── UnsupportedError              UNSUPPORTED; this sandbox cannot do it
├── SecurityError                     the policy refused it (carries the Decision)
│   ├── CommandNotAllowedError
│   ├── BlockedPatternError
│   └── EmptyCommandError             also ValueError
├── UserCancelledError                a person declined
├── AuditError                        AUDIT_FAILED; the audit log cannot be written or read
├── SourceError                       SOURCE_FAILED; a request to an issue tracker failed
├── QueueError                        QUEUE_FAILED; the task queue cannot be used
├── FileError                         FILE_ERROR; also OSError; a file in a sandbox
│   └── MissingFileError              FILE_MISSING; also FileNotFoundError
├── CommandFailedError                COMMAND_FAILED; also RuntimeError; where success is required
├── ModelError                        MODEL_FAILED; a request to a model failed
├── ExecutionError                    the command has no exit code
│   └── TimeoutError                  also the builtin
└── SandboxError                      the sandbox failed, not the command
    ├── EnvironmentUnavailableError   ENVIRONMENT_UNAVAILABLE
    ├── ImagePullError                IMAGE_PULL_FAILED
    ├── LimitError                    LIMIT_NOT_ENFORCED
    └── ExecutionTimeoutError         EXECUTION_TIMEOUT; also TimeoutError

An error states the fact (`str(error)`), carries a stable `code` for programs, `details` for
logs, and a `hint` that says how to fix it. A non-zero exit code is not an error, except with
`check=True` and in the functions of `kakoi.builtin`, which promise that something was done.
Messages are in English. Some errors also have a Japanese message, used if the language of this
process (KAKOI_LANG, else its locale) is Japanese.
"""

import builtins
import os
from collections.abc import Mapping
from typing import ClassVar


class KakoiError(Exception):
    """Base class of every error that kakoi raises on purpose."""

    code: str = "KAKOI_ERROR"
    in_japanese: ClassVar[str] = ""  # Names of `details` stand in braces.

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
                return self.message  # This error lacks the details the sentence needs.
        return self.message


def _language() -> str:
    """Return the language of this process's messages as two letters; empty if it is not set."""
    names = ("KAKOI_LANG", "LC_ALL", "LC_MESSAGES", "LANG")
    return next((os.environ[name] for name in names if os.environ.get(name)), "")[:2]


BashExecutorError = KakoiError


class ConfigurationError(KakoiError):
    """A setting, a file or an argument is wrong, and the message says which."""

    code = "CONFIGURATION_ERROR"


class UnsupportedError(ConfigurationError):
    """This kind of sandbox cannot do what was asked; the hint names what can."""

    code = "UNSUPPORTED"


class SecurityError(KakoiError):
    """The policy refused the command; `decision` says why, if there is one."""

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
    """A program in the command is not on the allowlist."""

    code = "COMMAND_NOT_ALLOWED"


class BlockedPatternError(SecurityError):
    """The text contains a pattern that the policy always refuses."""

    code = "BLOCKED_PATTERN"


class EmptyCommandError(SecurityError, ValueError):
    """The text contains no command. Also a ValueError, because the caller made the mistake."""

    code = "EMPTY_COMMAND"


class UserCancelledError(KakoiError):
    """A person was asked and declined, or nobody was available; `decision` says why."""

    code = "USER_CANCELLED"

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


class AuditError(KakoiError):
    """The audit log cannot be written or read. A command that cannot be recorded must not run."""

    code = "AUDIT_FAILED"


class SourceError(KakoiError):
    """A task source failed, or returned something invalid.

    `details` has `status` (of the HTTP response, 0 if there was none) and, if the server says when
    to retry, `retry_after_s`.
    """

    code = "SOURCE_FAILED"


class QueueError(KakoiError):
    """The task queue cannot be used, or this process no longer holds the lease."""

    code = "QUEUE_FAILED"


class FileError(KakoiError, OSError):
    """A file in a sandbox, or a local one that is copied, cannot be used; `errno` says why."""

    code = "FILE_ERROR"

    def __init__(self, message: str, *, number: int = 0, path: str = "", hint: str = "") -> None:
        super().__init__(message, details={"path": path}, hint=hint)
        self.errno = number
        self.filename = path


class MissingFileError(FileError, FileNotFoundError):
    """There is no such file."""

    code = "FILE_MISSING"


class CommandFailedError(KakoiError, RuntimeError):
    """A command that had to succeed failed; `details` has its output and exit code."""

    code = "COMMAND_FAILED"


class ModelError(KakoiError):
    """The request to the model failed, or the response was unusable.

    `is_passing`: the same request may succeed later; `wait_s` is when, if the server says so.
    `is_too_long`: the conversation does not fit into the model's context window.
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
    """The command exceeded its timeout; every process it started is dead."""

    code = "TIMED_OUT"


class SandboxError(KakoiError):
    """The sandbox failed; the command is not to blame.

    `code`: instead of the code of its class.
    """

    code = "SANDBOX_FAILED"

    def __init__(
        self,
        message: str,
        code: str = "",
        details: Mapping[str, object] | None = None,
        *,
        hint: str = "",
    ) -> None:
        super().__init__(message, details=details, hint=hint)
        self.code = code or type(self).code


class LimitError(SandboxError):
    """A limit that was requested explicitly cannot be enforced in this sandbox."""

    code = "LIMIT_NOT_ENFORCED"


class EnvironmentUnavailableError(SandboxError):
    """A sandbox of the requested kind cannot be used on this machine.

    The name of a kind (`docker`) can stand for the message.
    """

    code = "ENVIRONMENT_UNAVAILABLE"
    in_japanese = "サンドボックス環境が利用できません: {environmentType}"

    def __init__(
        self, message: str, *, details: Mapping[str, object] | None = None, hint: str = ""
    ) -> None:
        if details is None and message and " " not in message:
            details = {"environmentType": message}
            message = f"the sandbox environment is not available: {message}"
        super().__init__(message, details=details, hint=hint)


class ImagePullError(SandboxError):
    """A container image is not present and cannot be pulled.

    With `stderr`, the output of the engine, the first argument is the name of the image.
    """

    code = "IMAGE_PULL_FAILED"
    in_japanese = "Dockerイメージの取得に失敗しました: {image}"

    def __init__(
        self,
        message: str,
        stderr: str | None = None,
        *,
        details: Mapping[str, object] | None = None,
        hint: str = "",
    ) -> None:
        if stderr is not None:
            details = {"image": message, "stderr": stderr, **(details or {})}
            message = f"the image {message} cannot be pulled"
        super().__init__(message, details=details, hint=hint)


class ExecutionTimeoutError(SandboxError, TimeoutError):
    """The timeout of a sandbox's `execute`; `except TimeoutError` catches it as well.

    A number of milliseconds can stand for the message.
    """

    code = "EXECUTION_TIMEOUT"
    in_japanese = "実行がタイムアウトしました: {timeout:.0f}ms"

    def __init__(
        self, message: str | float, *, details: Mapping[str, object] | None = None, hint: str = ""
    ) -> None:
        if not isinstance(message, str):
            details = {"timeout": message, **(details or {})}
            message = f"the command ran longer than {message:.0f} ms"
        super().__init__(message, details=details, hint=hint)
