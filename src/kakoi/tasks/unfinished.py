"""What a task has changed so far, kept so that whoever goes on with it can bring it back.

A patch beside the task's transcripts, not a branch on the tracker: half-done work is nobody's to
see, and needs no right to push (docs/adr/0022). It is data here, and applied only in a sandbox.
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from kakoi.errors import KakoiError
from kakoi.tasks.task import container_name

_log = logging.getLogger(__name__)
# Somebody waits for it: a model, a person with a finger on Ctrl-C, or the end of a lease.
_SAVING_S: Final = 10.0


class Changes(Protocol):
    """The changes in one environment."""

    async def changes(self, base: str) -> bytes: ...
    async def bring_back(self, changes: bytes) -> bool: ...


class Unfinished:
    """The kept changes of one task, in a file of `folder`. Nothing here ever fails a task."""

    def __init__(self, folder: Path, task_uuid: str) -> None:
        container_name(task_uuid)  # It names a file: a uuid that is none is an error.
        self._path = folder / f"{task_uuid}.patch"

    async def keep(self, place: Changes, base: str) -> None:
        """Keep what differs from `base` by now; nothing different is nothing to keep."""
        try:
            async with asyncio.timeout(_SAVING_S):
                changes = await place.changes(base)
            await asyncio.to_thread(self._write, changes)
        except (KakoiError, OSError, TimeoutError) as error:
            _log.warning("the changes so far could not be kept: %s", error)

    async def bring_back(self, place: Changes) -> bool:
        """Change the project as it was changed; False if nothing is kept, or does not fit it."""
        try:
            changes = await asyncio.to_thread(self._path.read_bytes)
            return await place.bring_back(changes)
        except FileNotFoundError:
            return False
        except (KakoiError, OSError) as error:
            _log.warning("the changes of before could not be brought back: %s", error)
            return False

    def discard(self) -> None:
        """The task has ended: nobody goes on with it."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s could not be removed: %s", self._path, error)

    def _write(self, changes: bytes) -> None:
        if not changes:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Whole or not at all: we may be killed right here.
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f"{self._path.name}.")
        try:
            with open(handle, "wb") as file:
                file.write(changes)
            os.replace(name, self._path)
        except BaseException:
            os.unlink(name)
            raise


class Keeping:
    """Keeps the changes of one environment every now and then: after a `kill -9` nobody can."""

    def __init__(
        self,
        unfinished: Unfinished,
        place: Changes,
        base: str,
        *,
        every_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._unfinished = unfinished
        self._place = place
        self._base = base
        self._every_s = every_s
        self._clock = clock
        self._kept_at = clock()

    async def between_steps(self) -> None:
        """Keep them, if it is time to."""
        if self._clock() - self._kept_at >= self._every_s:
            await self.now()

    async def now(self) -> None:
        """Keep them."""
        await self._unfinished.keep(self._place, self._base)
        self._kept_at = self._clock()
