"""BubblewrapAdapter: a sandbox out of kernel namespaces, without an engine or an image."""

import asyncio
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from kakoi.errors import (
    ConfigurationError,
    EnvironmentUnavailableError,
    KakoiError,
    LimitError,
    SandboxError,
)
from kakoi.process import ProcessExecutor
from kakoi.process.stream import Launch
from kakoi.results import ExecutionResult
from kakoi.runner.channel import open_channel
from kakoi.runner.commands import Channel, Command, check_type
from kakoi.runner.connection import Connection, closed_on_failure
from kakoi.runner.delivery import RunnerSettings, python_argv
from kakoi.sandbox.adapter import (
    DEFAULT_TIMEOUT_S,
    PROXIED,
    Availability,
    ExecuteOptions,
    Holding,
    Limits,
    as_command,
    exit_code_or_raise,
)
from kakoi.sandbox.bubblewrap_launch import (
    Settings,
    System,
    build_launch,
    check_read_only,
    look_at_system,
    walls_of,
)
from kakoi.sandbox.landlock import as_unavailable
from kakoi.sandbox.limits import (
    BY_BUBBLEWRAP,
    Group,
    holding_of,
    make_group,
    rlimits_for,
    scratch_sizes,
)
from kakoi.sandbox.outlet import Handover, Outlet, Served, checked_outlet
from kakoi.sandbox.workspace import look_at, look_at_workspace, ours_within
from kakoi.waiting import finish

# Type checkers know this name and take it for true; most sandboxes need no overlay.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from kakoi.overlay import Mounts, Overlay

_PROBE_TIMEOUT_S = 30.0
_NOT_INSTALLED = Availability(False, "bubblewrap is not installed", "apt-get install bubblewrap")


