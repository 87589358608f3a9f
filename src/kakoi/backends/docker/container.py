"""Containers that wait for commands: how to create, find, restart and remove them.

`ContainerOutlets` are their network outlets: the directory of each, and its server.
"""

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import secrets
import shlex
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Protocol, TypedDict

from kakoi._support.asyncio import finish
from kakoi.backends.docker.arguments import (
    OUTLET_FOLDER,
    ContainerPlan,
    DockerSettings,
    Tag,
    create_args,
    exec_args,
    new_name,
    run_args,
)
from kakoi.backends.docker.disk import plan_disk, volume_path
from kakoi.backends.docker.engine import ContainerState, Engine, EngineFacts, Image
from kakoi.backends.docker.errors import is_conflict
from kakoi.backends.docker.mounts import (
    CopyMount,
    keep_disk,
    lend_workspace,
    mount_disk,
    show_copy,
    view_path,
    why_mounts_not_shared,
    why_no_disk,
)
from kakoi.backends.docker.users import UserChoice, choose_user, is_root
from kakoi.backends.outlet import HandoverFolder, Outlet, OutletServer, cannot_limit_network
from kakoi.backends.workspace import identify_workspace, kakoi_paths_in
from kakoi.channel.api import Channel
from kakoi.channel.runner_channel import RunnerChannel
from kakoi.errors import KakoiError, SandboxError
from kakoi.process.stream import Launch
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.memory import COUNTERS, parse_count

# A runner waits for later clients at a socket (runner/runner_socket.py). Without Python there is
# no runner, and shells above the commands end them (channel/posix/).
_HAS_PYTHON = 'python3 -I -S -c "import sys; sys.exit(sys.version_info < (3, 8))" 2>/dev/null'
_HAS_RUNNER = "grep -q ' 00010000 .*/runner$' /proc/net/unix"
IN_USE = 10
KEY_LABEL = "kakoi.runner_key"
# Kills all processes of the user except this shell, in one step. That is every command: a command
# can't become another user. `kill` fails if there are none.
_KILL = "kill -9 -1 2>/dev/null; exit 0"
_KILL_S = 15.0


def ending_script(*, unless_in_use: bool) -> str:
    """Return a script for `sh -c` that ends every process of its user in a container.

    `unless_in_use`: exit with IN_USE instead if something in there waits for a new client.
    """
    look = f"{_HAS_PYTHON} || exit {IN_USE}; {_HAS_RUNNER} && exit {IN_USE}; "
    return look + _KILL if unless_in_use else _KILL


def default_owner() -> str:
    """Identify us on a shared engine: this user on this machine, the same across reboots."""
    try:
        machine = Path("/etc/machine-id").read_bytes().strip()
    except OSError:
        machine = b""
    digest = hashlib.sha256(b"kakoi " + machine).hexdigest()[:12]
    return f"uid-{os.getuid()}@{digest if machine else 'unknown'}"


async def plan_container(
    engine: Engine, settings: DockerSettings, tag: Tag, *, now_s: float | None
) -> ContainerPlan:
    """Plan a container: pull the image if needed, inspect the engine and the workspace."""
    image = await engine.get_image(settings.image)
    facts = await engine.facts()
    workspace, guarded = None, []
    if settings.workspace is not None:
        _check_reach(facts, engine)
        workspace = identify_workspace(settings.workspace, guarded=True)
        ours = kakoi_paths_in(workspace)
        guarded = [str(PurePath(seen.path).relative_to(workspace.path)) for seen in ours]
    choice = choose_user(
        settings.user,
        image_user=image.user,
        workspace=workspace,
        caller=(os.getuid(), os.getgid()),
    )
    uid, gid = await engine.numbers_of(choice.user, image)
    name = tag.name or new_name()
    source = None if workspace is None else workspace.path
    plan = ContainerPlan(
        settings=settings,
        name=name,
        labels={**tag.labels(now_s=now_s), KEY_LABEL: secrets.token_hex(16)},
        user=choice.user,
        uid=uid,
        gid=gid,
        source=view_path(name) if choice.lend else source,
        lent=workspace if choice.lend else None,
        guarded=guarded,
        own_home=choice.own_home,
        cpus=facts.cpus,
        program=engine.program,
        rootless=facts.rootless,
    )
    disk = plan_disk(
        settings.limits,
        plan.directories,
        main=None if source else settings.inside,
        home=await _home(engine, choice, image) if settings.limits.disk_bytes else "",
        volumes=image.volumes,
        why_no_volume=_why_no_volume(facts, engine),
    )
    return dataclasses.replace(plan, disk=disk)


async def _home(engine: Engine, choice: UserChoice, image: Image) -> str:
    """The home directory in the image for the user; empty if we provide one."""
    return "" if choice.own_home else await engine.home_of(choice.user, image)


