"""The jobs of a gate: waits for each to end, and remembers the results of the last ones."""

import asyncio
from collections.abc import Coroutine
from typing import Final

from kakoi.results import ExecutionResult

# A runner remembers the same number.
_MOST_REMEMBERED: Final = 256
_Ending = asyncio.Task[ExecutionResult]


class Jobs:
    """Running jobs, and the results of ended jobs.

    Results are kept here because the sandbox does not have what the gate added to them.
    """

    def __init__(self) -> None:
        self._endings: set[_Ending] = set()
        self._results: dict[str, ExecutionResult] = {}

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
        if len(self._results) > _MOST_REMEMBERED:
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

    async def close(self) -> None:
        """Stop waiting for all of them."""
        for ending in list(self._endings):
            ending.cancel()
        await asyncio.gather(*self._endings, return_exceptions=True)
