"""The changes of an interrupted task, saved so that the task can be resumed.

They are a patch beside the task's transcripts, not a branch on the tracker: unfinished work is not
published, and needs no permission to push (docs/adr/0022). The patch is only data on this machine,
and applied only in a sandbox.
"""

import asyncio
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from kakoi.agents.conversation import Turn, UserMessage
from kakoi.agents.events import AgentEvent, LoopEnded, Outcome
from kakoi.agents.transcript import read_transcript, turns_from_events
from kakoi.errors import ConfigurationError, KakoiError
from kakoi.tasks.changes import ProjectChanges
from kakoi.tasks.task import container_name

_log = logging.getLogger(__name__)
# Something waits for it: a model, a person who pressed Ctrl-C, or the end of a lease.
_SAVE_S: Final = 10.0


class SavedChanges:
    """The saved changes of one task, in a file in `folder`. Errors here never fail a task."""

    def __init__(self, folder: Path, task_uuid: str) -> None:
        container_name(task_uuid)  # Raises for an invalid uuid: it becomes a file name.
        self._path = folder / f"{task_uuid}.patch"

    async def save(self, project: ProjectChanges, base: str) -> None:
        """Save what differs from `base` now; without a difference, delete the file."""
        try:
            async with asyncio.timeout(_SAVE_S):
                changes = await project.diff(base)
            await asyncio.to_thread(self._write, changes)
        except (KakoiError, OSError, TimeoutError) as error:
            _log.warning("cannot save the changes so far: %s", error)

    async def restore(self, project: ProjectChanges) -> bool:
        """Apply the saved changes; False if there are none, or they do not apply."""
        try:
            changes = await asyncio.to_thread(self._path.read_bytes)
            return await project.apply(changes)
        except FileNotFoundError:
            return False
        except (KakoiError, OSError) as error:
            _log.warning("cannot restore the earlier changes: %s", error)
            return False

    def discard(self) -> None:
        """Delete the saved changes: the task has ended."""
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("cannot remove %s: %s", self._path, error)

    def _write(self, changes: bytes) -> None:
        if not changes:
            self._path.unlink(missing_ok=True)
            return
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Atomic: this process can be killed at any point.
        handle, name = tempfile.mkstemp(dir=self._path.parent, prefix=f"{self._path.name}.")
        try:
            with open(handle, "wb") as file:
                file.write(changes)
            os.replace(name, self._path)
        except BaseException:
            os.unlink(name)
            raise


class PeriodicSave:
    """Saves the changes of one environment at intervals, because nothing can after `kill -9`."""

    def __init__(
        self,
        saved: SavedChanges,
        project: ProjectChanges,
        base: str,
        *,
        every_s: float,
        clock: Callable[[], float],
    ) -> None:
        self._saved = saved
        self._project = project
        self._base = base
        self._every_s = every_s
        self._clock = clock
        self._saved_at = clock()

    async def save_if_due(self) -> None:
        """Save them, if it is due."""
        if self._clock() - self._saved_at >= self._every_s:
            await self.save()

    async def save(self) -> None:
        """Save them."""
        await self._saved.save(self._project, self._base)
        self._saved_at = self._clock()


_INTERRUPTED: Final = (Outcome.PAUSED, Outcome.CANCELLED)
_CREATED_AGAIN: Final = "The work was interrupted here, and the environment was created again: "
_RESTORED: Final = (
    "your changes to the project were restored, and nothing else. Whatever was running, installed "
    "or written elsewhere is gone. Check the current state, and continue."
)
_GONE: Final = (
    "the project is in its initial state, and your changes to it are gone. Redo what is still "
    "right, and continue."
)


def resume_note(*, is_restored: bool) -> UserMessage:
    """The message to the model after the earlier turns. `is_restored`: its changes are back."""
    return UserMessage(text=_CREATED_AGAIN + (_RESTORED if is_restored else _GONE))


def earlier_turns(folder: Path, *, task_uuid: str, key: str) -> tuple[Turn, ...]:
    """The turns to continue from; empty if the task was never started, or has ended since.

    `key`: a transcript of another task is ignored, whatever its file name.
    """
    events: list[AgentEvent] = []
    for path in sorted(folder.glob(f"*-{task_uuid}.jsonl")):
        try:
            found = read_transcript(path)
        except (ConfigurationError, OSError) as error:
            _log.warning("skipping a transcript: %s", error)
            continue
        if found.task == key:
            events = _continued(events, [event for _at, event in found.events])
    return tuple(turns_from_events(events))


def _continued(before: Sequence[AgentEvent], events: Sequence[AgentEvent]) -> list[AgentEvent]:
    last = events[-1] if events else None
    if isinstance(last, LoopEnded) and last.outcome not in _INTERRUPTED:
        return []
    return [*before, *events]
