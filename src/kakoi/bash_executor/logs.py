"""CommandLog: every command in the log of the application, without secrets.

Records come from the logger `kakoi.bash_executor`: handlers and levels that the application sets
on it, or above it, hold. Each executor has its own level on top of that. With a format its lines
go to standard error as well, in that format. No handler of the application is touched, and
nothing is set on loggers that executors share.
"""

import logging
from typing import Final

from kakoi.errors import KakoiError, SecurityError
from kakoi.redact import redact

NAME: Final = "kakoi.bash_executor"
_LONGEST_TEXT: Final = 70_000
_LONGEST_SHOWN: Final = 2000


class CommandLog:
    """Where one executor tells what it does."""

    def __init__(
        self, level: int = logging.INFO, formatter: logging.Formatter | None = None
    ) -> None:
        self._shared = logging.getLogger(NAME)
        # Not in the registry of loggers: it is as old as its executor, and has its own level.
        self._logger = logging.Logger(NAME, level)
        self._logger.parent = self._shared
        # Without either, Python itself would print warnings where nobody has set up anything.
        handler = logging.NullHandler() if formatter is None else logging.StreamHandler()
        handler.setFormatter(formatter)
        self._logger.addHandler(handler)

    def ran(self, command: str, cwd: str, exit_code: int, *, cached: bool) -> None:
        """It came to an end."""
        how = "answered from the cache" if cached else "ran"
        self._tell(logging.INFO, f"{how} {_plain(command)} in {_plain(cwd)}: exit {exit_code}")

    def failed(self, command: str, cwd: str, error: BaseException) -> None:
        """It was refused, or did not come to an end by itself."""
        code = error.code if isinstance(error, KakoiError) else type(error).__name__
        how = "refused" if isinstance(error, SecurityError) else "no result of"
        where = f"{_plain(command)} in {_plain(cwd)}"
        self._tell(logging.WARNING, f"{how} {where}: {code}: {_plain(str(error))}")

    def _tell(self, level: int, line: str) -> None:
        if level >= self._shared.level:
            self._logger.log(level, "%s", line)


def _plain(text: str) -> str:
    """On one line, without secrets, and not too long. Nothing longer than this may run."""
    told = redact(text[:_LONGEST_TEXT])
    return repr(told if len(told) <= _LONGEST_SHOWN else told[:_LONGEST_SHOWN] + "…")
