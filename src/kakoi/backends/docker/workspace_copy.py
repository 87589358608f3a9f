"""The copy of a workspace that the commands of a container write to, instead of the workspace.

It is an overlay (overlay/) that root mounts in the container (process/overlay_mount.py). To save
its state, it is taken out of the container for a moment; everything else in the container stays.
"""

import asyncio
import dataclasses
import os
from collections.abc import Callable
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeVar

from kakoi._support.asyncio import finish
from kakoi.backends.adapter import Availability
from kakoi.backends.copy_on_write import needs_overlay
from kakoi.backends.docker.arguments import ContainerPlan, Lifetime
from kakoi.backends.docker.container import Container
from kakoi.backends.docker.engine import Engine, EngineFacts
from kakoi.backends.docker.mounts import (
    CopyMount,
    copy_path,
    hide_copy,
    replace_copy,
    why_mounts_not_shared,
)
from kakoi.backends.workspace import identify, identify_workspace, kakoi_paths_in
from kakoi.errors import ConfigurationError, EnvironmentUnavailableError

if TYPE_CHECKING:
    from kakoi.overlay import Overlay

_T = TypeVar("_T")


class WorkspaceCopy:
    """The copy of one container. `workspace`: the directory that it is a copy of."""

    def __init__(
        self,
        engine: Engine,
        overlay: "Overlay | None",
        workspace: str | None,
        lifetime: Lifetime = "client",
    ) -> None:
        if overlay is not None and lifetime != "client":  # This process has it locked.
            raise ConfigurationError('a copy of the workspace needs lifetime="client"')
        self._engine = engine
        self._overlay = overlay
        self._workspace = workspace or ""
        self._mount: CopyMount | None = None
        self._plan: ContainerPlan | None = None
        self._is_open = False
        self._turn = asyncio.Lock()

    @property
    def is_there(self) -> bool:
        """Whether commands write to a copy."""
        return self._overlay is not None

    def overlay(self, what: str) -> "Overlay":
        """Return the overlay. Raises UnsupportedError if commands change the workspace itself."""
        if self._overlay is None:
            raise needs_overlay(f"`{what}` compares a copy of a project with the project")
        return self._overlay

    async def availability(self) -> Availability:
        """Whether a copy can be mounted in containers of this engine."""
        if self._overlay is None:
            return Availability(True)
        why = await asyncio.to_thread(_why_not, self._engine, await self._engine.facts())
        fix = "use bubblewrap, which needs no root; or turn copy-on-write off"
        return Availability(False, why, fix) if why else Availability(True)

    async def planned(self, plan: ContainerPlan) -> ContainerPlan:
        """Return the plan of a container that shows the copy instead of the workspace."""
        if self._overlay is None:
            return plan
        if not (found := await self.availability()):
            raise EnvironmentUnavailableError(found.reason, hint=found.fix)
        mount = await finish(self._take(self._overlay, plan))
        return dataclasses.replace(
            plan, source=copy_path(plan.name), lent=None, guarded=(), copied=mount
        )

    # A thread cannot be cancelled: what it opened is ours to close, so this is always finished.
    async def _take(self, overlay: "Overlay", plan: ContainerPlan) -> CopyMount:
        async with self._turn:  # A probe and an opening can want it at the same time.
            self._plan = plan
            if self._mount is None:
                mounts = await asyncio.to_thread(overlay.open)
                self._is_open = True
                seen = identify_workspace(self._workspace, guarded=True)
                paths = [PurePath(each.path) for each in kakoi_paths_in(seen)]
                self._mount = CopyMount(
                    workspace=identify(mounts.base, what="the workspace"),
                    folder=identify(mounts.folder, what="the overlay"),
                    names=(mounts.work, *mounts.stack),
                    guarded=[str(each.relative_to(seen.path)) for each in paths],
                    inside=plan.settings.inside,
                    uid=plan.uid,
                    gid=plan.gid,
                    data_only=plan.settings.programs is not None,
                )
            return self._mount

    async def enter(self, container: Container) -> None:
        """Mount it in the container again, if it was taken out."""
        if self._overlay is None or self._mount is not None or self._plan is None:
            return
        mount = await finish(self._take(self._overlay, self._plan))
        container.copied = mount
        await replace_copy(mount, pid=await self._engine.pid(container.name))

    async def change(self, container: Container | None, work: "Callable[[Overlay], _T]") -> _T:
        """Take it out of the container, and do `work` on it. Nothing in there must run."""
        overlay = self.overlay("checkpoint")
        async with self._turn:
            if self._mount is not None and container is not None:
                await hide_copy(self._mount, pid=await self._engine.pid(container.name))
            self._mount = None
            overlay.unmounted()
            return await asyncio.to_thread(work, overlay)

    async def close(self) -> None:
        """Unlock the overlay. Its container must be gone by now."""
        self._mount = self._plan = None
        if self._is_open and self._overlay is not None:
            self._is_open = False
            await asyncio.to_thread(self._overlay.close)

    def fork(self, overlay: "Overlay") -> "WorkspaceCopy":
        """Return the copy of a fork."""
        copy = WorkspaceCopy(self._engine, overlay, self._workspace)
        copy._is_open = True
        return copy


def _why_not(engine: Engine, facts: EngineFacts) -> str:
    """Why no copy can be mounted in containers of this engine; empty if it can."""
    if os.geteuid() != 0:
        return f"only root can give a container of {engine.program} a copy of the workspace"
    if facts.remapped or facts.rootless or not engine.is_local:
        return f"this {engine.program} engine cannot see a copy of the workspace"
    if engine.program == "podman":  # It has no engine that could be elsewhere.
        return ""
    why = why_mounts_not_shared(engine.socket, copy_path(""))
    return f"the engine cannot see a copy of the workspace: {why}" if why else ""
