"""Names to addresses, and a connection to exactly the address that was checked.

A name can resolve to another address the next time it is asked for. So the proxy resolves it once,
checks what it got, and connects to that address, never to the name.
"""

import asyncio
import contextlib
import ctypes
import errno
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from kakoi.network.addresses import Address
from kakoi.network.dns_messages import AAAA, A, lowest_ttl

_T = TypeVar("_T")
Resolver = Callable[[str], Awaitable[Sequence[Address]]]
TtlLookup = Callable[[str], Awaitable[int | None]]
_LOOKUPS_AT_ONCE = 8
_TTLS_AT_ONCE = 4
_TTL_PATIENCE_S = 2.0
_KEPT_S = 5.0
_MOST_KEPT = 256
_INTERNET = 1
_ANSWER_BYTES = 4096
_MOST_ADDRESSES = 8


class SystemResolver:
    """Resolves names like this machine does, in its own threads, so a slow name blocks nothing."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS_AT_ONCE, "kakoi-names")
        self._ttl_threads = ThreadPoolExecutor(_TTLS_AT_ONCE, "kakoi-ttls")

    async def __call__(self, name: str) -> Sequence[Address]:
        """Return every address of a name. Raises OSError if it has none."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _look_up, name)

    async def ttl_s(self, name: str) -> int | None:
        """Return how long the addresses of a name hold; None if no name server says so in time.

        The addresses come from `getaddrinfo`, which also knows names without a name server but does
        not tell this. So a name server is asked once more, with the system's own resolver.
        """
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TTL_PATIENCE_S):
                return await loop.run_in_executor(self._ttl_threads, _look_up_ttl, name)
        return None

    def close(self) -> None:
        """Shut down the threads. A pending lookup ends when its answer arrives."""
        for threads in (self._threads, self._ttl_threads):
            threads.shutdown(wait=False, cancel_futures=True)


def _look_up(name: str) -> Sequence[Address]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(entry[4][0])) for entry in found]
    return list(dict.fromkeys(addresses))[:_MOST_ADDRESSES]


def _look_up_ttl(name: str) -> int | None:
    query = getattr(ctypes.CDLL(None), "res_query", None)
    if query is None:  # A glibc before 2.34.
        return None
    buffer = ctypes.create_string_buffer(_ANSWER_BYTES)
    for kind in (A, AAAA):
        size = query(f"{name}.".encode("ascii"), _INTERNET, kind, buffer, len(buffer))
        if size > 0 and (ttl_s := lowest_ttl(buffer.raw[:size])) is not None:
            return ttl_s
    return None


class LookupCache(Generic[_T]):
    """Keeps each result of `look_up` for a few seconds. A failure is not kept.

    A program asks for both kinds of addresses of a name at once.
    """

    def __init__(self, look_up: Callable[[str], Awaitable[_T]]) -> None:
        self._look_up = look_up
        self._tasks: set[asyncio.Task[_T]] = set()
        self._running: dict[str, asyncio.Task[_T]] = {}
        self._found: dict[str, tuple[_T, float]] = {}

    async def get(self, name: str) -> tuple[_T, float]:
        """Return the result for a name, and its age in seconds."""
        loop = asyncio.get_running_loop()
        if name in self._found:
            found, at = self._found[name]
            if loop.time() - at < _KEPT_S:
                return found, loop.time() - at
            del self._found[name]
        task = self._running.get(name)
        if task is None:
            task = self._running[name] = asyncio.ensure_future(self._look_up(name))
            self._tasks.add(task)
            task.add_done_callback(lambda done: self._keep(name, done))
        # One client that gives up must not cost the others their answer.
        return await asyncio.shield(task), 0.0

    def clear(self) -> None:
        """Forget everything, including what is being looked up."""
        self._running.clear()
        self._found.clear()

    async def close(self) -> None:
        """End what is being looked up."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _keep(self, name: str, done: asyncio.Task[_T]) -> None:
        self._tasks.discard(done)
        if self._running.get(name) is not done:  # It was forgotten.
            return
        del self._running[name]
        if done.cancelled() or done.exception() is not None:
            return
        while len(self._found) >= _MOST_KEPT:
            del self._found[next(iter(self._found))]
        self._found[name] = done.result(), asyncio.get_running_loop().time()


async def connect(addresses: Sequence[Address], port: int, *, timeout_s: float) -> socket.socket:
    """Connect to the first address that answers. Raises the OSError of the last failure."""
    loop = asyncio.get_running_loop()
    failure: OSError = OSError(errno.EHOSTUNREACH, "the host has no address")
    for address in addresses:
        family = socket.AF_INET if address.version == 4 else socket.AF_INET6
        connection = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        connection.setblocking(False)
        try:
            async with asyncio.timeout(timeout_s / len(addresses)):
                await loop.sock_connect(connection, (str(address), port))
        except (OSError, TimeoutError) as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection
    raise failure
