"""What the adapters share whose commands can write to a copy of the workspace (overlay/)."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from kakoi.channel.api import Channel
from kakoi.channel.runner_channel import RunnerChannel
from kakoi.errors import SandboxError, UnsupportedError

if TYPE_CHECKING:
    from kakoi.overlay import ApplyResult, Change, Difference, Overlay

_T = TypeVar("_T")


class CopyOnWrite(ABC):
    """Compares the copy of a project with the project, and writes it back."""

    @abstractmethod
    def _overlay_of_project(self, what: str) -> "Overlay":
        """Return the overlay. Raises UnsupportedError if commands change the workspace itself."""

    @abstractmethod
    async def _settle(self, work: "Callable[[Overlay], _T]") -> _T:
        """Do `work` on the overlay while no sandbox has it mounted, and return its result."""

    async def changes(self) -> "list[Change]":
        """Return what is different from the project, by path. Commands can be running."""
        return await asyncio.to_thread(self._overlay_of_project("changes").changes)

    async def diff(self, paths: Sequence[str] = ()) -> "list[Difference]":
        """Return the changes with their diffs; all of them, or those at or below `paths`."""
        overlay = self._overlay_of_project("diff")
        return await asyncio.to_thread(lambda: list(overlay.diff(paths)))

    async def apply(self, paths: Sequence[str] = (), *, force: bool = False) -> "ApplyResult":
        """Apply the changes to the project; all of them, or those at or below `paths`.

        See `Overlay.apply`. This ends commands and jobs like `checkpoint`.
        """
        overlay = self._overlay_of_project("apply")
        if paths:  # An error must not cost the sandbox.
            await asyncio.to_thread(overlay.check_paths, paths)
        return await self._settle(lambda overlay: overlay.apply(paths, force=force))

    async def discard(self) -> "list[Change]":
        """Discard all changes and checkpoints. Returns the discarded changes.

        This ends commands and jobs like `checkpoint`.
        """
        self._overlay_of_project("discard")
        return await self._settle(lambda overlay: overlay.discard())


def needs_overlay(why: str) -> UnsupportedError:
    """Return the error of a sandbox whose commands change the workspace itself."""
    return UnsupportedError(why, hint="open the sandbox with copy_on_write=True")


async def refuse_running(channel: Channel | None) -> None:
    """Raise SandboxError if anything runs: it would be ended, and its files be half written."""
    if not isinstance(channel, RunnerChannel) or channel.lost:
        return
    running = channel.running + sum(job.running for job in await channel.list_jobs())
    if running:
        raise SandboxError(
            f"commands or jobs are running in the sandbox ({running}), so it cannot be forked",
            hint="wait until they have ended, or stop them",
        )
