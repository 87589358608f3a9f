"""The tools that read and write files of the workspace.

Each is judged and recorded as the command that would do the same, and done inside of the sandbox.
"""

import errno
import os
import shlex
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from mcp_types import CallToolResult

from kakoi.errors import ConfigurationError
from kakoi.mcp_server.house import House, ToolCall
from kakoi.mcp_server.replies import said, with_trailer
from kakoi.printable import shown
from kakoi.runner.commands import MIB, Channel, Command, FileInfo

MAX_FILE_BYTES: Final = 4 * MIB
_MOST_FILES: Final = 2000
_Done = TypeVar("_Done")
_MARKS: Final = {"directory": "/", "link": "@", "other": "?"}


async def read_file(house: House, call: ToolCall) -> CallToolResult:
    """Lines of a text file."""
    path = await house.path_in(call.session, call.arguments["path"])
    data = await _perform(house, call, f"cat {shlex.quote(path)}", _reading(path))
    text = _text(data)
    meta = {"path": shown(path), "bytes": len(data), "binary": text is None}
    if text is None:
        return said(f"[binary file | {len(data)} bytes | {shown(path)}]", meta)
    lines = _lines(text)
    first, count = call.arguments["first_line"], call.arguments["lines"]
    chosen = lines[first - 1 : first - 1 + count]
    last = first - 1 + len(chosen)
    part = "".join(chosen)
    where = f"lines {first}-{last} of {len(lines)}" if chosen else f"{len(lines)} lines"
    longest = house.execution.max_output_size
    if len(part) > longest:
        where += f", cut: {longest} of {len(part)} characters"
        part = part[:longest]
    meta |= {"first_line": first, "last_line": last, "line_count": len(lines), "chars": len(part)}
    return said(with_trailer(part, where, f"{len(data)} bytes"), meta)


async def write_file(house: House, call: ToolCall) -> CallToolResult:
    """Create or replace a file."""
    path = await house.path_in(call.session, call.arguments["path"])
    data: bytes = call.arguments["content"].encode()
    _check_size(len(data))

    async def work(channel: Channel) -> None:
        await channel.write_file(path, data, mode=await _mode(channel, path))

    await _perform(house, call, f"cat > {shlex.quote(path)}", work)
    meta = {"path": shown(path), "bytes": len(data)}
    return said(f"[{len(data)} bytes written | {shown(path)}]", meta)


async def edit_file(house: House, call: ToolCall) -> CallToolResult:
    """Replace an exact text, which has to be there once."""
    path = await house.path_in(call.session, call.arguments["path"])
    old, new = call.arguments["old_text"], call.arguments["new_text"]
    every: bool = call.arguments["replace_all"]
    if not old:
        raise ConfigurationError("`old_text` is empty", hint="write_file makes a new file")
    if old == new:
        raise ConfigurationError("`old_text` and `new_text` are the same")

    async def work(channel: Channel) -> int:
        async with house.editing:
            text = _text(await _reading(path)(channel))
            if text is None:
                raise ConfigurationError(f"{shown(path)} is a binary file")
            count = text.count(old)
            _check_count(count, path, every=every)
            data = text.replace(old, new).encode()
            _check_size(len(data))
            await channel.write_file(path, data, mode=await _mode(channel, path))
            return count

    count = await _perform(house, call, f"cat > {shlex.quote(path)}", work)
    told = "1 replacement" if count == 1 else f"{count} replacements"
    return said(f"[{told} | {shown(path)}]", {"path": shown(path), "replacements": count})


async def list_files(house: House, call: ToolCall) -> CallToolResult:
    """What is in a directory."""
    path = await house.path_in(call.session, call.arguments["path"])

    async def work(channel: Channel) -> list[FileInfo]:
        try:
            return await channel.list_files(path, limit=_MOST_FILES)
        except OSError as error:
            if error.errno != errno.EOVERFLOW:
                raise
            raise ConfigurationError(
                f"there are more than {_MOST_FILES} files in {shown(path)}",
                hint="look for some of them: execute_command with find or ls",
            ) from None

    files = await _perform(house, call, f"ls {shlex.quote(path)}", work)
    files.sort(key=lambda file: file.name)
    lines = [f"{file.size:>10}  {shown(file.name)}{_MARKS.get(file.kind, '')}" for file in files]
    meta = {
        "path": shown(path),
        "files": [
            {"name": shown(file.name), "kind": file.kind, "bytes": file.size} for file in files
        ],
    }
    return said(with_trailer("\n".join(lines), f"entries: {len(files)}", shown(path)), meta)


async def _perform(
    house: House, call: ToolCall, same: str, work: Callable[[Channel], Awaitable[_Done]]
) -> _Done:
    """Do it as the command `same` would."""
    command = Command(command=same, cwd=house.workspace)
    handed = await call.person.call(house.gate, command, {})
    return await house.gate.perform(command, work, handed)


def _reading(path: str) -> Callable[[Channel], Awaitable[bytes]]:
    async def work(channel: Channel) -> bytes:
        try:
            return await channel.read_file(path, limit=MAX_FILE_BYTES)
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise ConfigurationError(
                f"{shown(path)} has more than {MAX_FILE_BYTES} bytes",
                hint="read a part of it: execute_command with head, tail, sed -n or grep",
            ) from None

    return work


def _text(data: bytes) -> str | None:
    """The text in a file; None if it is none."""
    if b"\0" in data:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _lines(text: str) -> list[str]:
    """Its lines as every other tool counts them: what ends a line is a line break only."""
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


async def _mode(channel: Channel, path: str) -> int:
    """The permissions that the file has, or gets if it is new; never more than those of people."""
    try:
        found = await channel.stat_file(path)
    except FileNotFoundError:
        folder = os.path.dirname(path)
        try:
            await channel.stat_file(folder)
        except FileNotFoundError:
            raise ConfigurationError(
                f"there is no directory {shown(folder)}",
                hint="make it first: execute_command with mkdir -p",
            ) from None
        return 0o644
    return found.mode & 0o777


def _check_size(size: int) -> None:
    if size > MAX_FILE_BYTES:
        raise ConfigurationError(f"the file would have {size} bytes; at most {MAX_FILE_BYTES}")


def _check_count(count: int, path: str, *, every: bool) -> None:
    if count == 0:
        raise ConfigurationError(
            f"`old_text` is not in {shown(path)}",
            hint="read the file: every character counts, spaces and line ends too",
        )
    if count > 1 and not every:
        raise ConfigurationError(
            f"`old_text` is in {shown(path)} {count} times",
            hint="give more of the text around it, or `replace_all`",
        )
