"""Why a sandbox was lost, as far as it can be seen from outside: its runner cannot say it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from kakoi.errors import SandboxError
from kakoi.results import ExecutionResult, Reason


class Loss:
    """The one reason for all that was lost with a sandbox.

    `ran_out`: whether the kernel killed something in it for want of memory; None where nobody can
    look. It is asked once, after the loss. `note`: what else is to be said of it.
    """

    def __init__(self) -> None:
        self.ran_out: Callable[[], Awaitable[bool]] | None = None
        self.note = ""
        self._looking: asyncio.Task[Reason] | None = None

    async def explained(self, lost: ExecutionResult) -> ExecutionResult:
        """The result of a command that was lost."""
        if self.note:
            lost = replace(lost, error=f"{lost.error}; {self.note}")
        if await self._reason() is Reason.SANDBOX_LOST:
            return lost
        return replace(lost, reason=Reason.OUT_OF_MEMORY, exit_code=137)

    async def explained_error(self, lost: SandboxError) -> SandboxError:
        """The error for something else that was asked for. `details` has the reason."""
        if await self._reason() is Reason.SANDBOX_LOST:
            return lost
        return SandboxError(
            f"{lost.message}; it ran out of memory",
            details={**lost.details, "reason": Reason.OUT_OF_MEMORY},
            hint="give the sandbox more memory, or less to do at a time",
        )

    async def _reason(self) -> Reason:
        if self._looking is None:
            self._looking = asyncio.ensure_future(self._look())
        return await asyncio.shield(self._looking)

    async def _look(self) -> Reason:
        ran_out = self.ran_out is not None and await self.ran_out()
        return Reason.OUT_OF_MEMORY if ran_out else Reason.SANDBOX_LOST
