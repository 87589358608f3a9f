"""How kakoi's own doors (command line, servers, tasks, the specs' interfaces) open a sandbox."""

import contextlib
from collections.abc import AsyncIterator

from kakoi.gate import Gate
from kakoi.sandbox.options import SandboxOptions
from kakoi.sandbox.sandbox import Sandbox


class DoorSandbox(Sandbox):
    """A `Sandbox` from options that a door has read, and with its gate.

    Options that cannot be right, such as a list of domains, are an error now.
    """

    def __init__(self, options: SandboxOptions) -> None:
        self._prepare(options)
        self._gate = self._life.gate

    @property
    def gate(self) -> Gate:
        """The gate to the sandbox, for a `Command` and an approver of each call.

        Commands are judged and recorded as by `run`; the first that may run opens the sandbox.
        """
        return self._gate


@contextlib.asynccontextmanager
async def sandbox_for(options: SandboxOptions) -> AsyncIterator[DoorSandbox]:
    """Yield the sandbox that the options describe, and close it at the end.

    Unlike `async with Sandbox(…)`, this opens nothing: the first command that may run does.
    """
    box = DoorSandbox(options)
    try:
        yield box
    finally:
        await box.close()
