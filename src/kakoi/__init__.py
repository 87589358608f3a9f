"""kakoi runs shell commands for AI agents: judged, confined, reliably ended, and recorded.

The public names are in `__all__`. Each is loaded on first use, so that importing kakoi costs
nothing and `kakoi --version` loads no library.
"""

# Type checkers treat this name as true. It is not imported, because loading `typing` takes about as
# long as starting Python.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from kakoi.backends.adapter import LimitReport
    from kakoi.builtin.agent import agent
    from kakoi.channel.api import FileEvent, FileInfo, OutputPart
    from kakoi.errors import (
        AuditError,
        BashExecutorError,
        BlockedPatternError,
        CommandFailedError,
        CommandNotAllowedError,
        ConfigurationError,
        EmptyCommandError,
        EnvironmentUnavailableError,
        ExecutionError,
        ExecutionTimeoutError,
        FileError,
        ImagePullError,
        KakoiError,
        LimitError,
        MissingFileError,
        SandboxError,
        SecurityError,
        TimeoutError,
        UnsupportedError,
        UserCancelledError,
    )
    from kakoi.overlay import ApplyResult, Change, ChangeKind
    from kakoi.policy.decide import Decision, decide
    from kakoi.policy.judging.decision import Finding
    from kakoi.policy.profiles import load_policy
    from kakoi.policy.rules import Policy, Verdict
    from kakoi.results import BlockedConnection, ExecutionResult, Reason
    from kakoi.sandbox.files import Files, Watch
    from kakoi.sandbox.info import SandboxInfo
    from kakoi.sandbox.job import Chunk, CommandStream, Job
    from kakoi.sandbox.sandbox import Sandbox
    from kakoi.sandbox.session import Session

__version__ = "0.1.0"

__all__ = [
    "ApplyResult",
    "AuditError",
    "BashExecutorError",
    "BlockedConnection",
    "BlockedPatternError",
    "Change",
    "ChangeKind",
    "Chunk",
    "CommandFailedError",
    "CommandNotAllowedError",
    "CommandStream",
    "ConfigurationError",
    "Decision",
    "EmptyCommandError",
    "EnvironmentUnavailableError",
    "ExecutionError",
    "ExecutionResult",
    "ExecutionTimeoutError",
    "FileError",
    "FileEvent",
    "FileInfo",
    "Files",
    "Finding",
    "ImagePullError",
    "Job",
    "KakoiError",
    "LimitError",
    "LimitReport",
    "MissingFileError",
    "OutputPart",
    "Policy",
    "Reason",
    "Sandbox",
    "SandboxError",
    "SandboxInfo",
    "SecurityError",
    "Session",
    "TimeoutError",
    "UnsupportedError",
    "UserCancelledError",
    "Verdict",
    "Watch",
    "__version__",
    "agent",
    "decide",
    "load_policy",
]

# Hidden from type checkers, which would assume from `__getattr__` that every name exists.
if not TYPE_CHECKING:
    _HOMES = {
        "Sandbox": "kakoi.sandbox.sandbox",
        "SandboxInfo": "kakoi.sandbox.info",
        "Job": "kakoi.sandbox.job",
        "Chunk": "kakoi.sandbox.job",
        "CommandStream": "kakoi.sandbox.job",
        "Session": "kakoi.sandbox.session",
        "Files": "kakoi.sandbox.files",
        "Watch": "kakoi.sandbox.files",
        "FileInfo": "kakoi.channel.api",
        "FileEvent": "kakoi.channel.api",
        "OutputPart": "kakoi.channel.api",
        "LimitReport": "kakoi.backends.adapter",
        "ApplyResult": "kakoi.overlay",
        "Change": "kakoi.overlay",
        "ChangeKind": "kakoi.overlay",
        "agent": "kakoi.builtin.agent",
        "Decision": "kakoi.policy.decide",
        "Finding": "kakoi.policy.judging.decision",
        "decide": "kakoi.policy.decide",
        "load_policy": "kakoi.policy.profiles",
        "Policy": "kakoi.policy.rules",
        "Verdict": "kakoi.policy.rules",
        "BlockedConnection": "kakoi.results",
        "ExecutionResult": "kakoi.results",
        "Reason": "kakoi.results",
    }

    def __getattr__(name: str) -> object:
        """Load a public name on first use (PEP 562) and keep it, as an import would."""
        if name not in __all__:
            raise AttributeError(f"module 'kakoi' has no attribute {name!r}")
        from importlib import import_module

        value = getattr(import_module(_HOMES.get(name, "kakoi.errors")), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
