"""HostAdapter: no sandbox at all. Commands are ended for certain, and confined by nothing."""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from kakoi.errors import ConfigurationError
from kakoi.process import ProcessExecutor
from kakoi.process.options import default_environment, encode_env
from kakoi.process.stream import Launch
from kakoi.results import ExecutionResult
from kakoi.runner.channel import open_channel
from kakoi.runner.commands import Channel, Command, check_type
from kakoi.runner.connection import Connection
from kakoi.runner.delivery import RunnerSettings, python_argv
from kakoi.sandbox.adapter import (
    DEFAULT_TIMEOUT_S,
    Availability,
    ExecuteOptions,
    as_command,
    exit_code_or_raise,
)
from kakoi.sandbox.workspace import look_at

_log = logging.getLogger(__name__)


class HostAdapter:
    """Runs commands as ourselves, in `workspace`, with all our rights.

    `env` is the environment of every command; without it, the system's usual one.
    `warn_on_start` says once, in the log, that nothing is confined.
    """

    def __init__(
        self,
        workspace: str | Path = "/",
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        warn_on_start: bool = True,
        executor: ProcessExecutor | None = None,
    ) -> None:
        seen = look_at(workspace, what="the workspace")
        if not seen.is_directory:
            raise ConfigurationError(f"the workspace `{workspace}` is not a directory")
        self._workspace = seen.path
        # The one place that knows what a command may be given.
        Command(command="true", timeout_s=timeout_s)
        given = default_environment() if env is None else env
        encode_env(given)
        self._env = dict(given)
        self._timeout_s = timeout_s
        self._has_to_warn = warn_on_start
        check_type("executor", executor, ProcessExecutor, type(None))
        self._executor = executor or ProcessExecutor()
        self._connection = Connection(self._open)

    @property
    def name(self) -> str:
        """`host`"""
        return "host"

    async def availability(self) -> Availability:
        """The host is always there."""
        return Availability(True)

    async def is_available(self) -> bool:
        """Always."""
        return True

    async def run(self, command: Command) -> ExecutionResult:
        """Run `command` to its end; whatever came of it is a result."""
        return await (await self.channel()).run(command)

    async def execute(
        self, command: str | Sequence[str], options: ExecuteOptions | None = None
    ) -> ExecutionResult:
        """`run` with the manners of spec B."""
        asked = as_command(command, options, timeout_s=self._timeout_s)
        return exit_code_or_raise(await self.run(asked), asked)

    async def channel(self) -> Channel:
        """The way to the one runner on the host that is ours."""
        if self._has_to_warn:
            self._has_to_warn = False
            _log.warning("⚠️ ホスト環境で実行中: commands run on the host, confined by nothing")
        return await self._connection.channel()

    async def cleanup(self) -> None:
        """End every command and the runner."""
        await self._connection.close()

    async def _open(self) -> Channel:
        launch = Launch(
            argv=python_argv(sys.executable), env=self._env, cwd=self._workspace, kept=True
        )
        return await open_channel(launch, RunnerSettings(), self._executor.stream)
