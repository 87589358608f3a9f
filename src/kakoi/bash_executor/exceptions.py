"""The exceptions of spec C. They are members of the one tree, which `kakoi.errors` draws."""

from kakoi.errors import (
    BashExecutorError,
    BlockedPatternError,
    CommandNotAllowedError,
    ConfigurationError,
    ExecutionError,
    SecurityError,
    TimeoutError,
)

__all__ = [
    "BashExecutorError",
    "BlockedPatternError",
    "CommandNotAllowedError",
    "ConfigurationError",
    "ExecutionError",
    "SecurityError",
    "TimeoutError",
]