def _why_no_volume(facts: EngineFacts, engine: Engine) -> str:
    """Why we cannot make a disk of limited size for containers; empty if we can."""
    if os.geteuid() != 0:
        return "only root can make a disk of limited size"
    if engine.program != "docker" or facts.remapped or facts.rootless or not engine.is_local:
        return "no disk of limited size can be created for this engine"
    why = why_no_disk() or why_mounts_not_shared(engine.socket, volume_path(""))
    return f"no disk of limited size can be created: {why}" if why else ""


def _check_reach(facts: EngineFacts, engine: Engine) -> None:
    """Refuse engines where a workspace would have different owners inside and outside."""
    if facts.remapped or (facts.rootless and engine.program == "docker"):
        kind = "runs rootless" if facts.rootless else "gives users other numbers (userns-remap)"
        raise SandboxError(
            f"the docker engine {kind}: no user but root could write to the workspace, and "
            "commands never run as root",
            hint="use rootless podman, which can map users; or an engine without the mapping; "
            "or no workspace",
        )


class _MountOwner(TypedDict):
    """The container and user for which something is mounted while the container starts."""

    name: str
    uid: int
    gid: int
    data_only: bool


@contextlib.asynccontextmanager
async def mountable(plan: ContainerPlan) -> AsyncIterator[None]:
    """Within this context, a container of the plan can be started: its mounts exist."""
    data_only = plan.settings.programs is not None
    who: _MountOwner = {"name": plan.name, "uid": plan.uid, "gid": plan.gid, "data_only": data_only}
    async with contextlib.AsyncExitStack() as stack:
        if plan.lent is not None:
            await stack.enter_async_context(lend_workspace(plan.lent, **who))
        if plan.copied is not None:
            await stack.enter_async_context(show_copy(plan.copied, name=plan.name))
        if plan.disk is not None and plan.disk.volume_bytes:
            await stack.enter_async_context(mount_disk(plan.disk, **who))
        yield


class ContainerLauncher:
    """Starts programs in a running container: a `Launcher` for channel/posix."""

    def __init__(self, program: str, name: str, user: str, env: Mapping[str, str]) -> None:
        self._program = program
        self._name = name
        self._user = user
        self._env = dict(env)

    def __call__(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, terminal: bool = False
    ) -> Launch:
        given = env or {}
        words = exec_args(self._name, self._user, argv, variables=given, terminal=terminal)
        return Launch(argv=[self._program, *words], env={**self._env, **given})


class RunningProgram(Protocol):
    """A program that runs until `end` is called."""

    async def end(self, grace_s: float = ...) -> None: ...


# Starts the engine's program with these arguments; it then holds the container of that name.
Hold = Callable[[Sequence[str], str], Awaitable[RunningProgram]]


