"""BubblewrapAdapter: a sandbox made of kernel namespaces, without an engine or an image."""

import asyncio
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Literal, TypeVar

from kakoi._support.asyncio import finish
from kakoi._support.late import pattern
from kakoi.backends.adapter import (
    DEFAULT_TIMEOUT_S,
    PROXIED,
    Availability,
    LimitReport,
    Limits,
    SandboxAdapter,
)
from kakoi.backends.bubblewrap.arguments import (
    BubblewrapSettings,
    HostSystem,
    WorkspaceLayers,
    build_launch,
    build_restrictions,
    check_read_only,
    inspect_system,
)
from kakoi.backends.built_in import BuiltInAdapter
from kakoi.backends.copy_on_write import CopyOnWrite, needs_overlay, refuse_running
from kakoi.backends.landlock import unavailable_error
from kakoi.backends.limits import (
    BY_BUBBLEWRAP,
    ControlGroup,
    make_group,
    make_limit_report,
    rlimits_for,
    scratch_sizes,
)
from kakoi.backends.outlet import HandoverFolder, Outlet, OutletServer, require_outlet
from kakoi.backends.pause import Pause, group_method
from kakoi.backends.workspace import (
    FileIdentity,
    identify,
    identify_workspace,
    kakoi_paths_in,
)
from kakoi.channel.api import Channel, Command, check_type
from kakoi.channel.connection import Connection, Deadline, closed_on_failure
from kakoi.channel.delivery import RunnerSettings, python_argv
from kakoi.channel.runner_channel import open_channel
from kakoi.errors import (
    ConfigurationError,
    EnvironmentUnavailableError,
    KakoiError,
    LimitError,
    SandboxError,
)
from kakoi.process import ProcessExecutor
from kakoi.process.stream import Launch

# Type checkers know this name and take it for true; most sandboxes need no overlay.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from kakoi.overlay import Mounts, Overlay

_T = TypeVar("_T")
_PROBE_TIMEOUT_S = 30.0
_NOT_INSTALLED = Availability(False, "bubblewrap is not installed", "apt-get install bubblewrap")


