"""@builtin.file: find files by name and by content."""

import fnmatch
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from kakoi.builtin.arguments import check_names, check_text
from kakoi.builtin.shell import CommandRunner, run_checked, runner_for
from kakoi.errors import ExecutionError
from kakoi.shell import ShellResult

PROGRAMS = ("find", "grep", "ls", "cat")
_GLOB = frozenset("*?[")
# The file names of one grep; systems accept about twice as much in all arguments.
_BATCH_BYTES = 32 * 1024


async def file_search(pattern: str, directory: str | Path = ".", file_type: str = "*") -> list[str]:
    """Return the files below `directory` whose name matches `file_type` and path `pattern`.

    A pattern with `*`, `?` or `[` is a glob for the name; any other is a substring of the path.
    """
    check_text("pattern", pattern)
    result = await run_checked(
        runner_for(directory, PROGRAMS),
        ["find", ".", "-type", "f", "-name", check_text("file_type", file_type), "-print0"],
    )
    _check_whole(result)
    paths = [os.path.join(directory, path[2:]) for path in result.stdout.split("\0") if path]
    return sorted(path for path in paths if _matches(path, pattern))


def _matches(path: str, pattern: str) -> bool:
    if _GLOB.isdisjoint(pattern):
        return pattern in path
    return fnmatch.fnmatchcase(path if "/" in pattern else os.path.basename(path), pattern)


async def grep_content(pattern: str, files: Sequence[str]) -> dict[str, list[str]]:
    """Return the lines of each file that match the grep pattern, as `number:line`.

    Files without a match, and files that cannot be read, are left out.
    """
    check_text("pattern", pattern)
    runner = runner_for(programs=PROGRAMS)
    found: dict[str, list[str]] = {}
    for batch in _batches(check_names("files", files)):
        await _grep(runner, pattern, batch, found)
    return found


async def _grep(
    runner: CommandRunner, pattern: str, files: list[str], found: dict[str, list[str]]
) -> None:
    # With a NUL after each name, because a name can contain everything else. Files that cannot be
    # read are skipped silently, and so are pipes, on which it would block: any other error is about
    # the pattern.
    skip = ["--directories=skip", "--devices=skip"]
    result = await runner.exec(["grep", "-nHZs", *skip, "-e", pattern, "--", *files])
    if result.return_code > 1 and result.stderr:
        raise ExecutionError(f"grep failed: {result.stderr.strip()[:500]}")
    _check_whole(result)
    for line in result.stdout.split("\n"):
        name, nul, rest = line.partition("\0")
        if nul:
            found.setdefault(name, []).append(rest)


def _batches(files: Sequence[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    size = 0
    for file in files:
        size += len(os.fsencode(file)) + 1
        if batch and size > _BATCH_BYTES:
            yield batch
            batch, size = [], len(os.fsencode(file)) + 1
        batch.append(file)
    if batch:
        yield batch


def _check_whole(result: ShellResult) -> None:
    """Raise if the output was truncated: the caller could not tell that something is missing."""
    if result.truncated:
        raise ExecutionError(
            "there are too many results for one answer",
            hint="search a smaller directory, or use a narrower pattern",
        )
