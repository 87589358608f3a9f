"""HostAdapter: this machine itself. Commands are reliably ended, and confined by nothing or by
Landlock if asked for (confinement.py)."""

import asyncio
import logging
import os
import sys
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kakoi._support.asyncio import finish
from kakoi._support.fields import read_section
from kakoi.backends.adapter import (
    DEFAULT_TIMEOUT_S,
    LEAST,
    Availability,
    LimitReport,
    Limits,
    Network,
    SandboxAdapter,
)
from kakoi.backends.bubblewrap.arguments import ENTER
from kakoi.backends.built_in import BuiltInAdapter
from kakoi.backends.control_groups import Freezer
from kakoi.backends.host.confinement import Confinement, ScratchFolder
from kakoi.backends.host.control_group import NOT_HELD, HostGroup, make_host_group
from kakoi.backends.landlock import unavailable_error
from kakoi.backends.limits import BY_RLIMITS, ControlGroup, make_group, make_limit_report
from kakoi.backends.pause import Pause, group_method
from kakoi.backends.settings import CONFINED_HOST, HostSettings
from kakoi.backends.workspace import FileIdentity, identify, identify_workspace
from kakoi.channel.api import Channel, Command, check_type
from kakoi.channel.connection import Connection, Deadline
from kakoi.channel.delivery import RunnerSettings, python_argv
from kakoi.channel.runner_channel import open_channel
from kakoi.errors import ConfigurationError, KakoiError, SandboxError, UnsupportedError
from kakoi.process import ProcessExecutor
from kakoi.process.options import default_environment, encode_env
from kakoi.process.stream import Launch, ProcessStream

_log = logging.getLogger(__name__)


