"""The network outlets of an adapter's containers: their directory and their servers."""

import contextlib
import dataclasses
import os
from collections.abc import Iterator

from kakoi.backends.docker.arguments import OUTLET_FOLDER, ContainerPlan
from kakoi.backends.docker.container import Container
from kakoi.backends.outlet import HandoverFolder, Outlet, OutletServer, cannot_limit_network
from kakoi.channel.api import Channel
from kakoi.errors import SandboxError


class ContainerOutlets:
    """The outlets of containers. `outlet`: serves them; None: they have no proxied network."""

    def __init__(self, outlet: Outlet | None) -> None:
        self._outlet = outlet
        self._handover: HandoverFolder | None = None
        self._served: dict[str, OutletServer] = {}

    def planned(self, plan: ContainerPlan) -> ContainerPlan:
        """Return the plan with a directory for the outlet."""
        if self._outlet is None:
            return plan
        if self._handover is None or not os.path.isdir(self._handover.folder):
            self._handover = HandoverFolder()  # The old one was removed with its container.
        return dataclasses.replace(plan, outlet_folder=self._handover.folder)

    def adopt(self, handover: HandoverFolder | None) -> None:
        """Use the directory of an existing container."""
        self._handover = handover

    def keep(self, note: str) -> None:
        """See `HandoverFolder.keep`; does nothing without an outlet."""
        if self._handover is not None:
            self._handover.keep(note)

    async def serve(self, name: str, channel: Channel) -> None:
        """Serve the outlet of a container, if it has one."""
        if self._outlet is None or self._handover is None:
            return
        await self.stop(name)
        self._served[name] = await self._handover.take(channel, self._outlet, inside=OUTLET_FOLDER)

    def rename(self, before: str, after: str) -> None:
        """Record that a container was renamed."""
        if before in self._served:
            self._served[after] = self._served.pop(before)

    async def stop(self, name: str) -> None:
        """Stop serving a container."""
        if name in self._served:
            await self._served.pop(name).close()

    async def stop_all(self) -> None:
        """Stop serving all containers."""
        for name in list(self._served):
            await self.stop(name)

    def remove(self) -> None:
        """Remove the directory."""
        handover, self._handover = self._handover, None
        if handover is not None:
            handover.close()

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Explain an error about the missing directory: the engine runs on another machine."""
        try:
            yield
        except SandboxError as error:
            if self._handover is not None and self._handover.folder in f"{error} {error.details}":
                raise cannot_limit_network("the engine does not see its files") from error
            raise


def adopted_folder(container: Container) -> HandoverFolder | None:
    """The directory of an existing container; None if it has no outlet."""
    return HandoverFolder.adopt(container.outlet_folder) if container.outlet_folder else None
