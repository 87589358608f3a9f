"""HostAdapter: this machine itself. Commands are ended for certain, and confined by nothing, or by
Landlock if that is asked for (confined.py)."""

import asyncio
import logging
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Literal

from kakoi.errors import ConfigurationError, KakoiError, SandboxError
from kakoi.process import ProcessExecutor
from kakoi.process.options import default_environment, encode_env
from kakoi.process.stream import Launch, ProcessStream
from kakoi.results import ExecutionResult
from kakoi.runner.channel import open_channel
from kakoi.runner.commands import Channel, Command, check_type
from kakoi.runner.connection import Connection
from kakoi.runner.delivery import RunnerSettings, python_argv
from kakoi.sandbox.adapter import (
    DEFAULT_TIMEOUT_S,
    LEAST,
    Availability,
    ExecuteOptions,
    Holding,
    Limits,
    Network,
    as_command,
    exit_code_or_raise,
)
from kakoi.sandbox.bubblewrap_launch import ENTER
from kakoi.sandbox.confined import Confinement, Scratch
from kakoi.sandbox.host_group import NOT_HELD, HostGroup, make_host_group
from kakoi.sandbox.landlock import as_unavailable
from kakoi.sandbox.limits import BY_RLIMITS, Group, holding_of, make_group
from kakoi.sandbox.settings import CONFINED_HOST
from kakoi.sandbox.workspace import look_at, look_at_workspace
from kakoi.waiting import finish

_log = logging.getLogger(__name__)


class HostAdapter:
    """Runs commands as ourselves, in `workspace`, with all our rights.

    `env` is the environment of every command; without it, the system's usual one.
    `warn_on_start` says once, in the log, that nothing is confined.
    `confine`: it is a sandbox. Commands see the system, change `workspace` and a private directory
        (TMPDIR, HOME), and reach no other process; root's are an unprivileged user's. With
        `network="host"` they have the network, else none, and no loopback either. `programs`: the
        only ones they may execute, by name. A kernel that does not keep all of it is refused.
        `limits` hold as far as there is a control group, or a limit of each process; `holding`
        says which do.
    """

    def __init__(
        self,
        workspace: str | Path = "/",
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        warn_on_start: bool = True,
        confine: bool = False,
        network: Network | None = None,
        programs: Collection[str] | None = None,
        limits: Limits | None = None,
        executor: ProcessExecutor | None = None,
    ) -> None:
        check_type("confine", confine, bool)
        look = look_at_workspace(workspace) if confine else look_at(workspace, what="the workspace")
        if not look.is_directory:
            raise ConfigurationError(f"the workspace `{workspace}` is not a directory")
        if not confine and (network == "none" or programs is not None):
            what = "network" if programs is None else "the list of programs"
            raise ConfigurationError(
                f"the host keeps nothing as it is, and so not {what}",
                hint="kakoi run --sandbox host --confine",
            )
        self._workspace = look.path
        self._confine = confine
        if network not in (None, "none", "host"):
            raise ConfigurationError(
                f"network is {network!r}; the confined host can give `none` or `host`",
                hint="use bubblewrap or docker",
            )
        self._network: Literal["none", "host"] = "host" if network == "host" else "none"
        self._programs = None if programs is None else tuple(sorted(programs))
        self._scratch: Scratch | None = None
        self._limits = limits or Limits()
        self._group: Group | None = None
        self._host_group: HostGroup | None = None
        self._holding = Holding(not_kept=dict.fromkeys(LEAST, "the host confines nothing"))
        # The one place that knows what a command may be given.
        Command(command="true", timeout_s=timeout_s)
        given = default_environment() if env is None else env
        encode_env(given)
        self._env = dict(given)
        self._timeout_s = timeout_s
        self._has_to_warn = warn_on_start and not confine
        check_type("executor", executor, ProcessExecutor, type(None))
        self._executor = executor or ProcessExecutor()
        self._connection = Connection(self._open)

    @property
    def name(self) -> str:
        """`host`, or `confined-host`"""
        return CONFINED_HOST if self._confine else "host"

    async def availability(self) -> Availability:
        """The host is always there; whether it can be confined is found by doing it."""
        try:
            if self._confine:
                await self._connection.channel()
        except KakoiError as error:
            return Availability(False, error.message, error.hint)
        return Availability(True)

    async def is_available(self) -> bool:
        """Always; confined, if this kernel keeps what that needs."""
        return bool(await self.availability())

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

    async def shell(self) -> str:
        """What reads commands there; see `SandboxAdapter.shell`."""
        return (await self.channel()).shell

    @property
    def holding(self) -> Holding:
        """Which of the limits hold, once it is there; unconfined, nothing is limited but time."""
        return self._holding

    async def cleanup(self) -> None:
        """End every command and the runner."""
        await finish(self._cleanup())

    async def _cleanup(self) -> None:
        await self._connection.close()
        await self._leave_group()
        held, self._host_group = self._host_group, None
        if held is not None:
            await asyncio.to_thread(held.remove)
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            await asyncio.to_thread(scratch.remove)

    async def _open(self) -> Channel:
        if self._confine:
            return await self._open_confined()
        return await self._open_held()

    async def _open_held(self) -> Channel:
        """On the host as it is, in a group that ends everything even if the keepers are killed."""
        if self._host_group is None:
            await finish(self._make_host_group())
        group = self._host_group
        enter = ["/bin/sh", "-c", ENTER, "sh", group.entry, "--"] if group else []
        argv = [*enter, *python_argv(sys.executable)]
        launch = Launch(argv=argv, env=self._env, cwd=self._workspace, kept=True)

        def start(launch: Launch) -> ProcessStream:
            stream = self._executor.stream(launch)
            stream.afterwards = group.end if group else None
            return stream

        channel = await open_channel(launch, RunnerSettings(), start)
        channel.loss.note = "" if group else NOT_HELD
        return channel

    async def _make_host_group(self) -> None:
        self._host_group = await asyncio.to_thread(make_host_group)

    async def _leave_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            await asyncio.to_thread(group.remove)

    async def _make_scratch(self) -> Scratch:
        if self._scratch is None:
            self._scratch = await asyncio.to_thread(Scratch)
        return self._scratch

    async def _make_group(self) -> Group | None:
        self._group = await asyncio.to_thread(make_group, self._limits)
        return self._group

    async def _open_confined(self) -> Channel:
        await self._leave_group()
        # A thread cannot be called back: what it has made is ours to remove, even if whoever wanted
        # it was cancelled meanwhile.
        scratch = await finish(self._make_scratch())
        group = await finish(self._make_group())
        kept = group.kept if group else frozenset()
        self._holding = holding_of(self._limits, kept, BY_RLIMITS, cpus=os.cpu_count() or 1)
        self._holding.refuse_unkept(self._limits, sandbox=self.name)
        place = Confinement(
            workspace=look_at_workspace(self._workspace),
            scratch=scratch.folder,
            network=self._network,
            programs=self._programs,
            group=group,
        )
        as_root = os.geteuid() == 0
        settings = place.settings(self._limits, as_root=as_root)
        launch = place.launch(self._env, as_root=as_root)
        try:
            channel = await open_channel(launch, settings, self._executor.stream)
        except SandboxError as error:
            raise as_unavailable(error, sandbox=self.name) from None
        if group is not None:
            channel.loss.ran_out = group.ran_out
        return channel
