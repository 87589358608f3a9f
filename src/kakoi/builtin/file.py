"""@builtin.file: which files there are, and where a text occurs in them."""

import fnmatch
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from kakoi.builtin.arguments import names, text
from kakoi.builtin.running import executor_for, must
from kakoi.errors import ExecutionError
from kakoi.shell import ShellExecutor, ShellResult

PROGRAMS = ("find", "grep", "ls", "cat")
_GLOB = frozenset("*?[")
# What one grep is given; a system takes about twice as much in all its arguments.
_BATCH_BYTES = 32 * 1024


async def file_search(pattern: str, directory: str | Path = ".", file_type: str = "*") -> list[str]:
    """The files below `directory` whose name fits `file_type`, and whose path fits `pattern`.

    A pattern with `*`, `?` or `[` is a glob for the name; any other is a part of the path.
    """
    text("pattern", pattern)
    result = await must(
        executor_for(directory, PROGRAMS),
        ["find", ".", "-type", "f", "-name", text("file_type", file_type), "-print0"],
    )
    _check_whole(result)
    paths = [os.path.join(directory, path[2:]) for path in result.stdout.split("\0") if path]
    return sorted(path for path in paths if _fits(path, pattern))


def _fits(path: str, pattern: str) -> bool:
    if _GLOB.isdisjoint(pattern):
        return pattern in path
    return fnmatch.fnmatchcase(path if "/" in pattern else os.path.basename(path), pattern)


async def grep_content(pattern: str, files: Sequence[str]) -> dict[str, list[str]]:
    """The lines of each file that match `pattern` (as grep reads it), as `number:line`.

    Files without a match, and those that cannot be read, are not in the answer.
    """
    text("pattern", pattern)
    executor = executor_for(programs=PROGRAMS)
    found: dict[str, list[str]] = {}
    for batch in _batches(names("files", files)):
        await _grep(executor, pattern, batch, found)
    return found


async def _grep(
    executor: ShellExecutor, pattern: str, files: list[str], found: dict[str, list[str]]
) -> None:
    # With a NUL after each name: a name may hold everything else. Silent about what cannot be
    # read, and past pipes, which it would wait for: what it then says is about the pattern.
    skip = ["--directories=skip", "--devices=skip"]
    result = await executor.exec(["grep", "-nHZs", *skip, "-e", pattern, "--", *files])
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
    """A part of the answer is none: whoever counts on it would not know."""
    if result.truncated:
        raise ExecutionError(
            "there is more to tell than fits into an answer",
            hint="search in a smaller directory, for less",
        )
