"""CommandLog: every command in the application's log, without secrets.

Records come from the logger `kakoi.bash_executor`: handlers and levels that the application sets
on it, or above it, apply. Each executor has its own level on top of that. With a format, its lines
also go to standard error in that format. No handler of the application is touched, and nothing is
set on loggers that executors share.
"""

import logging
from typing import Final

from kakoi._support.redact import redact
from kakoi.errors import KakoiError, SecurityError

NAME: Final = "kakoi.bash_executor"
_LONGEST_TEXT: Final = 70_000
_LONGEST_SHOWN: Final = 2000


class CommandLog:
    """The log of one executor."""

    def __init__(
        self, level: int = logging.INFO, formatter: logging.Formatter | None = None
    ) -> None:
        self._shared = logging.getLogger(NAME)
        # Not in the registry of loggers: it lives as long as its executor, and has its own level.
        self._logger = logging.Logger(NAME, level)
        self._logger.parent = self._shared
        # Without any handler, Python prints warnings itself if the application configured nothing.
        handler = logging.NullHandler() if formatter is None else logging.StreamHandler()
        handler.setFormatter(formatter)
        self._logger.addHandler(handler)

    def ran(self, command: str, cwd: str, exit_code: int, *, cached: bool) -> None:
        """Log a command that ended."""
        how = "answered from the cache" if cached else "ran"
        self._write(logging.INFO, f"{how} {_plain(command)} in {_plain(cwd)}: exit {exit_code}")

    def failed(self, command: str, cwd: str, error: BaseException) -> None:
        """Log a command that was refused, or has no result."""
        code = error.code if isinstance(error, KakoiError) else type(error).__name__
        how = "refused" if isinstance(error, SecurityError) else "no result of"
        where = f"{_plain(command)} in {_plain(cwd)}"
        self._write(logging.WARNING, f"{how} {where}: {code}: {_plain(str(error))}")

    def _write(self, level: int, line: str) -> None:
        if level >= self._shared.level:
            self._logger.log(level, "%s", line)


def _plain(text: str) -> str:
    """Return the text on one line, redacted and shortened. No longer command can run."""
    clean = redact(text[:_LONGEST_TEXT])
    return repr(clean if len(clean) <= _LONGEST_SHOWN else clean[:_LONGEST_SHOWN] + "…")
