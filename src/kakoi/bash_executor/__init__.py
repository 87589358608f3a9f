"""The blocking interface: `create_executor().execute("ls -la")["stdout"]`.

It translates between its own vocabulary and the gate: the policy decides what can run, the sandbox
where. Your own validators are loaded from the entry point group `kakoi.bash_executor.validators`.
"""

from kakoi.bash_executor.config_loader import ConfigLoader
from kakoi.bash_executor.exceptions import (
    BashExecutorError,
    BlockedPatternError,
    CommandNotAllowedError,
    ConfigurationError,
    ExecutionError,
    SecurityError,
    TimeoutError,
)
from kakoi.bash_executor.executor import CommandExecutor
from kakoi.bash_executor.factory import create_executor
from kakoi.bash_executor.validator import CommandValidator

__all__ = [
    "BashExecutorError",
    "BlockedPatternError",
    "CommandExecutor",
    "CommandNotAllowedError",
    "CommandValidator",
    "ConfigLoader",
    "ConfigurationError",
    "ExecutionError",
    "SecurityError",
    "TimeoutError",
    "create_executor",
]
