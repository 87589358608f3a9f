"""The states of a container's workspace: checkpoints, and the copy that commands write to."""

import asyncio
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from kakoi._support.asyncio import finish
from kakoi.backends.copy_on_write import CopyOnWrite, refuse_running
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.docker.channels import ContainerEntry
from kakoi.backends.docker.checkpoints import Checkpoints
from kakoi.backends.docker.container import Container
from kakoi.backends.docker.workspace_copy import WorkspaceCopy
from kakoi.backends.pause import Pause
from kakoi.channel.connection import Connection
from kakoi.errors import UnsupportedError

if TYPE_CHECKING:
    from kakoi.overlay import Overlay

_T = TypeVar("_T")


class WorkspaceStates(CopyOnWrite):
    """What DockerAdapter can do with its workspace.

    `_checkpoints`: of a private workspace, which is in the container. `_copied`: of a directory of
    this machine.
    """

    _checkpoints: Checkpoints
    _config: DockerSettings
    _connection: Connection
    _container: Container | None
    _copied: WorkspaceCopy
    _entry: ContainerEntry
    _pause: Pause

    @property
    @abstractmethod
    def name(self) -> str:
        """`docker` or `podman`"""

    @abstractmethod
    async def _shared_container(self, what: str) -> Container:
        """Return the container of all commands."""

    async def checkpoint(self, name: str) -> None:
        """Save the files of the workspace under a new name; see `Checkpoints`.

        Jobs keep running, unless commands write to a copy of the workspace: then they end. Raises
        UnsupportedError if commands change a directory of this machine.
        """
        if self._copied.is_there:
            overlay = self._copied.overlay("checkpoint")
            await asyncio.to_thread(overlay.check_new_checkpoint, name)
            return await self._settle(lambda overlay: overlay.checkpoint(name))
        self._checkpoints.check_new(name)
        container = await self._own_workspace()
        await self._checkpoints.save(name, container, self._entry.launch)

    async def rollback(self, name: str) -> None:
        """Return the files of the workspace to a checkpoint, which is kept; later ones are removed.

        This ends every command and job. The files elsewhere in the container stay.
        """
        if self._copied.is_there:
            overlay = self._copied.overlay("rollback")
            await asyncio.to_thread(overlay.check_checkpoint, name)
            return await self._settle(lambda overlay: overlay.rollback(name))
        container = await self._own_workspace()
        self._checkpoints.check_known(name)
        await self._alone(
            container, lambda: self._checkpoints.restore(name, container, self._entry.launch)
        )

    async def _alone(self, container: Container | None, work: Callable[[], Awaitable[_T]]) -> _T:
        """Do `work` once every command and job has ended. The next call opens a new channel."""

        async def settle() -> _T:
            async with self._connection.exclusive() as channel:
                await self._pause.end()
                if channel is not None:
                    await channel.close()
                if container is not None:
                    await container.end_everything(unless_in_use=False)
                return await work()

        return await finish(settle())

    async def _settle(self, work: "Callable[[Overlay], _T]") -> _T:
        container = self._container
        return await self._alone(container, lambda: self._copied.change(container, work))

    def _overlay_of_project(self, what: str) -> "Overlay":
        return self._copied.overlay(what)

    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints, the oldest first."""
        if self._copied.is_there:
            return self._copied.overlay("checkpoint").checkpoints()
        return self._checkpoints.names

    async def _own_workspace(self) -> Container:
        if self._config.workspace is not None:
            raise UnsupportedError(
                f"{self.name} has no checkpoints of a directory of this machine",
                hint="open it without `workspace`, or with copy_on_write=True",
            )
        return await self._shared_container("roll back")

    async def _fork_copy(self, forks: "Sequence[WorkspaceStates]") -> None:
        """Give each fork its copy. One that was written to is taken out for that moment."""
        overlay = self._copied.overlay("fork")
        if await asyncio.to_thread(overlay.has_unshared_changes):
            async with self._connection.exclusive() as channel:
                await refuse_running(channel)
            made = await self._settle(lambda overlay: overlay.fork(len(forks)))
        else:
            made = await asyncio.to_thread(overlay.fork, len(forks))
        for fork, each in zip(forks, made, strict=True):
            fork._copied = self._copied.fork(each)