class HostAdapter(BuiltInAdapter):
    """Runs commands as our own user, in `workspace`, with all our rights.

    `workspace`: can also be the `host` section of a file, as a mapping; then it is the current
        directory.
    `env`: the environment of every command; without it, the system's default.
    `warn_on_start`: log one warning that nothing is confined.
    `confine`: make it a sandbox. Commands see the system, change `workspace` and a private
        directory (TMPDIR, HOME), and reach no other process; root's commands run as an unprivileged
        user. With `network="host"` they have the network, otherwise none, not even loopback.
        `programs`: the only ones they can execute, by name. A kernel that cannot enforce all of it
        is refused.
        `limits` hold as far as there is a control group, or a limit of each process; `limit_report`
        says which do.
    `private_workspace`: the workspace is for this sandbox alone; commands also have a TMPDIR and
        HOME of their own, which end with it.
    `lifetime_s`: everything ends by itself this long after it was opened, whatever became of us.
    """

    def __init__(
        self,
        workspace: str | Path | Mapping[str, object] = "/",
        executor: ProcessExecutor | None = None,
        *,
        env: Mapping[str, str] | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        warn_on_start: bool = True,
        confine: bool = False,
        network: Network | None = None,
        programs: Collection[str] | None = None,
        limits: Limits | None = None,
        private_workspace: bool = False,
        lifetime_s: float | None = None,
    ) -> None:
        if isinstance(workspace, Mapping):
            given = read_section(HostSettings, workspace, origin="host")
            timeout_s, warn_on_start = given.timeout_s, given.warn_on_start
            workspace, confine = os.path.realpath("."), given.confine
        check_type("confine", confine, bool)
        self._workspace = _identify_folder(workspace, confine=confine).path
        self._confine = confine
        self._private_workspace = private_workspace
        _check_enforceable(network, programs, confine=confine)
        self._network: Literal["none", "host"] = "host" if network == "host" else "none"
        self._programs = None if programs is None else tuple(sorted(programs))
        self._scratch: ScratchFolder | None = None
        self._limits = limits or Limits()
        self._group: ControlGroup | None = None
        self._host_group: HostGroup | None = None
        self._limit_report = LimitReport(
            unenforced=dict.fromkeys(LEAST, "the host confines nothing")
        )
        # The one place that checks the options of commands.
        Command(command="true", timeout_s=timeout_s)
        variables = default_environment() if env is None else env
        encode_env(variables)
        self._env = dict(variables)
        self._timeout_s = timeout_s
        self._has_to_warn = warn_on_start and not confine
        check_type("executor", executor, ProcessExecutor, type(None))
        self._executor = executor or ProcessExecutor()
        self._pause = Pause()
        self._deadline = Deadline(lifetime_s)
        self._connection = Connection(self._open, self._deadline)

    @property
    def name(self) -> str:
        """`host`, or `confined-host`"""
        return CONFINED_HOST if self._confine else "host"

    async def availability(self) -> Availability:
        """The host is always available; whether it can be confined is found by trying."""
        try:
            if self._confine:
                await self._connection.channel()
        except KakoiError as error:
            return Availability(False, error.message, error.hint)
        return Availability(True)

    async def channel(self) -> Channel:
        """The channel to our one runner on the host."""
        if self._has_to_warn:
            self._has_to_warn = False
            _log.warning("⚠️ ホスト環境で実行中: commands run on the host, confined by nothing")
        return await super().channel()

    @property
    def limit_report(self) -> LimitReport:
        """Which limits are enforced, once it is open; unconfined, only timeouts are."""
        return self._limit_report

    @property
    def can_pause(self) -> bool:
        """Whether there is a control group with a freezer; see `CanPause`."""
        return self._freezer is not None

    @property
    def _freezer(self) -> Freezer | None:
        group = self._group or self._host_group
        return group.freezer if group else None

    async def pause(self) -> None:
        """Freeze every process; see `CanPause.pause`."""
        await self.channel()
        method = group_method(self._freezer, sandbox=self.name)
        await self._pause.begin(method, self._deadline.left_s)

    async def resume(self) -> None:
        """Let the processes continue; see `CanPause.resume`."""
        await self._pause.end()

    async def fork(self, count: int) -> list[SandboxAdapter]:
        """Raise UnsupportedError: commands change this machine, of which there is only one."""
        raise self._unsupported(
            "forked", hint="use bubblewrap with copy_on_write=True, docker or podman"
        )

    async def checkpoint(self, name: str) -> None:
        """Raise UnsupportedError: nothing keeps earlier states of this machine's files."""
        raise self._unsupported("rolled back", hint="use bubblewrap, docker or podman")

    async def rollback(self, name: str) -> None:
        """Raise UnsupportedError; see `checkpoint`."""
        raise self._unsupported("rolled back", hint="use bubblewrap, docker or podman")

    def checkpoints(self) -> list[str]:
        """Return nothing: there are no checkpoints."""
        return []

    def _unsupported(self, what: str, *, hint: str) -> UnsupportedError:
        return UnsupportedError(f"the sandbox `{self.name}` cannot be {what}", hint=hint)

    async def cleanup(self) -> None:
        """End every command and the runner."""
        await finish(self._cleanup())

    async def _cleanup(self) -> None:
        await self._pause.end()
        await self._connection.close()
        await self._leave_group()
        held, self._host_group = self._host_group, None
        if held is not None:
            await asyncio.to_thread(held.remove)
        scratch, self._scratch = self._scratch, None
        if scratch is not None:
            await asyncio.to_thread(scratch.remove)

    async def _open(self) -> Channel:
        await self._pause.end()
        if self._confine:
            return await self._open_confined()
        return await self._open_held()

    async def _open_held(self) -> Channel:
        """Unconfined, in a control group that ends everything even if the keepers are killed."""
        if self._host_group is None:
            await finish(self._make_host_group())
        group = self._host_group
        enter = ["/bin/sh", "-c", ENTER, "sh", group.entry, "--"] if group else []
        argv = [*enter, *python_argv(sys.executable)]
        scratch = await finish(self._make_scratch()) if self._private_workspace else None
        own = scratch.variables if scratch else {}
        launch = Launch(argv=argv, env={**self._env, **own}, cwd=self._workspace, kept=True)

        def start(launch: Launch) -> ProcessStream:
            stream = self._executor.stream(launch)
            stream.afterwards = group.end if group else None
            return stream

        settings = RunnerSettings(lifetime_s=self._deadline.left_s)
        channel = await open_channel(launch, settings, start)
        channel.loss.note = "" if group else NOT_HELD
        return channel

    async def _make_host_group(self) -> None:
        self._host_group = await asyncio.to_thread(make_host_group)

    async def _leave_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            await asyncio.to_thread(group.remove)

    async def _make_scratch(self) -> ScratchFolder:
        if self._scratch is None:
            self._scratch = await asyncio.to_thread(ScratchFolder)
        return self._scratch

    async def _make_group(self) -> ControlGroup | None:
        self._group = await asyncio.to_thread(make_group, self._limits)
        return self._group

    async def _open_confined(self) -> Channel:
        await self._leave_group()
        # A thread cannot be cancelled: what it made is ours to remove, even if the caller was
        # cancelled in the meantime.
        scratch = await finish(self._make_scratch())
        group = await finish(self._make_group())
        kept = group.kept if group else frozenset()
        self._limit_report = make_limit_report(
            self._limits, kept, BY_RLIMITS, cpus=os.cpu_count() or 1
        )
        self._limit_report.check_enforced(self._limits, sandbox=self.name)
        confinement = Confinement(
            workspace=identify_workspace(self._workspace),
            scratch=scratch.folder,
            network=self._network,
            programs=self._programs,
            group=group,
        )
        as_root = os.geteuid() == 0
        settings = replace(
            confinement.settings(self._limits, as_root=as_root), lifetime_s=self._deadline.left_s
        )
        launch = confinement.launch(self._env, as_root=as_root)
        try:
            channel = await open_channel(launch, settings, self._executor.stream)
        except SandboxError as error:
            raise unavailable_error(error, sandbox=self.name) from None
        if group is not None:
            channel.loss.ran_out = group.ran_out
        return channel


def _identify_folder(workspace: str | Path, *, confine: bool) -> FileIdentity:
    if confine:
        return identify_workspace(workspace)
    folder = identify(workspace, what="the workspace")
    if not folder.is_directory:
        raise ConfigurationError(f"the workspace `{workspace}` is not a directory")
    return folder


def _check_enforceable(
    network: Network | None, programs: Collection[str] | None, *, confine: bool
) -> None:
    if not confine and (network == "none" or programs is not None):
        what = "network" if programs is None else "the list of programs"
        raise ConfigurationError(
            f"the unconfined host enforces no limits; it cannot enforce {what}",
            hint="kakoi run --sandbox host --confine",
        )
    if network not in (None, "none", "host"):
        raise ConfigurationError(
            f"network is {network!r}; the confined host supports `none` and `host`",
            hint="use bubblewrap or docker",
        )
