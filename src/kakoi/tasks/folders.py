"""FolderEnvironments: a clean clone on this machine for each task, in a sandbox.

For machines without a container engine. The project's dependencies are not installed.
"""

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

from kakoi._support.asyncio import finish
from kakoi._support.files import remove_tree
from kakoi._support.late import dataclass
from kakoi.errors import SandboxError
from kakoi.gate import Gate
from kakoi.network.git_remotes import GitCredential, parse_remote
from kakoi.sandbox.doors import DoorSandbox
from kakoi.sandbox.options import SandboxOptions
from kakoi.tasks.checkout import clone_error
from kakoi.tasks.environment import ContainerInfo
from kakoi.tasks.host_git import HostGit
from kakoi.tasks.task import PREFIX, Task, container_name

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class FolderEnvironment:
    """The environment of one task. Its agent's commands run through `gate` only."""

    box: DoorSandbox
    container: ContainerInfo

    @property
    def gate(self) -> Gate:
        """The gate to its folder."""
        return self.box.gate

    def info(self) -> ContainerInfo:
        """The public description of the environment."""
        return self.container


class FolderEnvironments:
    """Creates folders below `root` and removes them.

    `options_for`: what a sandbox is opened with, given its workspace and the task's uuid.
    `depth`: the number of commits to clone; None means all. A request to merge gets all of them, so
        that it can be compared with the branch to merge into.
    """

    def __init__(
        self,
        root: Path,
        *,
        options_for: Callable[[str, str], SandboxOptions],
        git: HostGit,
        credential_for: Callable[[str], GitCredential | None],
        clock: Callable[[], datetime],
        depth: int | None = None,
    ) -> None:
        self._root = root
        self._options_for = options_for
        self._git = git
        self._credential_for = credential_for
        self._clock = clock
        self._depth = depth
        self._active: dict[str, FolderEnvironment] = {}

    async def prepare(self, task: Task) -> ContainerInfo:
        """Clone the task's project, with a sandbox around it. If it fails, nothing is left."""
        return (await self.prepare_environment(task)).info()

    async def prepare_environment(self, task: Task) -> FolderEnvironment:
        """Like `prepare`, but return the environment itself, with its gate."""
        await self.cleanup(task.uuid)
        try:
            return await self._prepare(task)
        except BaseException:
            await finish(self.cleanup(task.uuid))
            raise

    async def _prepare(self, task: Task) -> FolderEnvironment:
        path = self._path(task.uuid)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SandboxError(f"cannot create {path.parent}: {error.strerror}") from None
        commit = await self._clone(task, path)
        info = ContainerInfo(
            container_id=path.name,
            task_uuid=task.uuid,
            workspace_path=str(path),
            created_at=self._clock(),
            status="ready",
            name=path.name,
            commit=commit,
        )
        box = DoorSandbox(self._options_for(str(path), task.uuid))
        environment = self._active[task.uuid] = FolderEnvironment(box, info)
        return environment

    async def _clone(self, task: Task, path: Path) -> str:
        """Clone the project, and return the commit that it is at."""
        remote = parse_remote(task.repository)
        credential = remote.credential_or(self._credential_for(task.repository))
        branch = [] if task.source_branch is None else ["--branch", task.source_branch]
        if self._depth is not None and task.target_branch is None:
            branch += ["--depth", str(self._depth)]
        # Without hard links to another repository: commands must get their own copy of the files.
        argv = ["clone", "--quiet", "--no-local", *branch, "--", remote.url, str(path)]
        done = await self._git.run(argv, remote, credential)
        if done.exit_code != 0:
            output = done.stderr if credential is None else credential.hide(done.stderr)
            raise clone_error(output, remote)
        return await self._git.head(path)

    async def cleanup(self, task_uuid: str) -> None:
        """Remove a task's folder, even another process's. A failure is logged, not raised."""
        await finish(self._cleanup(task_uuid))

    async def _cleanup(self, task_uuid: str) -> None:
        folder = self._active.pop(task_uuid, None)
        if folder is not None:
            await folder.box.close()
        await asyncio.to_thread(_remove, self._path(task_uuid))

    async def cleanup_stale_containers(self, older_than: timedelta) -> list[str]:
        """Remove what earlier runs left behind, by name and age; returns the names removed."""
        return await asyncio.to_thread(self._sweep, older_than)

    def _sweep(self, older_than: timedelta) -> list[str]:
        active = {container_name(uuid) for uuid in self._active}
        before = (self._clock() - older_than).timestamp()
        removed = []
        for path in sorted(self._root.glob(f"{PREFIX}*")):
            if path.name not in active and _is_older(path, before) and _remove(path):
                removed.append(path.name)
        return removed

    def _path(self, task_uuid: str) -> Path:
        return self._root / container_name(task_uuid)


def _is_older(path: Path, before: float) -> bool:
    try:
        return path.lstat().st_mtime < before
    except FileNotFoundError:  # Another process removed it.
        return False


def _remove(path: Path) -> bool:
    try:
        remove_tree(path)
    except OSError as error:
        _log.warning("cannot remove the folder %s: %s", path, error)
        return False
    return True
