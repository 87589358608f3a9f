"""The states of an environment (spec A 3.1), and the moves between them; others are errors."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from kakoi.errors import SandboxError


class Status(StrEnum):
    """What an environment is doing."""

    CREATED = "created"
    INITIALIZING = "initializing"
    READY = "ready"
    RUNNING = "running"
    STOPPED = "stopped"
    DELETED = "deleted"


# Stopping is possible from everywhere: what fails half-way is taken away, too.
MOVES: Final[Mapping[Status, frozenset[Status]]] = {
    Status.CREATED: frozenset({Status.INITIALIZING, Status.STOPPED}),
    Status.INITIALIZING: frozenset({Status.READY, Status.STOPPED}),
    Status.READY: frozenset({Status.RUNNING, Status.STOPPED}),
    Status.RUNNING: frozenset({Status.READY, Status.STOPPED}),
    Status.STOPPED: frozenset({Status.DELETED}),
    Status.DELETED: frozenset(),
}


class Lifecycle:
    """The state of one environment. Of several commands at once, the last makes it ready again."""

    def __init__(self) -> None:
        self.status = Status.CREATED
        self._running = 0

    def move(self, to: Status) -> None:
        """Go on to another state; SandboxError if there is no way."""
        if to not in MOVES[self.status]:
            raise SandboxError(
                f"an environment that is {self.status} cannot become {to}",
                details={"from": self.status, "to": to},
            )
        self.status = to

    def begin_command(self) -> None:
        """A command starts."""
        if self.status is not Status.RUNNING:
            self.move(Status.RUNNING)
        self._running += 1

    def end_command(self) -> None:
        """A command has ended, however; the environment may be on its way out meanwhile."""
        self._running -= 1
        if self._running == 0 and self.status is Status.RUNNING:
            self.move(Status.READY)
