"""Git on this machine, with the user's keys and tokens. Only the process that needs one gets it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from kakoi._support.asyncio import finish
from kakoi._support.files import remove_tree
from kakoi._support.late import pattern
from kakoi.backends.locked_folders import LockedFolder, sweep
from kakoi.errors import ExecutionTimeoutError
from kakoi.network.git_remotes import GitCredential, Remote, git_variables, ssh_command
from kakoi.process.executor import ProcessExecutor
from kakoi.process.options import ProcessResult, SpawnOptions

GIB: Final = 1024**3
MOST_FETCHED_BYTES: Final = 10 * GIB
MAX_MEMORY_BYTES: Final = 2 * GIB
# The errors of git when it exceeds one of these limits.
FILE_TOO_LARGE: Final = pattern(r"File too large")
OUT_OF_MEMORY: Final = pattern(r"[Oo]ut of memory|Cannot allocate memory")
# A limit that cannot be set exceeds one that this machine already has. The signal is ignored
# because it would end git without an error message.
_LIMITED: Final = (
    'trap \'\' XFSZ; ulimit -f "$1" 2>/dev/null; ulimit -d "$2" 2>/dev/null; shift 2; exec git "$@"'
)


class HostGit:
    """Runs git on this machine. Only the process that needs a key or token of the user gets it.

    Its input comes from servers and from models, so each process has limits on its time, file size
    and memory: a small pack can hold very large objects.

    `ssh_env`: variables for ssh, such as the socket of its agent.
    `timeout_s`: for one process as a whole; `stall_s`: how long the server may send nothing.
    `file_bytes`: the largest file that it can write; `memory_bytes`: for each of its processes.
    """

    def __init__(
        self,
        executor: ProcessExecutor,
        *,
        timeout_s: float,
        stall_s: float,
        known_hosts: str = "",
        ssh_env: Mapping[str, str] | None = None,
        file_bytes: int = MOST_FETCHED_BYTES,
        memory_bytes: int = MAX_MEMORY_BYTES,
    ) -> None:
        self._executor = executor
        self._timeout_s = timeout_s
        self._stall_s = stall_s
        self._known_hosts = known_hosts
        self._ssh_env = dict(ssh_env or {})
        self._file_bytes = file_bytes
        self._memory_bytes = memory_bytes

    async def run(
        self,
        argv: Sequence[str],
        remote: Remote | None = None,
        credential: GitCredential | None = None,
        *,
        proxy: str = "",
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        file_bytes: int | None = None,
        memory_bytes: int | None = None,
    ) -> ProcessResult:
        """Run git with `argv`. A timeout is a result with an exit code and a message.

        `proxy`: the address of a proxy for all of HTTP. `env`: more variables.
        `file_bytes`, `memory_bytes`: lower limits than usual.
        """
        variables = dict(git_variables(remote, credential, stall_s=self._stall_s, proxy=proxy))
        if remote is not None and remote.scheme == "ssh":
            ssh = ssh_command(known_hosts=self._known_hosts, stall_s=self._stall_s)
            variables |= {**self._ssh_env, "GIT_SSH_COMMAND": ssh}
        options = SpawnOptions(
            env={**variables, **(env or {})}, stdin=stdin, timeout=self._timeout_s * 1000
        )
        longest = min(self._file_bytes, file_bytes or self._file_bytes)
        memory = min(self._memory_bytes, memory_bytes or self._memory_bytes)
        limits = (str(longest // 512), str(memory // 1024))
        try:
            return await self._executor.spawn(
                "sh", ["-c", _LIMITED, "git", *limits, *argv], options
            )
        except ExecutionTimeoutError:
            message = f"git was not done after {self._timeout_s:g} s"
            return ProcessResult(stdout="", stderr=message, exit_code=-1)

    async def head(self, repository: Path) -> str:
        """The commit that a repository is at; empty if it has none."""
        argv = ["-C", str(repository), "rev-parse", "--quiet", "--verify", "HEAD^{commit}"]
        return (await self.run(argv)).stdout.strip()


@contextlib.asynccontextmanager
async def scratch_folder(prefix: str) -> AsyncIterator[Path]:
    """A new folder, removed at the end. Also removes those that killed processes left behind."""
    await finish(asyncio.to_thread(sweep, prefix, remove_tree))
    folder = LockedFolder(prefix)
    try:
        yield Path(folder.path)
    finally:
        try:
            await finish(asyncio.to_thread(remove_tree, folder.path))
        finally:
            folder.release()
