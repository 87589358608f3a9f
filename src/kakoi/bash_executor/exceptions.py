"""The exceptions of the blocking interface, from the one tree in `kakoi.errors`."""

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
