"""Bytes out of an environment: all that a command writes, up to a limit."""

from kakoi.errors import KakoiError
from kakoi.results import ExecutionResult
from kakoi.runner.commands import Channel, Command


async def written_by(
    channel: Channel, command: Command, *, most_bytes: int, too_much: KakoiError
) -> tuple[bytes, ExecutionResult]:
    """The command's whole standard output, and what came of it. Of more, it raises `too_much`."""
    data = bytearray()
    async with channel.open(command) as running:
        async for stream, part in running.output():
            if stream == "stdout":
                data += part
            if len(data) > most_bytes:
                raise too_much
        return bytes(data), await running.result()
