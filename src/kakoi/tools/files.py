"""The tools that read and write files in the workspace.

Each is judged and recorded as what it does to a file, and runs inside the sandbox.
"""

import errno
import os
from collections.abc import Awaitable, Callable, Sequence
from itertools import accumulate
from typing import Final, TypeVar

from kakoi._support.text import shown
from kakoi.channel.api import MIB, Channel, FileInfo
from kakoi.errors import ConfigurationError
from kakoi.policy.file_access import FileAccess
from kakoi.tools.replies import ToolResult, with_trailer
from kakoi.tools.state import ToolCall, ToolState

MOST_FILE_BYTES: Final = 4 * MIB
_MOST_FILES: Final = 2000
_Done = TypeVar("_Done")
_MARKS: Final = {"directory": "/", "link": "@", "other": "?"}


async def read_file(state: ToolState, call: ToolCall) -> ToolResult:
    """Return lines of a text file."""
    path = await state.path_in(call.session, call.arguments["path"])
    data = await _access(state, call, FileAccess("read", path), _reading(path))
    text = _text(data)
    meta = {"path": shown(path), "bytes": len(data), "binary": text is None}
    if text is None:
        return ToolResult(text=f"[binary file | {len(data)} bytes | {shown(path)}]", meta=meta)
    lines = _lines(text)
    first, count = call.arguments["first_line"], call.arguments["lines"]
    chosen = lines[first - 1 : first - 1 + count]
    last = first - 1 + len(chosen)
    part = "".join(chosen)
    where = f"lines {first}-{last} of {len(lines)}" if chosen else f"{len(lines)} lines"
    longest = state.execution.max_output_size
    if len(part) > longest:
        where += f", cut: {longest} of {len(part)} characters"
        part = part[:longest]
    meta |= {"first_line": first, "last_line": last, "line_count": len(lines), "chars": len(part)}
    return ToolResult(text=with_trailer(part, where, f"{len(data)} bytes"), meta=meta)


async def write_file(state: ToolState, call: ToolCall) -> ToolResult:
    """Create or replace a file."""
    path = await state.path_in(call.session, call.arguments["path"])
    data: bytes = call.arguments["content"].encode()
    _check_size(len(data))

    async def work(channel: Channel) -> None:
        await channel.write_file(path, data, mode=await _mode(channel, path))

    await _access(state, call, FileAccess("write", path), work)
    meta = {"path": shown(path), "bytes": len(data)}
    return ToolResult(text=f"[{len(data)} bytes written | {shown(path)}]", meta=meta)


async def edit_file(state: ToolState, call: ToolCall) -> ToolResult:
    """Replace an exact text, which must occur exactly once."""
    path = await state.path_in(call.session, call.arguments["path"])
    old, new = call.arguments["old_text"], call.arguments["new_text"]
    every: bool = call.arguments["replace_all"]
    if not old:
        raise ConfigurationError("`old_text` is empty", hint="write_file creates a new file")
    if old == new:
        raise ConfigurationError("`old_text` and `new_text` are the same")

    async def work(channel: Channel) -> int:
        async with state.editing:
            text = _text(await _reading(path)(channel))
            if text is None:
                raise ConfigurationError(f"{shown(path)} is a binary file")
            count = text.count(old)
            _check_count(count, path, every=every)
            data = text.replace(old, new).encode()
            _check_size(len(data))
            await channel.write_file(path, data, mode=await _mode(channel, path))
            return count

    count = await _access(state, call, FileAccess("write", path), work)
    summary = "1 replacement" if count == 1 else f"{count} replacements"
    meta = {"path": shown(path), "replacements": count}
    return ToolResult(text=f"[{summary} | {shown(path)}]", meta=meta)


async def list_files(state: ToolState, call: ToolCall) -> ToolResult:
    """List a directory, and what is below it down to `depth` levels."""
    path = await state.path_in(call.session, call.arguments["path"])
    depth: int = call.arguments["depth"]

    async def work(channel: Channel) -> list[FileInfo]:
        try:
            return await channel.list_files(path, depth=depth, limit=_MOST_FILES)
        except OSError as error:
            if error.errno != errno.EOVERFLOW:
                raise
            less = "list with a smaller `depth`, or " if depth > 1 else ""
            raise ConfigurationError(
                f"{shown(path)} has more than {_MOST_FILES} entries",
                hint=f"{less}narrow it down: execute_command with find or ls",
            ) from None

    files = await _access(state, call, FileAccess("list", path), work)
    above = path.rstrip("/") + "/"
    names = [shown(file.path.removeprefix(above)) for file in files]
    lines = [
        f"{file.size:>10}  {name}{_MARKS.get(file.kind, '')}"
        for file, name in zip(files, names, strict=True)
    ]
    count = _count_within(lines, state.execution.max_output_size)
    meta = {
        "path": shown(path),
        "files": [
            {"name": name, "kind": file.kind, "bytes": file.size}
            for file, name in zip(files[:count], names, strict=False)
        ],
    }
    cut = f"cut: the first {count} are shown" if count < len(files) else ""
    entries = f"entries: {len(files)}"
    return ToolResult(
        text=with_trailer("\n".join(lines[:count]), entries, cut, shown(path)), meta=meta
    )


def _count_within(lines: Sequence[str], limit: int) -> int:
    """Return how many of the lines have at most `limit` characters in all."""
    sizes = accumulate(len(line) + 1 for line in lines)
    return sum(1 for size in sizes if size <= limit)


async def _access(
    state: ToolState,
    call: ToolCall,
    access: FileAccess,
    work: Callable[[Channel], Awaitable[_Done]],
) -> _Done:
    return await state.gate.access(access, work, call.approval.gate_call(state.workspace))


def _reading(path: str) -> Callable[[Channel], Awaitable[bytes]]:
    async def work(channel: Channel) -> bytes:
        try:
            return await channel.read_file(path, limit=MOST_FILE_BYTES)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise ConfigurationError(
                f"{shown(path)} has more than {MOST_FILE_BYTES} bytes",
                hint="read a part of it: execute_command with head, tail, sed -n or grep",
            ) from None

    return work


def _text(data: bytes) -> str | None:
    """Return the text of a file; None if it is binary."""
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _lines(text: str) -> list[str]:
    """Split into lines as other tools do: only a line feed ends a line."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


async def _mode(channel: Channel, path: str) -> int:
    """Return the permissions of the file, or of a new one; never setuid, setgid or sticky."""
    try:
        found = await channel.stat_file(path)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        try:
            await channel.stat_file(folder)
        except FileNotFoundError:
            raise ConfigurationError(
                f"there is no directory {shown(folder)}",
                hint="create it first: execute_command with mkdir -p",
            ) from None
        return 0o644
    return found.mode & 0o777


def _check_size(size: int) -> None:
    if size > MOST_FILE_BYTES:
        raise ConfigurationError(
            f"the file would have {size} bytes; at most {MOST_FILE_BYTES} are allowed"
        )


def _check_count(count: int, path: str, *, every: bool) -> None:
    if count == 0:
        raise ConfigurationError(
            f"`old_text` was not found in {shown(path)}",
            hint="read the file: every character must match, including spaces and line ends",
        )
    if count > 1 and not every:
        raise ConfigurationError(
            f"`old_text` occurs {count} times in {shown(path)}",
            hint="give more of the text around it, or `replace_all`",
        )
