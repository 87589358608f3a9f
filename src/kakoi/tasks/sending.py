"""Bytes into an environment: a file of this machine, as the input of a command there."""

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Final

from kakoi.results import ExecutionResult
from kakoi.runner.commands import Channel, Command

_CHUNK: Final = 1024 * 1024
# Enough for what it has to say if it fails.
_MOST_SAID: Final = 4096


async def send_file(channel: Channel, command: Command, file: Path) -> ExecutionResult:
    """Run `command` with the file as its input. OSError: this machine cannot read it."""
    reading = replace(command, stdin_open=True, max_output_bytes=_MOST_SAID)
    with contextlib.closing(await asyncio.to_thread(file.open, "rb")) as stream:
        async with channel.open(reading) as running:
            while data := await asyncio.to_thread(stream.read, _CHUNK):
                await running.write(data)
            await running.close_stdin()
            return await running.result()
