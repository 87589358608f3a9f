"""kakoi runs shell commands for AI agents: judged, confined, ended for certain, and recorded.

The names in `__all__` are the public ones. They are loaded when they are first used, so that
importing kakoi costs nothing and `kakoi --version` loads no library.
"""

# Type checkers know this name and take it for true. Not imported: loading `typing` takes about
# as long as starting Python.
TYPE_CHECKING = False

if TYPE_CHECKING:
    from kakoi.errors import (
        BashExecutorError,
        BlockedPatternError,
        CommandFailedError,
        CommandNotAllowedError,
        ConfigurationError,
        EmptyCommandError,
        EnvironmentUnavailableError,
        ExecutionError,
        ExecutionTimeoutError,
        ImagePullError,
        KakoiError,
        SandboxError,
        SecurityError,
        TimeoutError,
        UserCancelledError,
    )
    from kakoi.policy.decide import Decision, decide
    from kakoi.policy.profiles import load_policy
    from kakoi.policy.rules import Policy, Verdict
    from kakoi.process import ProcessExecutor, ProcessResult, SpawnOptions
    from kakoi.results import ExecutionResult, Reason

__version__ = "0.1.0"

__all__ = [
    "BashExecutorError",
    "BlockedPatternError",
    "CommandFailedError",
    "CommandNotAllowedError",
    "ConfigurationError",
    "Decision",
    "EmptyCommandError",
    "EnvironmentUnavailableError",
    "ExecutionError",
    "ExecutionResult",
    "ExecutionTimeoutError",
    "ImagePullError",
    "KakoiError",
    "Policy",
    "ProcessExecutor",
    "ProcessResult",
    "Reason",
    "SandboxError",
    "SecurityError",
    "SpawnOptions",
    "TimeoutError",
    "UserCancelledError",
    "Verdict",
    "__version__",
    "decide",
    "load_policy",
]

# Hidden from type checkers: they would take it to mean that every name exists.
if not TYPE_CHECKING:
    _HOMES = {
        "Decision": "kakoi.policy.decide",
        "decide": "kakoi.policy.decide",
        "load_policy": "kakoi.policy.profiles",
        "Policy": "kakoi.policy.rules",
        "Verdict": "kakoi.policy.rules",
        "ProcessExecutor": "kakoi.process",
        "ProcessResult": "kakoi.process",
        "SpawnOptions": "kakoi.process",
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