class BubblewrapAdapter(CopyOnWrite, BuiltInAdapter):
    """Runs commands in their own namespaces: they see a read-only system and `workspace`.

    They see no process, no socket and, with `network="none"`, no network of this machine. With
    "open" or "allowlist", `outlet` serves their connections; with "host" they have the machine's
    network, including services on its loopback and abstract sockets. They write to the workspace
    and to private directories (/tmp, /run, /home/agent) that are removed with the sandbox. They are
    never root: root's sandbox runs as the owner of the workspace, and if that is root, as an
    unprivileged user to whom the workspace is lent (process/mount_stage.py). A normal user's
    sandbox runs as this user, with the same groups.

    `read_only`: more files and directories to see, at their own paths.
    `env`: variables of every command. `timeout_s`: the timeout of `execute`.
    `limits`: enforced by the kernel, for the whole sandbox where we can make a control group,
        otherwise for each process, as far as that goes (see `limit_report`).
    `programs`: the only ones that commands can execute, by name; None: any. Then nothing is
        executed from where commands can write, and a kernel that cannot enforce it is refused.
    `overlay`: where commands write instead of the workspace, which stays unchanged.
    `private_workspace`: the workspace is a directory that only this sandbox uses and that nobody
        needs afterwards, so it can be forked and rolled back without an overlay. The first time,
        its files move elsewhere, and the directory stays behind empty.
    `lifetime_s`: the sandbox ends by itself this long after it was opened, whatever became of us.
        Each fork has a lifetime of its own.
    `git_settings`: the file that git inside takes for the system's.
    A system call filter (seccomp.py) is on where the machine's call numbers are known.
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
        private_workspace: bool = False,
        lifetime_s: float | None = None,
        git_settings: bytes = b"",
    ) -> None:
        if network not in ("none", *PROXIED, "host"):
            raise ConfigurationError(
                f"network is {network!r}; bubblewrap has `none`, `open`, `allowlist` and `host`",
                hint="use docker for a separate network",
            )
        self._outlet = require_outlet(network, outlet)
        # The one place that checks environments.
        Command(command="true", env=env or {}, timeout_s=timeout_s)
        check_type("read_only", read_only, list, tuple)
        check_type("limits", limits, Limits, type(None))
        check_type("executor", executor, ProcessExecutor, type(None))
        self._workspace = workspace
        self._private_workspace = private_workspace
        self._adopted: FileIdentity | None = None
        self._read_only = tuple(read_only)
        self._network: Literal["none", "host"] = "host" if network == "host" else "none"
        self._env = {**(self._outlet.env if self._outlet else {}), **(env or {})}
        self._programs = None if programs is None else tuple(sorted(programs))
        self._limits = limits or Limits()
        self._git_settings = git_settings
        self._timeout_s = timeout_s
        self._executor = executor or ProcessExecutor()
        self._availability: Availability | None = None
        self._begin(overlay, lifetime_s)
        self._settings()

    def _begin(self, overlay: "Overlay | None", lifetime_s: float | None) -> None:
        """Set what is of this sandbox alone; its forks share everything else."""
        self._overlay = overlay
        self._mounts: Mounts | None = None
        # Whether it is ours to close, even if it is not mounted right now.
        self._has_overlay = False
        self._taking_overlay = asyncio.Lock()
        self._served: OutletServer | None = None
        self._pause = Pause()
        self._deadline = Deadline(lifetime_s)
        self._connection = Connection(self._open, self._deadline)
        self._group: ControlGroup | None = None
        self._limit_report = LimitReport()

    @property
    def name(self) -> str:
        """`bubblewrap`"""
        return "bubblewrap"

    async def availability(self) -> Availability:
        """Whether it works here, found by starting a sandbox with this workspace, once."""
        if self._availability is None:
            self._availability = await self._probe()
            if self._availability and self._programs is not None:
                self._availability = await self._keeps_programs()
        return self._availability

    @property
    def can_pause(self) -> bool:
        """Whether there is a control group with a freezer; see `CanPause`."""
        return self._group is not None and self._group.freezer is not None

    async def pause(self) -> None:
        """Freeze every process in the sandbox; see `CanPause.pause`."""
        await self.channel()
        freezer = self._group.freezer if self._group else None
        await self._pause.begin(group_method(freezer, sandbox=self.name), self._deadline.left_s)

    async def resume(self) -> None:
        """Let the processes continue; see `CanPause.resume`."""
        await self._pause.end()

    async def cleanup(self) -> None:
        """End the sandbox and everything in it."""
        await finish(self._cleanup())

    async def _cleanup(self) -> None:
        await self._pause.end()
        await self._connection.close()
        await self._leave_group()
        await self._stop_serving()
        self._mounts = None
        if self._has_overlay and self._overlay is not None:
            self._has_overlay = False
            await asyncio.to_thread(self._overlay.close)

    @property
    def limit_report(self) -> LimitReport:
        """Which limits are enforced, and how, once the sandbox exists."""
        return self._limit_report

    # --- Copies ------------------------------------------------------------------------------

    async def checkpoint(self, name: str) -> None:
        """Save the files of the workspace under a new name. Nothing is copied.

        This ends the sandbox, with its commands and jobs, and the next call opens it again: /tmp
        and the home directory start empty. Needs an overlay or a private workspace.
        """
        from kakoi.overlay.store import check_checkpoint_name

        self._require_copies("be rolled back")
        check_checkpoint_name(name)  # An error must not cost the sandbox.
        if self._overlay is not None:
            await asyncio.to_thread(self._overlay.check_new_checkpoint, name)
        await self._settle(lambda overlay: overlay.checkpoint(name))

    async def rollback(self, name: str) -> None:
        """Return the files of the workspace to a checkpoint, which is kept; later ones are removed.

        This ends the sandbox like `checkpoint`.
        """
        self._require_copies("be rolled back")
        if self._overlay is None:
            raise ConfigurationError(
                f"checkpoint {str(name)[:80]!r} not found", hint="known checkpoints: none"
            )
        await asyncio.to_thread(self._overlay.check_checkpoint, name)
        await self._settle(lambda overlay: overlay.rollback(name))

    def checkpoints(self) -> list[str]:
        """Return the names of the checkpoints, the oldest first."""
        return [] if self._overlay is None else self._overlay.checkpoints()

    async def fork(self, count: int) -> list[SandboxAdapter]:
        """Return `count` sandboxes with these settings, whose workspace starts as this one is now.

        Nothing is copied. None of them sees later changes of another, or of this one; their changes
        are compared with the same project and applied to it. Each is cleaned up on its own, and
        ends with this process. Processes, /tmp and the home directory are not part of a fork.

        Refused with SandboxError while a command or a job is running. If anything was written since
        the last fork, this sandbox ends like with `checkpoint`, and the next call opens it again.
        Needs an overlay or a private workspace.
        """
        self._require_copies("be forked")
        check_type("count", count, int)
        if count < 1 or isinstance(count, bool):
            raise ConfigurationError(f"count is {count!r}; a fork needs at least 1")
        forking = asyncio.ensure_future(self._fork(count))
        try:
            return await finish(forking)
        except asyncio.CancelledError:
            for fork in forking.result():  # Nobody else knows of them.
                await finish(fork.cleanup())
            raise

    async def _fork(self, count: int) -> list[SandboxAdapter]:
        async with self._connection.exclusive() as channel, self._taking_overlay:
            await refuse_running(channel)
            overlay = self._overlay
            if overlay is None or await asyncio.to_thread(overlay.has_unshared_changes):
                overlay = await self._unmounted_overlay(channel)
            made = await asyncio.to_thread(overlay.fork, count)
        forks: list[SandboxAdapter] = []
        for each in made:
            fork = copy(self)
            fork._begin(each, self._deadline.lifetime_s)
            fork._has_overlay = True
            forks.append(fork)
        return forks

    def _require_copies(self, what: str) -> None:
        if self._overlay is None and not self._private_workspace:
            raise needs_overlay(f"a bubblewrap sandbox that changes its workspace cannot {what}")

    async def _settle(self, work: "Callable[[Overlay], _T]") -> _T:
        """Do `work` on the overlay while no sandbox has it mounted, and return its result."""

        async def settle() -> _T:
            async with self._connection.exclusive() as channel, self._taking_overlay:
                overlay = await self._unmounted_overlay(channel)
                return await asyncio.to_thread(work, overlay)

        return await finish(settle())

    async def _unmounted_overlay(self, channel: Channel | None) -> "Overlay":
        """End the sandbox and return its overlay; the one of a private workspace is made here."""
        await self._pause.end()
        if channel is not None:
            await channel.close()
        self._mounts = None
        if self._overlay is None:
            from kakoi.overlay import Overlay

            seen = identify_workspace(self._workspace, guarded=True)
            self._overlay = await asyncio.to_thread(Overlay.of_private, seen.path)
            self._adopted, self._has_overlay = seen, True
        self._overlay.unmounted()
        return self._overlay

    def _overlay_of_project(self, what: str) -> "Overlay":
        if self._overlay is None or self._adopted is not None:
            raise needs_overlay(f"`{what}` compares a copy of a project with the project")
        return self._overlay

    async def _stop_serving(self) -> None:
        served, self._served = self._served, None
        if served is not None:
            await served.close()

    async def _leave_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            await asyncio.to_thread(group.remove)

    def _settings(self) -> BubblewrapSettings:
        """The settings with the directories as they are now: they can differ from before."""
        workspace = self._adopted or identify_workspace(self._workspace, guarded=True)
        read_only = tuple(identify(path, what="read_only") for path in self._read_only)
        check_read_only(read_only, workspace)
        return BubblewrapSettings(
            workspace=workspace,
            read_only=read_only,
            guarded=tuple(kakoi_paths_in(workspace)),
            network=self._network,
            env=self._env,
            programs=self._programs,
            sizes=scratch_sizes(self._limits),
            git_settings=self._git_settings,
        )

    async def _settings_with_overlay(self) -> BubblewrapSettings:
        """The same with the overlay, which is locked from now on until `cleanup`."""
        wanted = self._settings()
        if self._overlay is None:
            return wanted
        mounts = await finish(self._take(self._overlay))
        layers = WorkspaceLayers(
            base=identify(mounts.base, what="the workspace"),
            folder=identify(mounts.folder, what="the overlay"),
            names=(mounts.work, *mounts.stack),
        )
        return replace(wanted, layers=layers)

    # A thread cannot be cancelled: what it made is ours to release, even if the caller has been
    # cancelled. So these two are always finished.

    async def _take(self, overlay: "Overlay") -> "Mounts":
        async with self._taking_overlay:  # A probe and an opening can want it at the same time.
            if self._mounts is None:
                self._mounts = await asyncio.to_thread(overlay.open)
                self._has_overlay = True
            return self._mounts

    async def _make_group(self) -> ControlGroup | None:
        self._group = await asyncio.to_thread(make_group, self._limits)
        return self._group

    async def _open(self) -> Channel:
        system = inspect_system()
        if system is None:
            raise _unavailable(_NOT_INSTALLED)
        await self._pause.end()
        await self._leave_group()
        wanted = await self._settings_with_overlay()
        group = await finish(self._make_group())
        kept = group.kept if group else frozenset()
        self._limit_report = make_limit_report(
            self._limits, kept, BY_BUBBLEWRAP, cpus=os.cpu_count() or 1
        )
        try:
            self._limit_report.check_enforced(self._limits, sandbox="bubblewrap")
        except LimitError:
            await self._leave_group()
            raise
        group_settings = group.for_runner() if group else {}
        if counter := group_settings.get("oom_counter"):
            seen = identify(counter, what="the counter of the control group")
            wanted = replace(wanted, read_only=(*wanted.read_only, seen))
        settings = RunnerSettings(
            max_processes=self._limits.processes,
            **group_settings,
            restrictions=build_restrictions(wanted, system).for_runner(),
            rlimits=rlimits_for(self._limits, kept),
            lifetime_s=self._deadline.left_s,
        )
        try:
            if self._outlet is None:
                return await self._start(wanted, system, settings)
            return await self._start_with(self._outlet, wanted, system, settings)
        except SandboxError as error:
            if (why := unavailable_error(error, sandbox=self.name)) is not error:
                raise why from None
            # The error says only that the runner did not start. Find out why.
            self._availability = await self._probe()
            if self._availability:
                raise
            raise _unavailable(self._availability) from error

    async def _start(
        self, wanted: BubblewrapSettings, system: HostSystem, settings: RunnerSettings
    ) -> Channel:
        groups = self._group.entries if self._group else ()
        launch = build_launch(wanted, system, python_argv(system.python), groups=groups)
        if self._group is None:
            return await open_channel(launch, settings, self._executor.stream)
        launch = replace(launch, descriptors=self._group.descriptors)
        channel = await open_channel(launch, settings, self._executor.stream)
        channel.loss.ran_out = self._group.ran_out
        return channel

    async def _start_with(
        self,
        outlet: Outlet,
        wanted: BubblewrapSettings,
        system: HostSystem,
        settings: RunnerSettings,
    ) -> Channel:
        await self._stop_serving()
        handover = HandoverFolder()
        try:
            way = identify(handover.folder, what="the way out")
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
        system = inspect_system()
        if system is None:
            return _NOT_INSTALLED
        program = [system.python, "-I", "-S", "-c", "pass"]
        try:
            wanted = await self._settings_with_overlay()
            status, stderr = await self._try(build_launch(wanted, system, program))
        except KakoiError as error:
            return Availability(False, error.message, error.hint)
        return Availability(True) if status == 0 else explain(stderr, _sysctls(), system)

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
# What bubblewrap prints when it lacks permission.
_MAY_NOT = pattern(
    r"namespace|uid map|gid map|setgroups|loopback|Can't mount (?:proc|devpts|tmpfs)|pivot_root"
    r"|Failed to (?:make|mount)|Operation not permitted|Permission denied"
)


def _sysctls() -> dict[str, str]:
    """The sysctls of this machine that can forbid user namespaces, as far as they exist."""
    found = {}
    for name in _SYSCTLS:
        path = Path("/proc/sys", *name.split("."))
        if path.exists():
            found[name] = path.read_text().strip()
    return found


def explain(stderr: str, sysctls: Mapping[str, str], system: HostSystem) -> Availability:
    """Why a sandbox did not start, from its stderr, and what would help."""
    lines = dict(line.partition(": ")[::2] for line in stderr.splitlines())
    if "staging" in lines:
        return Availability(False, lines["staging"], lines.get("fix", ""))
    last = stderr.strip().splitlines()[-1:] or ["no output"]
    if "Can't chdir to" in stderr:
        return Availability(
            False,
            "the workspace cannot be entered: a command has removed its permissions",
            "chmod u+x the workspace; if it is a copy, roll back or discard it",
        )
    if "Unknown option" in stderr:
        return Availability(
            False, "bubblewrap is older than 0.8", "apt-get install --only-upgrade bubblewrap"
        )
    if _MAY_NOT.search(stderr):
        for name, (forbids, allows) in _SYSCTLS.items():
            if sysctls.get(name) == forbids:
                reason = f"unprivileged users cannot create namespaces here ({name}={forbids})"
                return Availability(False, reason, f"sysctl -w {name}={allows}")
        return Availability(
            False,
            f"the kernel does not let bubblewrap make a sandbox ({last[0]}); is this a container?",
            "run kakoi outside of the container, or use docker",
        )
    by_hand = f"{system.bwrap} --unshare-all --ro-bind / / {os.fspath(system.python)} -V"
    return Availability(False, f"bubblewrap failed: {last[0]}", by_hand)
