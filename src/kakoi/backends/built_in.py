"""BuiltInAdapter: what kakoi's own adapters share."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from kakoi.backends.adapter import Availability, ExecuteOptions, as_command, check_ended
from kakoi.channel.api import Channel, Command
from kakoi.channel.connection import Connection, Deadline
from kakoi.results import ExecutionResult


class BuiltInAdapter(ABC):
    """What our own adapters share: they provide `availability` and a connection.

    `_timeout_s`: the timeout of `execute`. `_deadline`: when the sandbox ends by itself.
    """

    _connection: Connection
    _deadline: Deadline
    _timeout_s: float

    @abstractmethod
    async def availability(self) -> Availability:
        """Whether it works here, found by trying it."""

    @property
    def can_pause(self) -> bool:
        """Whether `pause` works here; see `CanPause`."""
        return True

    async def is_available(self) -> bool:
        """Whether it works here."""
        return bool(await self.availability())

    async def isAvailable(self) -> bool:  # noqa: N802 - a public name
        """Another name for `is_available`."""
        return await self.is_available()

    async def run(self, command: Command) -> ExecutionResult:
        """Run `command` to its end; every outcome is a result."""
        return self._deadline.explained(await (await self.channel()).run(command))

    async def execute(
        self,
        command: str | Sequence[str],
        options: ExecuteOptions | Mapping[str, Any] | None = None,
    ) -> ExecutionResult:
        """Like `run`, but a command that did not end by itself raises (`check_ended`).

        `options`: also as a mapping, such as `{"cwd": "/tmp", "timeout": 5000}`.
        """
        wanted = as_command(command, options, timeout_s=self._timeout_s)
        result = await self.run(wanted)
        check_ended(result, wanted)
        return result

    async def channel(self) -> Channel:
        """The channel into the sandbox, opened at first use and again after it was lost."""
        return await self._connection.channel()

    async def shell(self) -> str:
        """The shell that reads command text: `bash`, or `sh` where bash is not certain."""
        return (await self.channel()).shell
