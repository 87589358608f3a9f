"""A consumer in a separate process, which takes tasks until the queue is empty and logs them.

    python consumer.py QUEUE LEASE_S LOG LOCKS

QUEUE is a SQLite file or a Redis URL. Each line of LOG has an event, the pid and a key. While the
consumer works on a key, it holds the lock of a file in LOCKS, which detects two at once. Work on a
key that ends in `/slow` lasts until stdin is closed.
"""

import asyncio
import fcntl
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from kakoi.tasks.queue.api import Lease, TaskQueue, run_with_lease
from kakoi.tasks.queue.redis import RedisQueue
from kakoi.tasks.queue.sqlite import SqliteQueue


def open_queue(address: str, lease_s: float) -> TaskQueue:
    if "://" in address:
        return RedisQueue(address, lease_s=lease_s)
    return SqliteQueue(Path(address), clock=lambda: datetime.now(UTC), lease_s=lease_s)


async def work(lease: Lease, log: int, locks: str) -> None:
    def tell(event: str) -> None:
        os.write(log, f"{event} {os.getpid()} {lease.key}\n".encode())

    handle = os.open(f"{locks}/{quote(lease.key, safe='')}", os.O_CREAT | os.O_RDWR)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        tell("overlap")
        return
    tell("begin")
    if lease.key.endswith("/slow"):
        await asyncio.to_thread(sys.stdin.read)
    tell("end")
    os.close(handle)


async def main(address: str, lease_s: str, log: str, locks: str) -> None:
    queue = open_queue(address, float(lease_s))
    written = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    while (size := await queue.size()).waiting + size.taken:
        lease = await queue.take()
        if lease is None:
            await asyncio.sleep(0.1)
            continue
        await run_with_lease(queue, lease, work(lease, written, locks))
        await queue.done(lease)
    await queue.aclose()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