class BubblewrapAdapter:
    """Runs commands in namespaces of their own: they see a read-only system and `workspace`.

    They see no process, no socket and, with `network="none"`, no network of this machine; with
    "open" or "allowlist" there is one way out, which `outlet` serves; with "host" they have all of
    it, services on its loopback and abstract sockets included. They write
    to the workspace and to private directories (/tmp, /run, /home/agent) that go when the sandbox
    does. They are never root: a sandbox of root's runs as the owner of the workspace, and if that
    is root, as an unprivileged user to whom the workspace is lent (process/staging.py). That of a
    normal user runs as this user, groups included.

    `read_only`: files and directories to see besides the system's, at their own paths.
    `env`: variables of every command. `timeout_s`: how long `execute` lets a command run.
    `limits`: kept by the kernel; for everything in the sandbox together where we may make a control
        group, and else for each process, as far as that goes (`holding` says it).
    `programs`: the only ones that commands may execute, by name; None: any. Nothing is executed
        then from where commands can write, and a kernel that cannot keep it is refused.
    `overlay`: where commands write instead of the workspace, which stays as it is.
    A filter of system calls (seccomp.py) is on where the machine's numbers are known.
    """

    def __init__(
        self,
        workspace: str | Path,
        *,
        read_only: Sequence[str | Path] = (),
        network: Literal["none", "open", "allowlist", "host"] = "none",
        outlet: Outlet | None = None,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        programs: Collection[str] | None = None,
        executor: ProcessExecutor | None = None,
        overlay: "Overlay | None" = None,
    ) -> None:
        if network not in ("none", *PROXIED, "host"):
            raise ConfigurationError(
                f"network is {network!r}; bubblewrap gives `none`, `open`, `allowlist` or `host`",
                hint="use docker for a network of its own",
            )
        self._outlet = checked_outlet(network, outlet)
        # The one place that knows what an environment may hold.
        Command(command="true", env=env or {}, timeout_s=timeout_s)
        check_type("read_only", read_only, list, tuple)
        check_type("limits", limits, Limits, type(None))
        check_type("executor", executor, ProcessExecutor, type(None))
        self._workspace = workspace
        self._overlay = overlay
        self._mounts: Mounts | None = None
        self._taking_overlay = asyncio.Lock()
        self._read_only = tuple(read_only)
        self._network: Literal["none", "host"] = "host" if network == "host" else "none"
        self._env = {**(self._outlet.env if self._outlet else {}), **(env or {})}
        self._served: Served | None = None
        self._programs = None if programs is None else tuple(sorted(programs))
        self._limits = limits or Limits()
        self._timeout_s = timeout_s
        self._executor = executor or ProcessExecutor()
        self._connection = Connection(self._open)
        self._availability: Availability | None = None
        self._group: Group | None = None
        self._holding = Holding()
        self._settings()

    @property
    def name(self) -> str:
        """`bubblewrap`"""
        return "bubblewrap"

    async def availability(self) -> Availability:
        """Whether it works here, found by starting a sandbox with this very workspace, once."""
        if self._availability is None:
            self._availability = await self._probe()
            if self._availability and self._programs is not None:
                self._availability = await self._keeps_programs()
        return self._availability

    async def is_available(self) -> bool:
        """Does it work here?"""
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
        """The way in, opened at first use and again after it was lost."""
        return await self._connection.channel()

    async def shell(self) -> str:
        """What reads commands there; see `SandboxAdapter.shell`."""
        return (await self.channel()).shell

    async def cleanup(self) -> None:
        """End the sandbox and everything in it."""
        await finish(self._cleanup())

    async def _cleanup(self) -> None:
        await self._connection.close()
        await self._leave_group()
        await self._stop_serving()
        if self._mounts is not None and self._overlay is not None:
            self._mounts = None
            await asyncio.to_thread(self._overlay.close)

    @property
    def holding(self) -> Holding:
        """Which of the limits hold, and by what, once the sandbox is there."""
        return self._holding

    async def _stop_serving(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            await served.close()

    async def _leave_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            await asyncio.to_thread(group.remove)

    def _settings(self) -> Settings:
        """What is asked for, as it is on the disk now: it may be another directory than before."""
        workspace = look_at_workspace(self._workspace, guarded=True)
        read_only = tuple(look_at(path, what="read_only") for path in self._read_only)
        check_read_only(read_only, workspace)
        return Settings(
            workspace=workspace,
            read_only=read_only,
            guarded=tuple(ours_within(workspace)),
            network=self._network,
            env=self._env,
            programs=self._programs,
            sizes=scratch_sizes(self._limits),
        )

    async def _settings_with_overlay(self) -> Settings:
        """The same, with the overlay, which is ours alone from now on until `cleanup`."""
        wanted = self._settings()
        if self._overlay is None:
            return wanted
        mounts = await finish(self._take(self._overlay))
        folder = look_at(mounts.folder, what="the overlay")
        return replace(wanted, layers=(folder, mounts.stack))

    # A thread cannot be called back: what it has made is ours to release, even if whoever wanted it
    # was cancelled meanwhile. So these two are always finished.

    async def _take(self, overlay: "Overlay") -> "Mounts":
        async with self._taking_overlay:  # A probe and an opening may both want it, at once.
            if self._mounts is None:
                self._mounts = await asyncio.to_thread(overlay.open)
            return self._mounts

    async def _make_group(self) -> Group | None:
        self._group = await asyncio.to_thread(make_group, self._limits)
        return self._group

    async def _open(self) -> Channel:
        system = look_at_system()
        if system is None:
            raise _unavailable(_NOT_INSTALLED)
        await self._leave_group()
        wanted = await self._settings_with_overlay()
        group = await finish(self._make_group())
        kept = group.kept if group else frozenset()
        self._holding = holding_of(self._limits, kept, BY_BUBBLEWRAP, cpus=os.cpu_count() or 1)
        try:
            self._holding.refuse_unkept(self._limits, sandbox="bubblewrap")
        except LimitError:
            await self._leave_group()
            raise
        told = group.handed_over() if group else {}
        if counter := told.get("oom_counter"):
            seen = look_at(counter, what="the counter of the control group")
            wanted = replace(wanted, read_only=(*wanted.read_only, seen))
        settings = RunnerSettings(
            max_processes=self._limits.processes,
            **told,
            walls=walls_of(wanted, system).handed_over(),
            rlimits=rlimits_for(self._limits, kept),
        )
        try:
            if self._outlet is None:
                return await self._start(wanted, system, settings)
            return await self._start_with(self._outlet, wanted, system, settings)
        except SandboxError as error:
            if (why := as_unavailable(error, sandbox=self.name)) is not error:
                raise why from None
            # It tells only that the runner did not come up. Why, is found out when it matters.
            self._availability = await self._probe()
            if self._availability:
                raise
            raise _unavailable(self._availability) from error

    async def _start(self, wanted: Settings, system: System, settings: RunnerSettings) -> Channel:
        groups = self._group.entries if self._group else ()
        launch = build_launch(wanted, system, python_argv(system.python), groups=groups)
        if self._group is None:
            return await open_channel(launch, settings, self._executor.stream)
        launch = replace(launch, descriptors=self._group.descriptors)
        channel = await open_channel(launch, settings, self._executor.stream)
        channel.loss.ran_out = self._group.ran_out
        return channel

    async def _start_with(
        self, outlet: Outlet, wanted: Settings, system: System, settings: RunnerSettings
    ) -> Channel:
        await self._stop_serving()
        handover = Handover()
        try:
            way = look_at(handover.folder, what="the way out")
            wanted = replace(wanted, read_only=(*wanted.read_only, way))
            async with closed_on_failure(await self._start(wanted, system, settings)) as channel:
                self._served = await handover.take(channel, outlet, inside=handover.folder)
            return channel
        finally:
            handover.close()

    async def _keeps_programs(self) -> Availability:
        try:
            await self._connection.channel()
        except KakoiError as error:
            return Availability(False, error.message, error.hint)
        return Availability(True)

    async def _probe(self) -> Availability:
        system = look_at_system()
        if system is None:
            return _NOT_INSTALLED
        program = [system.python, "-I", "-S", "-c", "pass"]
        try:
            wanted = await self._settings_with_overlay()
            status, said = await self._try(build_launch(wanted, system, program))
        except KakoiError as error:
            return Availability(False, error.message, error.hint)
        return Availability(True) if status == 0 else explain(said, _sysctls(), system)

    async def _try(self, launch: Launch) -> tuple[int | None, str]:
        stream = self._executor.stream(launch)
        status = None
        try:
            async with asyncio.timeout(_PROBE_TIMEOUT_S):
                status = await stream.wait()
        except TimeoutError:
            pass
        finally:
            await stream.end()
        return status, stream.stderr


def _unavailable(why: Availability) -> EnvironmentUnavailableError:
    return EnvironmentUnavailableError(
        f"bubblewrap cannot be used here: {why.reason}",
        details={"environmentType": "bubblewrap"},
        hint=why.fix,
    )


# --- Why not? --------------------------------------------------------------------------------

_SYSCTLS = {
    "kernel.unprivileged_userns_clone": ("0", "1"),
    "user.max_user_namespaces": ("0", "15000"),
    "kernel.apparmor_restrict_unprivileged_userns": ("1", "0"),
}
# What bubblewrap says when it may not do its work.
_MAY_NOT = re.compile(
    r"namespace|uid map|gid map|setgroups|loopback|Can't mount (?:proc|devpts|tmpfs)|pivot_root"
    r"|Failed to (?:make|mount)|Operation not permitted|Permission denied"
)


def _sysctls() -> dict[str, str]:
    """The settings of this machine that can forbid user namespaces, as far as it has them."""
    found = {}
    for name in _SYSCTLS:
        path = Path("/proc/sys", *name.split("."))
        if path.exists():
            found[name] = path.read_text().strip()
    return found


def explain(said: str, sysctls: Mapping[str, str], system: System) -> Availability:
    """Why a sandbox did not start, from what was `said` on standard error, and what would help."""
    lines = dict(line.partition(": ")[::2] for line in said.splitlines())
    if "staging" in lines:
        return Availability(False, lines["staging"], lines.get("fix", ""))
    last = said.strip().splitlines()[-1:] or ["it was silent"]
    if "Unknown option" in said:
        return Availability(
            False, "bubblewrap is older than 0.8", "apt-get install --only-upgrade bubblewrap"
        )
    if _MAY_NOT.search(said):
        for name, (forbids, allows) in _SYSCTLS.items():
            if sysctls.get(name) == forbids:
                reason = f"unprivileged users may not make namespaces here ({name}={forbids})"
                return Availability(False, reason, f"sysctl -w {name}={allows}")
        return Availability(
            False,
            f"the kernel does not let bubblewrap make a sandbox ({last[0]}); is this a container?",
            "run kakoi outside of the container, or use docker",
        )
    by_hand = f"{system.bwrap} --unshare-all --ro-bind / / {os.fspath(system.python)} -V"
    return Availability(False, f"bubblewrap failed: {last[0]}", by_hand)
