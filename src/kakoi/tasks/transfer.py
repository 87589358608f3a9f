"""Bytes in and out of an environment: command output and files, up to a limit."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kakoi.channel.api import Channel, Command
from kakoi.errors import ConfigurationError, KakoiError
from kakoi.results import ExecutionResult


async def read_output(
    channel: Channel, command: Command, *, most_bytes: int, too_much: KakoiError
) -> tuple[bytes, ExecutionResult]:
    """The command's stdout and its result. Raises `too_much` above `most_bytes`."""
    data = bytearray()
    async with channel.open(command) as running:
        async for stream, part in running.output():
            if stream == "stdout":
                data += part
            if len(data) > most_bytes:
                raise too_much
        return bytes(data), await running.result()


async def read_files(
    channel: Channel, project: str, names: Sequence[str], *, most_bytes: int
) -> dict[str, bytes]:
    """The contents of the files that exist; ConfigurationError if one cannot be read."""
    found = {}
    for name in names:
        try:
            found[name] = await channel.read_file(f"{project}/{name}", limit=most_bytes)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigurationError(f"cannot read the project's {name}: {error}") from error
    return found


_CHUNK: Final = 1024 * 1024
# Enough for an error message.
_MAX_OUTPUT_BYTES: Final = 4096


async def send_file(channel: Channel, command: Command, file: Path) -> ExecutionResult:
    """Run `command` with the file as its stdin. OSError: this machine cannot read the file."""
    reading = replace(command, stdin_open=True, max_output_bytes=_MAX_OUTPUT_BYTES)
    with contextlib.closing(await asyncio.to_thread(file.open, "rb")) as stream:
        async with channel.open(reading) as running:
            while data := await asyncio.to_thread(stream.read, _CHUNK):
                await running.write(data)
            await running.close_stdin()
            return await running.result()