class Container:
    """A container that only waits. Its commands run as a different user than its main process."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        user: str,
        *,
        view_of: str = "",
        disk: str = "",
        outlet_folder: str = "",
    ) -> None:
        self.name = name
        self.user = user
        self.id = ""  # Only known if we made it.
        self.outlet_folder = outlet_folder  # See `ContainerPlan.outlet_folder`.
        self.key = ""  # Its runners prove themselves with it. Nobody inside can see labels.
        self.inside = ""  # Where its commands start, if it was found and not made.
        self.data_only = False  # No program can be executed from its workspace.
        self.copied: CopyMount | None = None  # See `ContainerPlan.copied`.
        self._engine = engine
        self._view_of = view_of
        self._disk = disk
        self._hold: Hold | None = None
        self._holder: RunningProgram | None = None

    @classmethod
    async def make(
        cls, engine: Engine, plan: ContainerPlan, hold: Hold | None = None
    ) -> "Container":
        """Create and start a container. If that fails, nothing is left behind.

        `hold`: starts the program that holds a container of such a plan.
        """
        container = cls(
            engine,
            plan.name,
            plan.user,
            view_of=plan.view_of,
            disk=plan.disk_label,
            outlet_folder=plan.outlet_folder,
        )
        container.data_only, container.copied = plan.settings.programs is not None, plan.copied
        container.key = plan.labels.get(KEY_LABEL, "")
        # Before `create`: an engine already looks for its mounts then.
        async with mountable(plan):
            try:
                await container._start(plan, hold)
            except BaseException as error:
                if not is_conflict(error):
                    with contextlib.suppress(SandboxError):
                        await finish(container.remove())
                raise
        return container

    @property
    def disk_paths(self) -> list[str]:
        """Its directories on a disk of limited size."""
        return self._disk.split(":")[1:]

    async def _be_held(self, holding: Awaitable[RunningProgram]) -> None:
        self._holder = await holding

    async def _start(self, plan: ContainerPlan, hold: Hold | None) -> None:
        self._hold = hold
        makes_directories = bool(plan.unmade) and plan.settings.programs is None
        # Podman does not start a container whose working directory is missing.
        by_run = plan.program == "docker" or not makes_directories
        if hold is not None and by_run:  # One call of the engine's program instead of two.
            words = run_args(plan, plan.first_argv, in_memory=not makes_directories)
            # To its end, even if we are cancelled: an engine makes the container of a client that
            # was killed meanwhile, when nobody looks for it any more.
            await finish(self._be_held(hold(words, self.name)))
        else:
            words = create_args(plan)
            made = await self._engine.must(words, doing="creating a container", about=self.name)
            self.id = made.strip()
        self.id = self.id or await self._engine.id(self.name)
        if makes_directories:
            await self._engine.make_directories(self.name, plan.unmade, uid=plan.uid, gid=plan.gid)
        if hold is None:
            await self._engine.start(self.name)
        elif not by_run:
            self._holder = await hold(["start", "-a", "-i", self.name], self.name)

    @classmethod
    async def find(cls, engine: Engine, name: str, *, owner: str) -> "Container":
        """Find an existing container; raises SandboxError if it does not belong to `owner`."""
        state = await engine.state(name)
        labels = state.labels or {}
        if state.status == "gone":
            raise SandboxError(
                f"there is no container `{name}`", hint=f"{engine.program} ps -a lists them"
            )
        if labels.get("kakoi.owner") != owner or is_root(labels.get("kakoi.user", "")):
            raise SandboxError(
                f"the container `{name}` is not one of ours",
                details={"owner": labels.get("kakoi.owner", "")},
                hint="attach only to a container that this user's kakoi made and kept",
            )
        view, disk = labels.get("kakoi.view", ""), labels.get("kakoi.disk", "")
        outlet_folder = labels.get("kakoi.way", "")
        found = cls(
            engine, name, labels["kakoi.user"], view_of=view, disk=disk, outlet_folder=outlet_folder
        )
        found.id = await engine.id_of(name)
        found.key = labels.get(KEY_LABEL, "")
        found.inside = labels.get("kakoi.inside", "")
        return found

    async def state(self) -> ContainerState:
        """Return its current state."""
        return await self._engine.state(self.name)

    async def check(self) -> None:
        """Raise SandboxError with the state if it is no longer running."""
        state = await self.state()
        if state.running:
            return
        raise SandboxError(
            f"the container `{self.name}` is no longer running: {state}",
            details={"container": self.name, "state": state.status, "exit_code": state.exit_code},
            hint="its files are lost; create a new sandbox"
            if state.status == "gone" or self._disk
            else f"{self._engine.program} start {self.name} brings it back with its files; "
            "cleanup removes it",
        )

    async def end_everything(self, *, unless_in_use: bool) -> bool:
        """Reliably end every process of its commands, and return True.

        `unless_in_use`: do nothing and return False if something in there waits for a new client.
        """
        script = ending_script(unless_in_use=unless_in_use)
        args = exec_args(self.name, self.user, ["sh", "-c", script])
        result = await self._engine.call(args, doing="ending what is left", timeout_s=_KILL_S)
        if result.exit_code == IN_USE:
            return False
        if result.exit_code != 0:  # The process limit may be reached.
            await self.restart()
        return True

    async def restart(self) -> None:
        """Reliably end everything in it. Its files stay."""
        async with contextlib.AsyncExitStack() as stack:
            if self._view_of:
                uid, gid = (int(number) for number in self.user.split(":"))
                seen = identify_workspace(self._view_of, guarded=True)
                view = lend_workspace(
                    seen, name=self.name, uid=uid, gid=gid, data_only=self.data_only
                )
                await stack.enter_async_context(view)
            if self.copied is not None:
                await stack.enter_async_context(show_copy(self.copied, name=self.name))
            if self._disk:
                made_for, paths = self._disk.partition(":")[0], self.disk_paths
                pid = await self._engine.pid(self.name)
                await stack.enter_async_context(keep_disk(paths, name=made_for, pid=pid))
            if self._hold is None:
                await self._engine.restart(self.name)
            else:
                await self._restart_held(self._hold)

    async def _restart_held(self, hold: Hold) -> None:
        try:
            await self._engine.restart(self.name)
            await self.leave(grace_s=0)  # It may wait until the container is removed.
            self._holder = await hold(["attach", self.name], self.name)
        except SandboxError as error:
            state = await self.state()
            if state.running:
                raise
            # Docker before 23 may remove a container with `--rm` that it is about to start again.
            raise SandboxError(
                f"the engine removed the container `{self.name}` while restarting it",
                details={"container": self.name, "state": state.status},
                hint="its files are lost; create a new sandbox",
            ) from error

    async def leave(self, grace_s: float = 2.0) -> None:
        """End the program that holds it, if there is one."""
        holder, self._holder = self._holder, None
        if holder is not None:
            await holder.end(grace_s)

    async def remove(self) -> None:
        """Remove it; raises SandboxError if that fails."""
        try:
            await self._engine.remove(self.name)
        finally:
            await self.leave()


_LOOK_S = 10.0
_MAX_BYTES = 4096
_READ = f"cat {shlex.join(COUNTERS)} 2>/dev/null; exit 0"


class ContainerMemory:
    """Watches one container while one channel to it is open.

    `before`: how many OOM kills there were when the channel was opened.
    """

    def __init__(self, engine: Engine, container: Container, before: int = 0) -> None:
        self._engine = engine
        self._container = container
        self._before = before

    def watching(self, channel: Channel) -> "ContainerMemory":
        """Return self, after letting the channel use it to explain why it was lost."""
        if isinstance(channel, RunnerChannel):
            channel.loss.ran_out = self.ran_out
        return self

    async def ran_out(self) -> bool:
        """Return whether there were OOM kills since then; False if that is unknown."""
        try:
            state = await self._container.state()
            if state.status == "gone":  # The engine removes some containers when they end.
                return await self._engine.had_oom(self._container.name)
            if not state.running:
                return state.out_of_memory
            words = exec_args(self._container.name, self._container.user, ["sh", "-c", _READ])
            async with asyncio.timeout(_LOOK_S):
                counters = await self._engine.call(words, doing="looking for its kills")
        except (KakoiError, TimeoutError):
            return False
        return parse_count(counters.stdout.encode()) > self._before

    async def explained(self, result: ExecutionResult) -> tuple[ExecutionResult, bool]:
        """Return the result of a command whose sandbox was lost, with the reason if known.

        The second value says whether the container is still running.
        """
        state = await self._container.state()
        if result.reason is Reason.SANDBOX_LOST and await self.ran_out():
            result = out_of_memory(result)
        elif not state.running:
            error = f"{result.error}; its container is {state}"
            result = dataclasses.replace(result, error=error)
        return result, state.running


async def kills_in(channel: Channel) -> int:
    """Return how many OOM kills there were so far in the channel's container."""
    for path in COUNTERS:
        with contextlib.suppress(OSError):
            return parse_count(await channel.read_file(path, limit=_MAX_BYTES))
    return 0


