"""The jobs of a gate: waits for each to end, and remembers the results of the last ones."""

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from typing import Final

from kakoi.channel.api import Channel
from kakoi.results import ExecutionResult
from kakoi.runner.frames import REMEMBERED_JOBS

# Sandboxes of ended jobs, kept so that their output can be read.
_MOST_PLACES: Final = 4
_LAST_S: Final = 10.0
_Ending = asyncio.Task[ExecutionResult]


class Jobs:
    """Running jobs, and the results of ended jobs.

    Results are kept here because the sandbox does not have what the gate added to them. A job that
    runs in a sandbox of its own keeps it, until later ones need the room.
    """

    def __init__(self) -> None:
        self._endings: set[_Ending] = set()
        self._results: dict[str, ExecutionResult] = {}
        self._places: dict[str, tuple[Channel, AsyncExitStack]] = {}

    def track(self, job: str, ending: Coroutine[object, object, ExecutionResult]) -> _Ending:
        """Wait in the background for `ending`, which returns the result of the job."""
        task = asyncio.get_running_loop().create_task(ending, name=job)
        self._endings.add(task)
        task.add_done_callback(self._has_ended)
        return task

    def _has_ended(self, ending: _Ending) -> None:
        self._endings.discard(ending)
        if ending.cancelled():
            return
        self._results[ending.get_name()] = ending.result()
        if len(self._results) > REMEMBERED_JOBS:
            del self._results[next(iter(self._results))]

    def __contains__(self, job: str) -> bool:
        return job in self._results or job in self.running

    @property
    def running(self) -> list[str]:
        """The ids of the jobs that have not ended."""
        return [ending.get_name() for ending in self._endings]

    async def wait(self, job: str, *, wait_s: float | None = None) -> ExecutionResult | None:
        """Return the result; None if the job still runs after `wait_s`, or is unknown."""
        ending = next((each for each in self._endings if each.get_name() == job), None)
        if ending is not None:
            await asyncio.wait([ending], timeout=wait_s)
            if ending.done() and not ending.cancelled():
                return ending.result()
        return self._results.get(job)

    async def keep_place(self, job: str, channel: Channel, place: AsyncExitStack) -> None:
        """Keep the sandbox of a job that was just started; `place` ends it."""
        self._places[job] = channel, place
        ended = [each for each in self._places if each not in (job, *self.running)]
        for each in ended[: -(_MOST_PLACES - 1)]:
            await self._places.pop(each)[1].aclose()

    def own_channel(self, job: str) -> Channel | None:
        """Return the channel to the job's own sandbox; None if it runs with the others."""
        found = self._places.get(job)
        return found and found[0]

    def own_channels(self) -> list[Channel]:
        """Return the channels to all sandboxes with a single job."""
        return [channel for channel, _ in self._places.values()]

    async def close(self, *, ended: bool) -> None:
        """Stop waiting for all of them, and end the sandboxes that are kept for them.

        `ended`: the sandbox has been ended with its jobs, so each end is known in a moment.
        """
        if ended:
            await self._close_places()
            if self._endings:
                await asyncio.wait(self._endings, timeout=_LAST_S)
        for ending in list(self._endings):
            ending.cancel()
        await asyncio.gather(*self._endings, return_exceptions=True)
        await self._close_places()

    async def _close_places(self) -> None:
        while self._places:
            await self._places.popitem()[1][1].aclose()
