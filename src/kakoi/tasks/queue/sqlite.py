"""SqliteQueue: a task queue for the processes of one machine, in one file."""

import asyncio
import secrets
import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Final

from kakoi.errors import QueueError
from kakoi.settings.tasks import QueueSection
from kakoi.tasks.queue.api import Lease, QueueSize, check_key, check_lease_s, lease_lost

_BUSY_S: Final = 30.0
_FORMAT: Final = 1
_SCHEMA: Final = """
    CREATE TABLE IF NOT EXISTS tasks (
        key TEXT PRIMARY KEY,
        position INTEGER NOT NULL,
        token TEXT NOT NULL DEFAULT '',
        until REAL NOT NULL DEFAULT 0,
        attempts INTEGER NOT NULL DEFAULT 0
    )
"""
_LAST: Final = "(SELECT coalesce(max(position), 0) + 1 FROM tasks)"
# Each of these is one statement, which SQLite executes atomically, one at a time.
_PUT: Final = f"INSERT OR IGNORE INTO tasks (key, position) VALUES (?, {_LAST})"  # noqa: S608 - ours
_TAKE: Final = """
    UPDATE tasks SET token = ?, until = ?, attempts = attempts + 1
    WHERE key = (SELECT key FROM tasks WHERE until <= ? AND key = coalesce(?, key)
                 ORDER BY position LIMIT 1)
    RETURNING key, attempts
"""
_RENEW: Final = "UPDATE tasks SET until = ? WHERE key = ? AND token = ?"
_DONE: Final = "DELETE FROM tasks WHERE key = ? AND token = ?"
_BACK: Final = f"""
    UPDATE tasks SET token = '', until = 0, position = {_LAST} WHERE key = ? AND token = ?
"""  # noqa: S608 - ours
_SIZE: Final = "SELECT count(*), coalesce(sum(until > ?), 0) FROM tasks"


class SqliteQueue:
    """A queue in a file, which is created on first use; its folder must exist.

    Do not use it on a network file system: SQLite's locks do not work there. `clock`: the time of
    day.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], datetime],
        lease_s: float = QueueSection().lease_seconds,
    ) -> None:
        self._path = path
        self._clock = clock
        self.lease_s = check_lease_s(lease_s)

    async def put(self, key: str) -> bool:
        return (await self._do(_PUT, [check_key(key)]))[0] == 1

    async def take(self, key: str | None = None) -> Lease | None:
        token = secrets.token_hex(16)
        now = self._now()
        _, rows = await self._do(_TAKE, [token, now + self.lease_s, now, key])
        if not rows:
            return None
        taken, attempts = rows[0]
        return Lease(key=str(taken), attempt=int(str(attempts)), token=token)

    async def renew(self, lease: Lease) -> None:
        await self._change(_RENEW, lease, [self._now() + self.lease_s])

    async def done(self, lease: Lease) -> None:
        await self._change(_DONE, lease)

    async def give_back(self, lease: Lease) -> None:
        await self._change(_BACK, lease)

    async def size(self) -> QueueSize:
        _, rows = await self._do(_SIZE, [self._now()])
        every, taken = (int(str(count)) for count in rows[0])
        return QueueSize(every - taken, taken)

    async def aclose(self) -> None: ...

    async def _change(self, statement: str, lease: Lease, values: Sequence[object] = ()) -> None:
        changed, _ = await self._do(statement, [*values, lease.key, lease.token])
        if changed != 1:
            raise lease_lost(lease)

    async def _do(
        self, statement: str, values: Sequence[object]
    ) -> tuple[int, list[tuple[object, ...]]]:
        """The number of changed rows, and the rows it returned."""
        return await asyncio.to_thread(self._do_now, statement, values)

    def _do_now(
        self, statement: str, values: Sequence[object]
    ) -> tuple[int, list[tuple[object, ...]]]:
        # A new connection each time: cheap compared to a task, and bound to one thread and process.
        try:
            with closing(
                sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None)
            ) as connection:
                self._prepare(connection)
                cursor = connection.execute(statement, values)
                rows = cursor.fetchall()
                return cursor.rowcount, rows
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise QueueError(
                f"cannot use the queue {self._path}: {error}",
                hint="check that it is a queue of kakoi, and that it and its folder are writable",
            ) from None

    def _prepare(self, connection: sqlite3.Connection) -> None:
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        if found == _FORMAT:
            return
        if found != 0:
            raise QueueError(
                f"the queue {self._path} was written by another version of kakoi ({found})"
            )
        connection.execute(_SCHEMA)
        connection.execute(f"PRAGMA user_version = {_FORMAT}")

    def _now(self) -> float:
        return self._clock().timestamp()
