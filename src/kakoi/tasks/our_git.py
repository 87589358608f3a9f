"""Git on this machine, with our keys and tokens: each is lent to the one process that needs it."""

from collections.abc import Mapping, Sequence

from kakoi.errors import ExecutionTimeoutError
from kakoi.process.executor import ProcessExecutor
from kakoi.process.options import ProcessResult, SpawnOptions
from kakoi.tasks.remotes import Credential, Remote, git_variables, ssh_command


class OurGit:
    """Runs git. `ssh_env`: variables of ssh, such as that of its agent.

    `timeout_s`: for one process in all; `stall_s`: without a byte from the server.
    """

    def __init__(
        self,
        executor: ProcessExecutor,
        *,
        timeout_s: float,
        stall_s: float,
        known_hosts: str = "",
        ssh_env: Mapping[str, str] | None = None,
    ) -> None:
        self._executor = executor
        self._timeout_s = timeout_s
        self._stall_s = stall_s
        self._known_hosts = known_hosts
        self._ssh_env = dict(ssh_env or {})

    async def run(
        self,
        argv: Sequence[str],
        remote: Remote | None = None,
        credential: Credential | None = None,
        *,
        proxy: str = "",
    ) -> ProcessResult:
        """What came of it; one that takes too long is a failure that says so.

        `proxy`: the address of one that all of HTTP is to go by.
        """
        variables = dict(git_variables(remote, credential, stall_s=self._stall_s, proxy=proxy))
        if remote is not None and remote.scheme == "ssh":
            ssh = ssh_command(known_hosts=self._known_hosts, stall_s=self._stall_s)
            variables |= {**self._ssh_env, "GIT_SSH_COMMAND": ssh}
        options = SpawnOptions(env=variables, timeout=self._timeout_s * 1000)
        try:
            return await self._executor.spawn("git", argv, options)
        except ExecutionTimeoutError:
            said = f"git was not done after {self._timeout_s:g} s"
            return ProcessResult(stdout="", stderr=said, exit_code=-1)
