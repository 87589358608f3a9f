"""RedisQueue: a task queue that several machines share, on an existing Redis server.

The queue is a sorted set of keys. A lease is a lock of the client library, which Redis itself
expires, so the clocks of the machines do not matter.
"""

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final
from urllib.parse import unquote, urlsplit

from redis import asyncio as redis
from redis.asyncio.client import Pipeline
from redis.asyncio.lock import Lock
from redis.exceptions import LockError, RedisError, WatchError

from kakoi._support.redact import redact
from kakoi.errors import ConfigurationError, QueueError
from kakoi.settings.tasks import QueueSection
from kakoi.tasks.queue.api import Lease, QueueSize, check_key, check_lease_s, lease_lost

_REPLY_S: Final = 10.0
_BATCH: Final = 100
# The braces make a cluster keep all keys on one node.
_LINE: Final = "{kakoi:tasks}:line"
_LAST: Final = "{kakoi:tasks}:last"
_ATTEMPTS: Final = "{kakoi:tasks}:attempts"
_LEASE: Final = "{kakoi:tasks}:lease:"


class RedisQueue:
    """A queue at `url`: `redis://`, `rediss://` (over TLS) or `unix://`. Errors hide its password.

    A lease that Redis confirmed and then lost, for example in a failover, is lost.
    """

    def __init__(self, url: str, *, lease_s: float = QueueSection().lease_seconds) -> None:
        self.lease_s = check_lease_s(lease_s)
        self._secrets: tuple[str, ...] = ()
        try:
            password = urlsplit(url).password
            self._secrets = (password, unquote(password)) if password else ()
            self._redis = redis.from_url(
                url,
                decode_responses=True,
                socket_timeout=_REPLY_S,
                socket_connect_timeout=_REPLY_S,
            )
        except (ValueError, TypeError) as error:
            raise ConfigurationError(
                f"invalid address of the queue: {redact(str(error), self._secrets)}",
                hint="use redis://host:6379/0, rediss://… or unix://…",
            ) from None
        self._locks: dict[str, Lock] = {}

    async def put(self, key: str) -> bool:
        async with self._translated_errors():
            position = int(await self._redis.incr(_LAST))
            return await self._redis.zadd(_LINE, {check_key(key): position}, nx=True) == 1

    async def take(self, key: str | None = None) -> Lease | None:
        async with self._translated_errors():
            if key is not None:
                return await self._lease(key)
            start = 0
            while keys := await self._redis.zrange(_LINE, start, start + _BATCH - 1):
                for each in keys:
                    if lease := await self._lease(str(each)):
                        return lease
                start += _BATCH
        return None

    async def _lease(self, key: str) -> Lease | None:
        lock = self._redis.lock(
            f"{_LEASE}{key}", timeout=self.lease_s, blocking=False, thread_local=False
        )
        token = secrets.token_hex(16)
        if not await lock.acquire(token=token):
            return None
        if await self._redis.zscore(_LINE, key) is None:  # Another consumer has just finished it.
            await lock.release()
            return None
        attempt = int(await self._redis.hincrby(_ATTEMPTS, key, 1))
        self._locks[token] = lock
        return Lease(key=key, attempt=attempt, token=token)

    async def renew(self, lease: Lease) -> None:
        async with self._translated_errors(lease):
            await self._lock(lease).reacquire()

    async def done(self, lease: Lease) -> None:
        async with self._ending(lease) as change:
            change.zrem(_LINE, lease.key)
            change.hdel(_ATTEMPTS, lease.key)

    async def give_back(self, lease: Lease) -> None:
        async with self._translated_errors():
            position = int(await self._redis.incr(_LAST))
        async with self._ending(lease) as change:
            change.zadd(_LINE, {lease.key: position}, xx=True)

    async def size(self) -> QueueSize:
        async with self._translated_errors():
            keys = await self._redis.zrange(_LINE, 0, -1)
            taken = 0
            for start in range(0, len(keys), _BATCH):
                names = [f"{_LEASE}{key!s}" for key in keys[start : start + _BATCH]]
                taken += int(await self._redis.exists(*names))
        return QueueSize(len(keys) - taken, taken)

    async def aclose(self) -> None:
        async with self._translated_errors():
            await self._redis.aclose()

    def _lock(self, lease: Lease) -> Lock:
        found = self._locks.get(lease.token)
        if found is None:
            raise lease_lost(lease)
        return found

    @asynccontextmanager
    async def _ending(self, lease: Lease) -> AsyncIterator["Pipeline"]:
        """Commands of the block and the end of the lease, as one transaction, if it still holds."""
        lock = self._lock(lease)
        async with self._translated_errors(lease), self._redis.pipeline(transaction=True) as change:
            await change.watch(lock.name)
            if not await lock.owned():
                raise lease_lost(lease)
            change.multi()  # type: ignore[no-untyped-call] # redis has no types for it
            yield change
            change.delete(lock.name)
            await change.execute()
            del self._locks[lease.token]

    @asynccontextmanager
    async def _translated_errors(self, lease: Lease | None = None) -> AsyncIterator[None]:
        try:
            yield
        except (LockError, WatchError) as error:
            if lease is None:
                raise self._failed(error) from None
            self._locks.pop(lease.token, None)
            raise lease_lost(lease) from None
        except (RedisError, OSError) as error:
            raise self._failed(error) from None

    def _failed(self, error: Exception) -> QueueError:
        return QueueError(
            f"cannot use the queue: {redact(str(error), self._secrets)[:200]}",
            hint="check that the Redis server of tasks.queue.url is running and allows access",
        )
