"""The way out of an adapter's containers: its directory, and who serves it at this moment."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from kakoi.errors import SandboxError
from kakoi.runner.commands import Channel
from kakoi.sandbox.docker_cli import WAY, Plan
from kakoi.sandbox.docker_container import Container
from kakoi.sandbox.outlet import Handover, Outlet, Served, unreachable


class Ways:
    """`outlet`: who serves them; None: there is no way out."""

    def __init__(self, outlet: Outlet | None) -> None:
        self._outlet = outlet
        self._handover: Handover | None = None
        self._served: dict[str, Served] = {}

    def planned(self, plan: Plan) -> Plan:
        """The plan, with a directory for it."""
        if self._outlet is None:
            return plan
        if self._handover is None or not os.path.isdir(self._handover.folder):
            self._handover = Handover()  # It goes with a container, which is made again now.
        return dataclasses.replace(plan, way=self._handover.folder)

    def adopt(self, handover: Handover | None) -> None:
        """The container is another's, and so is its directory."""
        self._handover = handover

    def keep(self, note: str) -> None:
        """See `Handover.keep`; nothing where there is no way out."""
        if self._handover is not None:
            self._handover.keep(note)

    async def serve(self, name: str, channel: Channel) -> None:
        """See to the way out of a container, if it is to have one."""
        if self._outlet is None or self._handover is None:
            return
        await self.stop(name)
        self._served[name] = await self._handover.take(channel, self._outlet, inside=WAY)

    def rename(self, before: str, after: str) -> None:
        """A container has another name."""
        if before in self._served:
            self._served[after] = self._served.pop(before)

    async def stop(self, name: str) -> None:
        """Do not serve a container any more."""
        if name in self._served:
            await self._served.pop(name).close()

    async def stop_all(self) -> None:
        """Serve none any more."""
        for name in list(self._served):
            await self.stop(name)

    def remove(self) -> None:
        """Take the directory away."""
        handover, self._handover = self._handover, None
        if handover is not None:
            handover.close()

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Say what it means if the engine does not find the directory: it runs elsewhere."""
        try:
            yield
        except SandboxError as error:
            if self._handover is not None and self._handover.folder in f"{error} {error.details}":
                raise unreachable("the engine does not see its files") from error
            raise


def adopted(container: Container) -> Handover | None:
    """The directory of a container that was found; None if it has no way out."""
    return Handover.adopt(container.way) if container.way else None
