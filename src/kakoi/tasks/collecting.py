"""Bytes out of an environment: what a command writes and what files hold, up to a limit."""

from collections.abc import Sequence

from kakoi.errors import ConfigurationError, KakoiError
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


async def files_there(
    channel: Channel, project: str, names: Sequence[str], *, most_bytes: int
) -> dict[str, bytes]:
    """Those files of a project that are there; ConfigurationError if one cannot be read."""
    found = {}
    for name in names:
        try:
            found[name] = await channel.read_file(f"{project}/{name}", limit=most_bytes)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigurationError(f"the project's {name} cannot be read: {error}") from error
    return found
