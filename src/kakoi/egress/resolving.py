"""Names to addresses, and a connection to the very address that was checked."""

import asyncio
import errno
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from kakoi.egress.addresses import Address

Resolver = Callable[[str], Awaitable[Sequence[Address]]]
_LOOKUPS_AT_ONCE = 8
_MOST_ADDRESSES = 8


class SystemResolver:
    """As this machine resolves names. In threads of its own: a slow name holds nobody else up."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_LOOKUPS_AT_ONCE, "kakoi-names")

    async def __call__(self, name: str) -> Sequence[Address]:
        """Every address of a name; OSError if it has none."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._threads, _look_up, name)

    def close(self) -> None:
        """Let the threads go. One that still waits for an answer ends with it."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _look_up(name: str) -> Sequence[Address]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    addresses = [ipaddress.ip_address(str(entry[4][0])) for entry in found]
    return list(dict.fromkeys(addresses))[:_MOST_ADDRESSES]


async def connect(addresses: Sequence[Address], port: int, *, timeout_s: float) -> socket.socket:
    """A connection to the first of these that answers; OSError of the last one that does not."""
    loop = asyncio.get_running_loop()
    failure: OSError = OSError(errno.EHOSTUNREACH, "it has no address")
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
