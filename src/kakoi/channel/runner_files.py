"""Files of a sandbox, over the stream to its runner."""

import contextlib
import errno
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator
from typing import Any

from kakoi.channel.api import (
    MAX_FILE_BYTES,
    FileEvent,
    FileInfo,
    check_count,
    check_mode,
    check_path,
)
from kakoi.channel.runner_answers import ListingParser, parse_events, parse_file
from kakoi.channel.runner_stream import RunnerRequests
from kakoi.errors import UnsupportedError
from kakoi.runner import frames

_ANY_SIZE = 2**62


class RunnerFiles:
    """The file operations of `Channel`."""

    def __init__(self, requests: RunnerRequests) -> None:
        self._requests = requests

    async def read(self, path: str, offset: int, limit: int) -> bytes:
        check_count("limit", limit)
        # One byte more than wanted shows whether there is more.
        data = bytearray()
        async with contextlib.aclosing(self.stream(path, offset, limit + 1)) as parts:
            async for part in parts:
                data += part
        if len(data) > limit:
            raise OSError(errno.EFBIG, f"the file has more than {limit} bytes", path)
        return bytes(data)

    async def stream(
        self, path: str, offset: int, limit: int = _ANY_SIZE
    ) -> AsyncGenerator[bytes, None]:
        check_path(path)
        check_count("offset", offset)
        order = {"op": "read_file", "path": path, "offset": offset, "limit": limit}
        left = limit
        async with contextlib.aclosing(self._requests.data(order)) as parts:
            async for part in parts:
                left -= len(part)
                with self._requests.trusting_nothing():
                    if left < 0:
                        raise frames.BadFrame("more of a file than was asked for")
                yield part

    async def write(self, path: str, data: bytes | AsyncIterable[bytes], mode: int) -> None:
        check_path(path)
        check_mode(mode)
        limit = _ANY_SIZE if isinstance(data, AsyncIterable) else len(data)
        if not isinstance(data, AsyncIterable) and limit > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"more than {MAX_FILE_BYTES} bytes", path)
        order = {"op": "write_file", "path": path, "mode": mode, "limit": limit}
        to_runner = self._requests.frames
        exchange = to_runner.open()
        await to_runner.order(exchange, order)
        try:
            if not isinstance(data, AsyncIterable):
                await to_runner.feed(exchange, data)
            else:
                async for part in data:
                    await to_runner.feed(exchange, part)
                    if exchange.answer.done():
                        break  # It failed.
            to_runner.write(frames.INPUT, exchange.number)
        except BaseException:
            self._requests.call_off(exchange)
            raise
        await self._requests.answer(exchange, order)

    async def list(self, path: str, depth: int, limit: int) -> list[FileInfo]:
        check_path(path)
        check_count("depth", depth, least=1)
        check_count("limit", limit)
        parser = ListingParser(path, depth, limit)
        order = {"op": "list_files", "path": path, "depth": depth, "limit": limit}
        async with contextlib.aclosing(self._requests.data(order)) as parts:
            async for part in parts:
                with self._requests.trusting_nothing():
                    parser.feed(part)
        return parser.files

    async def stat(self, path: str) -> FileInfo:
        with self._requests.trusting_nothing():
            return parse_file(await self._ask("stat_file", path), path)

    async def make_dir(self, path: str, mode: int, *, parents: bool) -> bool:
        check_mode(mode)
        answer = await self._ask("make_dir", path, mode=mode, parents=parents)
        return answer.get("made") is True

    async def move(self, source: str, destination: str) -> None:
        check_path(source, "source")
        check_path(destination, "destination")
        await self._ask("move_file", source, destination=destination)

    async def remove(self, path: str, *, recursive: bool) -> None:
        await self._ask("remove_file", path, recursive=recursive)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, *, recursive: bool) -> AsyncIterator[AsyncIterator[FileEvent]]:
        check_path(path)
        order = {"op": "watch_files", "path": path, "recursive": recursive}
        async with contextlib.aclosing(self._requests.data(order)) as parts:
            try:
                await anext(parts, None)  # The first part says that watching has begun.
            except OSError as error:
                if error.errno not in (errno.ENOSYS, errno.EPERM):
                    raise
                raise UnsupportedError(
                    f"files cannot be watched in this sandbox: {error.strerror}",
                    hint="compare two listings instead",
                ) from error
            async with contextlib.aclosing(self._events(parts, path)) as events:
                yield events

    async def _events(
        self, parts: AsyncIterator[bytes], path: str
    ) -> AsyncGenerator[FileEvent, None]:
        async for part in parts:
            with self._requests.trusting_nothing():
                events = parse_events(part, path)
            for event in events:
                yield event

    async def _ask(self, operation: str, path: str, **arguments: object) -> dict[str, Any]:
        check_path(path)
        return await self._requests.ask({"op": operation, "path": path, **arguments})