def out_of_memory(result: ExecutionResult) -> ExecutionResult:
    """Return the result of a command that ended because its container ran out of memory."""
    return dataclasses.replace(result, reason=Reason.OUT_OF_MEMORY, exit_code=137)


class ContainerOutlets:
    """The outlets of containers. `outlet`: serves them; None: they have no proxied network."""

    def __init__(self, outlet: Outlet | None) -> None:
        self._outlet = outlet
        self._handover: HandoverFolder | None = None
        self._served: dict[str, OutletServer] = {}

    def planned(self, plan: ContainerPlan) -> ContainerPlan:
        """Return the plan with a directory for the outlet."""
        if self._outlet is None:
            return plan
        if self._handover is None or not os.path.isdir(self._handover.folder):
            self._handover = HandoverFolder()  # The old one was removed with its container.
        return dataclasses.replace(plan, outlet_folder=self._handover.folder)

    def adopt(self, handover: HandoverFolder | None) -> None:
        """Use the directory of an existing container."""
        self._handover = handover

    def keep(self, note: str) -> None:
        """See `HandoverFolder.keep`; does nothing without an outlet."""
        if self._handover is not None:
            self._handover.keep(note)

    async def serve(self, name: str, channel: Channel) -> None:
        """Serve the outlet of a container, if it has one."""
        if self._outlet is None or self._handover is None:
            return
        await self.stop(name)
        self._served[name] = await self._handover.take(channel, self._outlet, inside=OUTLET_FOLDER)

    def rename(self, before: str, after: str) -> None:
        """Record that a container was renamed."""
        if before in self._served:
            self._served[after] = self._served.pop(before)

    async def stop(self, name: str) -> None:
        """Stop serving a container."""
        if name in self._served:
            await self._served.pop(name).close()

    async def stop_all(self) -> None:
        """Stop serving all containers."""
        for name in list(self._served):
            await self.stop(name)

    def remove(self) -> None:
        """Remove the directory."""
        handover, self._handover = self._handover, None
        if handover is not None:
            handover.close()

    @contextlib.contextmanager
    def explaining(self) -> Iterator[None]:
        """Explain an error about the missing directory: the engine runs on another machine."""
        try:
            yield
        except SandboxError as error:
            if self._handover is not None and self._handover.folder in f"{error} {error.details}":
                raise cannot_limit_network("the engine does not see its files") from error
            raise


def adopted_folder(container: Container) -> HandoverFolder | None:
    """The directory of an existing container; None if it has no outlet."""
    return HandoverFolder.adopt(container.outlet_folder) if container.outlet_folder else None
