"""Git on this machine, with our keys and tokens: each is lent to the one process that needs it.

What it reads comes from servers and from models. So each process is limited in its time, in the
size of its files and in its memory: a small pack can hold very big objects.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from kakoi.errors import ExecutionTimeoutError
from kakoi.process.executor import ProcessExecutor
from kakoi.process.options import ProcessResult, SpawnOptions
from kakoi.tasks.remotes import Credential, Remote, git_variables, ssh_command

GIB: Final = 1024**3
MAX_FILE_BYTES: Final = 10 * GIB
MAX_MEMORY_BYTES: Final = 2 * GIB
# What git says when it is stopped by one of these limits.
FILE_TOO_LARGE: Final = re.compile(r"File too large")
OUT_OF_MEMORY: Final = re.compile(r"[Oo]ut of memory|Cannot allocate memory")
# A limit that cannot be set is above one that this machine has set already. The signal would end
# git without a word.
_LIMITED: Final = (
    'trap \'\' XFSZ; ulimit -f "$1" 2>/dev/null; ulimit -d "$2" 2>/dev/null; shift 2; exec git "$@"'
)


class OurGit:
    """Runs git. `ssh_env`: variables of ssh, such as that of its agent.

    `timeout_s`: for one process in all; `stall_s`: without a byte from the server.
    `file_bytes`: the longest file that it may write; `memory_bytes`: for each of its processes.
    """

    def __init__(
        self,
        executor: ProcessExecutor,
        *,
        timeout_s: float,
        stall_s: float,
        known_hosts: str = "",
        ssh_env: Mapping[str, str] | None = None,
        file_bytes: int = MAX_FILE_BYTES,
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
        credential: Credential | None = None,
        *,
        proxy: str = "",
        stdin: bytes | None = None,
        env: Mapping[str, str] | None = None,
        file_bytes: int | None = None,
        memory_bytes: int | None = None,
    ) -> ProcessResult:
        """What came of it; one that takes too long is a failure that says so.

        `proxy`: the address of one that all of HTTP is to go by. `env`: more variables.
        `file_bytes`, `memory_bytes`: less than it has usually.
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
            said = f"git was not done after {self._timeout_s:g} s"
            return ProcessResult(stdout="", stderr=said, exit_code=-1)
