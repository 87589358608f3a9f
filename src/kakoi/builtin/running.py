"""Executors for the built-ins: kept for a while, one for each directory and list of programs."""

import os
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from kakoi.errors import CommandFailedError
from kakoi.sections import wrong
from kakoi.shell import ShellExecutor, ShellResult

_KEPT = 8
_LONGEST = 2000


@lru_cache(maxsize=_KEPT)
def _executor(directory: str, programs: tuple[str, ...]) -> ShellExecutor:
    return ShellExecutor(allowed_commands=programs or None, working_dir=directory)


def executor_for(directory: str | Path = ".", programs: Sequence[str] = ()) -> ShellExecutor:
    """The executor that may run only `programs` (none: the default list) in `directory`."""
    try:
        path = os.path.realpath(directory)
    except (TypeError, ValueError) as error:
        raise wrong("the directory", directory, f"a path: {error}") from None
    return _executor(path, tuple(programs))


async def must(
    executor: ShellExecutor,
    command: str | Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
) -> ShellResult:
    """Run what has to succeed; CommandFailedError says what it said if it did not."""
    result = await executor.exec(command, env, stdin=stdin)
    if not result.success:
        said = (result.stderr.strip() or result.stdout.strip())[-_LONGEST:]
        raise CommandFailedError(
            f"Command failed: {said or f'exit status {result.return_code}'}",
            details={
                "command": result.command,
                "return_code": result.return_code,
                "stdout": result.stdout,
                "stderr": result.stderr,
            },
        )
    return result
