"""Has the kernel killed something in a container for want of memory?"""

import asyncio
import contextlib
import dataclasses
import shlex

from kakoi.errors import KakoiError
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.channel import RunnerChannel
from kakoi.runner.commands import Channel
from kakoi.runner.memory import COUNTERS, parse_count
from kakoi.sandbox.docker_cli import exec_args
from kakoi.sandbox.docker_container import Container
from kakoi.sandbox.docker_engine import Engine

_LOOK_S = 10.0
_MAX_BYTES = 4096
_READ = f"cat {shlex.join(COUNTERS)} 2>/dev/null; exit 0"


class ContainerMemory:
    """Watches one container while one channel to it is open.

    `before`: how many such kills there were when the channel was opened.
    """

    def __init__(self, engine: Engine, container: Container, before: int = 0) -> None:
        self._engine = engine
        self._container = container
        self._before = before

    def watching(self, channel: Channel) -> "ContainerMemory":
        """The same; the channel tells by it why it was lost, if it can."""
        if isinstance(channel, RunnerChannel):
            channel.loss.ran_out = self.ran_out
        return self

    async def ran_out(self) -> bool:
        """Were there more since then? False if nobody can say it."""
        try:
            state = await self._container.state()
            if not state.running:
                return state.out_of_memory
            words = exec_args(self._container.name, self._container.user, ["sh", "-c", _READ])
            async with asyncio.timeout(_LOOK_S):
                said = await self._engine.call(words, doing="looking for its kills")
        except (KakoiError, TimeoutError):
            return False
        return parse_count(said.stdout.encode()) > self._before

    async def explained(self, result: ExecutionResult) -> tuple[ExecutionResult, bool]:
        """The result of a command whose sandbox was lost, and whether the container still runs."""
        state = await self._container.state()
        if result.reason is Reason.SANDBOX_LOST and await self.ran_out():
            result = out_of_memory(result)
        elif not state.running:
            error = f"{result.error}; its container is {state}"
            result = dataclasses.replace(result, error=error)
        return result, state.running


async def kills_in(channel: Channel) -> int:
    """How many there were until now in the container that the channel leads to."""
    for path in COUNTERS:
        with contextlib.suppress(OSError):
            return parse_count(await channel.read_file(path, limit=_MAX_BYTES))
    return 0


def out_of_memory(result: ExecutionResult) -> ExecutionResult:
    """The result of a command whose container the kernel has ended for its memory."""
    return dataclasses.replace(result, reason=Reason.OUT_OF_MEMORY, exit_code=137)
