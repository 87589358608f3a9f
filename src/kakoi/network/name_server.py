"""Answers the name queries of one sandbox, on sockets in its network namespace.

Only the decision comes from elsewhere (`LookUp`). Nothing that a sandbox sends is forwarded.
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Final

from kakoi._support.late import dataclass
from kakoi.errors import KakoiError
from kakoi.network.addresses import Address
from kakoi.network.dns_messages import (
    MAX_QUERY_BYTES,
    BadQueryError,
    ResponseCode,
    parse_query,
)
from kakoi.network.shared_listener import SharedListener

_AT_ONCE: Final = 64
_CONNECTIONS: Final = 16
_QUERIES_PER_CONNECTION: Final = 100
# Each query costs us time, even one that is refused: so there is a pause after so many reads.
_READS: Final = 32
_PAUSE_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class NameAnswer:
    """What a sandbox learns about a name. `ttl_s`: how long it can remember that."""

    code: ResponseCode
    addresses: Sequence[Address] = ()
    ttl_s: int = 0


LookUp = Callable[[str], Awaitable[NameAnswer]]


class NameServer:
    """Answers queries until it is closed. Closes both sockets.

    `queries`: a UDP socket, `listener`: a listening TCP socket; the sandbox can have them as well.
    `look_up`: decides what a name is answered with. `idle_s`: how long a connection can be silent.
    """

    def __init__(
        self,
        queries: socket.socket,
        listener: socket.socket,
        look_up: LookUp,
        *,
        idle_s: float,
    ) -> None:
        self._queries = queries
        self._look_up = look_up
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reads = 0
        self._next_look: asyncio.TimerHandle | None = None
        self._loop.add_reader(queries, self._look)
        try:
            self._listener = SharedListener(listener, self._accept, most=_CONNECTIONS)
        except BaseException:
            self._loop.remove_reader(queries)
            raise

    async def close(self) -> None:
        """Stop answering."""
        if self._queries.fileno() < 0:
            return
        self._loop.remove_reader(self._queries)
        if self._next_look is not None:
            self._next_look.cancel()
        self._queries.close()
        await self._listener.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- UDP ---------------------------------------------------------------------------------

    def _look(self) -> None:
        """Read some queries. The rest waits in the kernel, which drops what it has no room for."""
        while self._reads < _READS:
            self._reads += 1
            try:
                # The flag, because the sandbox could have made the socket block.
                message, client = self._queries.recvfrom(MAX_QUERY_BYTES + 1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except OSError:
                continue
            if len(self._tasks) < _AT_ONCE:
                self._begin(self._answer(message, client))
        self._loop.remove_reader(self._queries)
        self._next_look = self._loop.call_later(_PAUSE_S, self._look_again)

    def _look_again(self) -> None:
        self._reads = 0
        self._loop.add_reader(self._queries, self._look)

    async def _answer(self, message: bytes, client: tuple[str, int]) -> None:
        answer = await self._answer_to(message)
        if answer and self._queries.fileno() >= 0:
            with contextlib.suppress(OSError):
                self._queries.sendto(answer, socket.MSG_DONTWAIT, client)

    # --- TCP ---------------------------------------------------------------------------------

    def _accept(self, connection: socket.socket) -> None:
        connection.setblocking(False)

        def gone(_task: object) -> None:
            connection.close()
            self._listener.release()

        self._begin(self._serve(connection)).add_done_callback(gone)

    async def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError, EOFError, TimeoutError):
            for _ in range(_QUERIES_PER_CONNECTION):
                async with asyncio.timeout(self._idle_s):
                    size = int.from_bytes(await self._read(connection, 2), "big")
                    if size > MAX_QUERY_BYTES:
                        return
                    message = await self._read(connection, size)
                answer = await self._answer_to(message)
                if not answer:
                    return
                async with asyncio.timeout(self._idle_s):
                    data = len(answer).to_bytes(2, "big") + answer
                    await self._loop.sock_sendall(connection, data)

    async def _read(self, connection: socket.socket, size: int) -> bytes:
        data = b""
        while len(data) < size:
            part = await self._loop.sock_recv(connection, size - len(data))
            if not part:
                raise EOFError
            data += part
        return data

    # --- Both --------------------------------------------------------------------------------

    def _begin(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer_to(self, message: bytes) -> bytes:
        """Return the answer to a message; empty if it gets none."""
        try:
            query = parse_query(message)
        except BadQueryError as error:
            return error.answer
        try:
            found = await self._look_up(query.name)
        except KakoiError:  # A decision that cannot be recorded.
            return query.answer(ResponseCode.SERVER_FAILURE)
        return query.answer(found.code, found.addresses, ttl_s=found.ttl_s)
