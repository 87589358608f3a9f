"""The commands that a PosixChannel has run: the same id means the same execution."""

import asyncio
import contextlib
from collections import OrderedDict

from kakoi.channel.api import MIB
from kakoi.channel.posix.foreground import PosixCommand
from kakoi.channel.posix.shells import OrderError, Shells
from kakoi.errors import SandboxError

_MOST_RUNS = 1000
_MOST_BYTES = 8 * MIB
_MOST_STORED_BYTES = 256 * MIB
_PRUNE_AFTER = 100


class RunHistory:
    """The newest commands, with their results and output, bounded here and in the sandbox.

    A command that is forgotten here is still known by id in the sandbox: it is not run again.
    """

    def __init__(self, shells: Shells) -> None:
        self._shells = shells
        self._runs: OrderedDict[str, PosixCommand] = OrderedDict()
        self._chores: set[asyncio.Future[None]] = set()
        self._count = 0

    def find(self, name: str) -> PosixCommand | None:
        """Return the command of that id, if it is remembered."""
        return self._runs.get(name)

    def add(self, running: PosixCommand) -> None:
        """Remember a command that is starting."""
        self._runs[running.id] = running

    def tidy(self) -> None:
        """A command has ended: forget the oldest, here and there, if there are too many."""
        self._count += 1
        forgotten = self._shrink()
        is_time = self._count % _PRUNE_AFTER == 0
        if not self._shells.lost and (forgotten or is_time):
            chore = asyncio.ensure_future(self._clean(forgotten, prune=is_time))
            self._chores.add(chore)
            chore.add_done_callback(self._chores.discard)

    async def close(self) -> None:
        """Wait for pending clean-up."""
        while self._chores:
            await asyncio.wait(self._chores)

    async def _clean(self, names: list[str], *, prune: bool) -> None:
        with contextlib.suppress(SandboxError, OrderError):
            for name in names:
                await self._shells.order("drop", name)
            if prune:
                await self._shells.order("prune")

    def _shrink(self) -> list[str]:
        """Forget the oldest; returns those whose output in the sandbox must be removed as well."""
        over = [running for running in self._runs.values() if running.is_over]
        kept, stored = _sizes(over)
        forgotten = []
        for count, running in enumerate(over[:-1]):
            is_much = kept > _MOST_BYTES or len(over) - count > _MOST_RUNS
            if not is_much and stored <= _MOST_STORED_BYTES:
                break
            sizes = _sizes([running])
            kept, stored = kept - sizes[0], stored - sizes[1]
            if sizes[1]:
                forgotten.append(running.id)
            del self._runs[running.id]
        return forgotten


def _sizes(runs: list[PosixCommand]) -> tuple[int, int]:
    """Return about how many bytes of output are kept here, and how many in the sandbox."""
    streams = [stream for running in runs for stream in running.streams.values()]
    return sum(stream.size for stream in streams), sum(stream.stored for stream in streams)
