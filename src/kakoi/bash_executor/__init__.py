"""The blocking face (spec C): `create_executor().execute("ls -la")["stdout"]`.

It translates between the spec's words and the one gate; what may run is the policy's to say, and
where it runs the sandbox's. Validators of your own are found by the entry point group
`kakoi.bash_executor.validators`.
"""

from kakoi.bash_executor.config_loader import ConfigLoader
from kakoi.bash_executor.creating import create_executor
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
