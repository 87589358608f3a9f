"""FolderEnvironments: a clean clone on this machine for each task, and a sandbox around it.

For machines without an engine of containers. What a project depends on is not installed here.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.gate import Gate
from kakoi.removing import remove_tree
from kakoi.tasks.checkout import clone_error
from kakoi.tasks.our_git import OurGit
from kakoi.tasks.remotes import Credential, parse_remote
from kakoi.tasks.task import PREFIX, Task, container_name
from kakoi.tasks.values import ContainerInfo
from kakoi.waiting import finish

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Folder:
    """One task's. Commands of its agent go through `gate` and nowhere else."""

    gate: Gate
    info: ContainerInfo
    opened: contextlib.AsyncExitStack


class FolderEnvironments:
    """Makes folders below `root` and takes them away.

    `open_gate`: the way into a sandbox for a workspace, for the task of a uuid.
    """

    def __init__(
        self,
        root: Path,
        *,
        open_gate: Callable[[str, str], AbstractAsyncContextManager[Gate]],
        git: OurGit,
        credential_for: Callable[[str], Credential | None],
        clock: Callable[[], datetime],
    ) -> None:
        self._root = root
        self._open_gate = open_gate
        self._git = git
        self._credential_for = credential_for
        self._clock = clock
        self._active: dict[str, Folder] = {}

    async def prepare(self, task: Task) -> ContainerInfo:
        """A clone of the task's project, with a sandbox around it. If it fails, nothing is left."""
        await self.cleanup(task.uuid)
        try:
            return await self._prepare(task)
        except BaseException:
            await finish(self.cleanup(task.uuid))
            raise

    async def _prepare(self, task: Task) -> ContainerInfo:
        path = self._path(task.uuid)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SandboxError(f"cannot make {path.parent}: {error.strerror}") from None
        await self._clone(task, path)
        info = ContainerInfo(
            container_id=path.name,
            task_uuid=task.uuid,
            workspace_path=str(path),
            created_at=self._clock(),
            status="ready",
            name=path.name,
        )
        opened = contextlib.AsyncExitStack()
        gate = await opened.enter_async_context(self._open_gate(str(path), task.uuid))
        self._active[task.uuid] = Folder(gate, info, opened)
        return info

    async def _clone(self, task: Task, path: Path) -> None:
        remote = parse_remote(task.repository)
        credential = remote.credential_or(self._credential_for(task.repository))
        branch = [] if task.source_branch is None else ["--branch", task.source_branch]
        # Not by links to files of another repository: commands are to have their own.
        argv = ["clone", "--quiet", "--no-local", *branch, "--", remote.url, str(path)]
        done = await self._git.run(argv, remote, credential)
        if done.exit_code != 0:
            said = done.stderr if credential is None else credential.hide(done.stderr)
            raise clone_error(said, remote)

    def find(self, container_id: str) -> Folder:
        """What `prepare` has made."""
        for folder in self._active.values():
            if container_id == folder.info.container_id:
                return folder
        raise ConfigurationError(f"{container_id!r:.80} is no environment of ours")

    async def cleanup(self, task_uuid: str) -> None:
        """Take a task's folder away, whoever made it. One that stays is told, and not raised."""
        await finish(self._cleanup(task_uuid))

    async def _cleanup(self, task_uuid: str) -> None:
        folder = self._active.pop(task_uuid, None)
        if folder is not None:
            await folder.opened.aclose()
        await asyncio.to_thread(_remove, self._path(task_uuid))

    async def cleanup_stale_containers(self, older_than: timedelta) -> list[str]:
        """Remove what earlier runs have left behind, by name and age; returns what was removed."""
        return await asyncio.to_thread(self._sweep, older_than)

    def _sweep(self, older_than: timedelta) -> list[str]:
        ours = {container_name(uuid) for uuid in self._active}
        before = (self._clock() - older_than).timestamp()
        removed = []
        for path in sorted(self._root.glob(f"{PREFIX}*")):
            if path.name not in ours and _is_older(path, before) and _remove(path):
                removed.append(path.name)
        return removed

    def _path(self, task_uuid: str) -> Path:
        return self._root / container_name(task_uuid)


def _is_older(path: Path, before: float) -> bool:
    try:
        return path.lstat().st_mtime < before
    except FileNotFoundError:  # Somebody else sweeps, too.
        return False


def _remove(path: Path) -> bool:
    try:
        remove_tree(path)
    except OSError as error:
        _log.warning("the folder %s could not be removed: %s", path, error)
        return False
    return True
