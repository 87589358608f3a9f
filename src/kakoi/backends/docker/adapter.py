"""DockerAdapter: runs commands in containers, one per command or one for the whole sandbox.

    lifetime    container                      ends
    command     docker run --rm -i             after its command, or when we die
    client      docker run --rm -i             at `cleanup`, or when we die
    sandbox     docker create, docker start    at `cleanup`; if we die first, it stays

The channel is always a long-running `docker exec -i`. Podman accepts the same arguments.
"""

import asyncio
import contextlib
import dataclasses
import logging
import math
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from kakoi._support.asyncio import finish
from kakoi.backends.adapter import (
    PROXIED,
    Availability,
    LimitReport,
    Network,
    SandboxAdapter,
)
from kakoi.backends.built_in import BuiltInAdapter
from kakoi.backends.docker.arguments import (
    ContainerPlan,
    DockerSettings,
    Lifetime,
    Program,
    Tag,
    docker_settings,
    run_args,
)
from kakoi.backends.docker.channels import (
    ContainerEntry,
    ContainerStreams,
    TransientContainer,
    container_restrictions,
    write_git_settings,
)
from kakoi.backends.docker.checkpoints import Checkpoints
from kakoi.backends.docker.checks import planned_limit_report
from kakoi.backends.docker.container import (
    Container,
    ContainerMemory,
    ContainerOutlets,
    adopted_folder,
    default_owner,
    kills_in,
    mountable,
    out_of_memory,
    plan_container,
)
from kakoi.backends.docker.direct_channel import prefer_direct_channel
from kakoi.backends.docker.engine import Engine
from kakoi.backends.docker.errors import is_conflict
from kakoi.backends.docker.fork import (
    ForkImage,
    all_of,
    check_forkable,
    copy_directories,
    forget_runner,
    mounted_directories,
)
from kakoi.backends.docker.mounts import DISK_FOLDER, can_save_disks, save_disk
from kakoi.backends.docker.workspace_copy import WorkspaceCopy
from kakoi.backends.docker.workspace_states import WorkspaceStates
from kakoi.backends.outlet import Outlet, require_outlet
from kakoi.backends.pause import Pause, PauseMethod
from kakoi.channel.api import Channel, Command, check_type
from kakoi.channel.connection import Connection, Deadline, closed_on_failure
from kakoi.channel.delivery import RunnerSettings
from kakoi.channel.runner_channel import RunnerChannel
from kakoi.errors import ConfigurationError, KakoiError, SandboxError, UnsupportedError
from kakoi.process import ProcessExecutor
from kakoi.process.options import default_environment
from kakoi.results import ExecutionResult, Reason

if TYPE_CHECKING:
    from kakoi.overlay import Overlay

_DEFAULTS = DockerSettings()
_NO_TAG = Tag()
_REOPEN_S = 20.0  # A healthy runner that is already running answers at once.
_LOG = logging.getLogger(__name__)


class DockerAdapter(WorkspaceStates, BuiltInAdapter):
    """A sandbox made of containers.

    `config`: or the `docker` section of a file as a mapping; the workspace is then this directory.
    `lifetime`: "command" gives `run` and `execute` a fresh container each time, and `channel` one
        that ends when the channel is closed or we die. "client" and "sandbox" give all of them the
        same container, which lasts until `cleanup`, with its jobs. If we die first, even by
        `kill -9`, the container of "client" is removed; that of "sandbox" stays, and `attach` finds
        it.
    `tag`: name and labels. `clock`: the time of day in seconds; without it no label has a date.
    `engine_env`: environment variables for the engine's own program, such as DOCKER_HOST.
    `streams`: starts long-running programs; for tests.
    `engine`: an engine that already knows the images; `executor`, `program` and `engine_env` are
        then only used to enter containers.
    `outlet`: serves the networks `open` and `allowlist`.
    `overlay`: where commands write instead of the workspace, which stays unchanged; needs root, and
        lifetime="client".
    `lifetime_s`: each container ends by itself after this time and is removed by the engine,
        whatever became of us.
    """

    def __init__(
        self,
        config: DockerSettings | Mapping[str, object] = _DEFAULTS,
        executor: ProcessExecutor | None = None,
        *,
        program: Program = "docker",
        lifetime: Lifetime = "command",
        tag: Tag = _NO_TAG,
        clock: Callable[[], float] | None = None,
        engine_env: Mapping[str, str] | None = None,
        streams: ContainerStreams | None = None,
        engine: Engine | None = None,
        outlet: Outlet | None = None,
        overlay: "Overlay | None" = None,
        lifetime_s: float | None = None,
    ) -> None:
        config = docker_settings(config)
        check_type("executor", executor, ProcessExecutor, type(None))
        check_type("engine_env", engine_env, Mapping, type(None))
        self._env = {**default_environment(), **(engine_env or {})}
        self._outlet = require_outlet(config.network, outlet)
        if self._outlet is not None:
            config = dataclasses.replace(config, env={**self._outlet.env, **config.env})
        self._outlets = ContainerOutlets(self._outlet)
        self._config = config
        self._timeout_s = config.timeout_s
        self._tag = tag if tag.owner else dataclasses.replace(tag, owner=default_owner())
        self._engine = engine or Engine(
            executor or ProcessExecutor(),
            program=program,
            env=engine_env,
            owner=self._tag.owner,
            by_socket=executor is None,
        )
        self._streams = streams
        self._entry = ContainerEntry(self._engine, env=self._env, streams=streams)
        self._lifetime = lifetime
        self._clock = clock
        self._container: Container | None = None
        self._guest: TransientContainer | None = None
        self._memory: ContainerMemory | None = None
        self._made: tuple[ContainerPlan, Container] | None = None  # A fork, not entered yet.
        self._image: ForkImage | None = None
        self._limit_report = LimitReport()
        self._pause = Pause()
        self._checkpoints = Checkpoints(config.inside)
        self._copied = WorkspaceCopy(self._engine, overlay, config.workspace, lifetime)
        self._deadline = Deadline(lifetime_s)
        self._connection = Connection(self._open, self._deadline)
        self._has_warned = config.network != "host"

    @classmethod
    async def attach(
        cls,
        container: str,
        config: DockerSettings = _DEFAULTS,
        executor: ProcessExecutor | None = None,
        *,
        program: Program = "docker",
        owner: str = "",
        engine_env: Mapping[str, str] | None = None,
        engine: Engine | None = None,
        outlet_for: Callable[[str], Outlet] | None = None,
    ) -> "DockerAdapter":
        """Attach to a container that an earlier adapter created and did not clean up.

        Its jobs are still there. `outlet_for`: makes the outlet of a container with a proxied
        network from the note that `keep_outlet` left. Raises SandboxError if the container does not
        exist, is not ours, is not running, or has a proxied network and `outlet_for` is missing.
        """
        owner = owner or default_owner()
        engine = engine or Engine(
            executor or ProcessExecutor(),
            program=program,
            env=engine_env,
            owner=owner,
            by_socket=executor is None,
        )
        found = await Container.find(engine, container, owner=owner)
        await found.check()
        handover = adopted_folder(found)
        if handover is not None and outlet_for is None:
            raise SandboxError(f"container `{container}` has a proxied network: pass `outlet_for`")
        # It has the network it was created with, whatever the settings say now.
        network: Network | None = None if config.network in PROXIED else config.network
        inside = found.inside or config.inside
        adapter = cls(
            dataclasses.replace(
                config, network="allowlist" if handover else network, inside=inside
            ),
            executor,
            program=program,
            lifetime="sandbox",
            tag=Tag(owner=owner, name=container),
            engine_env=engine_env,
            engine=engine,
            outlet=outlet_for(handover.note) if handover and outlet_for else None,
        )
        adapter._outlets.adopt(handover)
        found.data_only = config.programs is not None
        adapter._container = found
        return adapter

    @property
    def name(self) -> str:
        """`docker` or `podman`"""
        return self._engine.program

    @property
    def container(self) -> str | None:
        """The name of the container behind `channel`, once it exists."""
        current = self._container or self._guest
        return None if current is None else current.name

    @property
    def inside(self) -> str:
        """The directory in which commands start."""
        return self._config.inside

    @property
    def container_id(self) -> str:
        """The engine's id of the persistent container; empty if there is none."""
        return "" if self._container is None else self._container.id

    @property
    def limit_report(self) -> LimitReport:
        """Which limits are enforced, and how, once we have created a container."""
        return self._limit_report

    # --- Availability ------------------------------------------------------------------------

    async def availability(self) -> Availability:
        """Ask the engine, and run an empty command in a container if the image is present.

        With a list of programs, start a runner in a container and have it enforce the list.
        """
        try:
            version = await self._engine.version()
            if await self._engine.find_image(self._config.image) is None:
                if self._config.image.startswith("localhost/"):  # No registry has it.
                    load = f"docker save {self._config.image[10:]} | {self.name} load"
                    return Availability(
                        False, f"the image `{self._config.image}` is not on this machine", load
                    )
                return Availability(
                    True,
                    f"{self.name} {version} answers; the image `{self._config.image}` will be "
                    "pulled when needed",
                )
            if not (found := await self._copied.availability()):
                return found
            await self._probe()
        except KakoiError as error:
            return Availability(False, str(error), error.hint)
        return Availability(True, f"{self.name} {version} ran a container")

    async def _probe(self) -> None:
        tag = dataclasses.replace(self._tag, name="")
        if self._config.programs is not None:
            return await finish(self._end(await self._start(tag)))
        plan = await self._plan(tag)
        try:
            async with mountable(plan):
                args = run_args(plan, ["sh", "-c", "exit 0"])
                await self._engine.must(args, doing="running a container", about=plan.name)
        finally:
            await finish(self._see_gone(plan.name))

    # --- Commands ----------------------------------------------------------------------------

    async def run(self, command: Command) -> ExecutionResult:
        """Run `command`; see `SandboxAdapter.run`."""
        if self._lifetime == "command":
            self._deadline.check()
            self._deadline.begin()
            return self._deadline.explained(await self._run_once(command))
        # If `cleanup` runs meanwhile, a new connection would create another container.
        connection = self._connection
        channel = await connection.channel()
        memory = self._memory
        result = await channel.run(command)
        if memory is None or not (channel.lost or result.reason is Reason.SANDBOX_LOST):
            return result
        return self._deadline.explained(await self._explain_loss(result, connection, memory))

    async def rename(self, name: str) -> None:
        """Rename the persistent container."""
        if self._container is None:
            raise SandboxError("there is no container to rename")
        old = self._container.name
        await self._engine.rename(old, name)
        self._outlets.rename(old, name)
        self._container.name = name
        self._tag = dataclasses.replace(self._tag, name=name)

    async def pause(self) -> None:
        """Freeze every process in the container; see `CanPause.pause`."""
        name = (await self._shared_container("pause")).name
        argv = [self.name, "unpause", name]
        method = PauseMethod(
            lambda: self._engine.pause(name), lambda: self._engine.unpause(name), argv, self._env
        )
        await self._pause.begin(method, self._deadline.left_s)

    async def fork(self, count: int) -> list[SandboxAdapter]:
        """Return copies of the sandbox; see `CanFork.fork`.

        Files in the container are copied, wherever commands can write, with their owners and modes;
        the copy of a workspace is shared, and each goes on with layers of its own. Raises
        UnsupportedError if commands change a directory of this machine.
        """
        check_type("count", count, int)
        if count < 1:
            raise ConfigurationError(f"count is {count}; it must be at least 1")
        container = await self._shared_container("fork")
        await check_forkable(self._engine, container)
        paths, has_layer = await mounted_directories(await self.channel())
        known = await self._engine.get_image(self._config.image)
        image = ForkImage(self._engine, users=count) if has_layer else None
        forks: list[DockerAdapter] = []
        try:
            if image is not None:
                await finish(image.make(container, known))
            forks += [self._copy(image) for _ in range(count)]
            if self._copied.is_there:
                await finish(self._fork_copy(forks))
            made, copied = await self._make_forks(container, forks)
            targets = [each for _plan, each in made]
            if image is not None:
                await all_of(forget_runner(self._engine, each) for each in targets)
            paths = [path for path in paths if path not in copied]
            skipped = self._config.inside if self._copied.is_there else ""
            await copy_directories(container, targets, paths, self._entry.launch, skipped=skipped)
            await all_of(fork.channel() for fork in forks)
        except BaseException:
            await finish(all_of(fork.cleanup() for fork in forks))
            if image is not None and not forks:
                await finish(image.remove())
            raise
        return list(forks)

    async def _make_forks(
        self, container: Container, forks: Sequence["DockerAdapter"]
    ) -> tuple[list[tuple[ContainerPlan, Container]], Sequence[str]]:
        """Make their containers. The second value names the directories that they have already.

        A disk of limited size is copied as a whole, which is faster than file by file.
        """
        paths = container.disk_paths if container.id and can_save_disks() else []
        if not paths:
            return await all_of(fork._make() for fork in forks), ()
        with tempfile.TemporaryFile(dir=DISK_FOLDER) as file:
            await self.pause()
            try:
                pid = await self._engine.pid(container.name)
                saved = await save_disk(paths[0], pid=pid, file=file)
            finally:
                await self._pause.end()
            return await all_of(fork._make(saved) for fork in forks), paths

    def _copy(self, image: ForkImage | None) -> "DockerAdapter":
        """An adapter with the same settings, and no container yet."""
        config = self._config
        if image is not None:
            config = dataclasses.replace(config, image=image.id)
        copy = DockerAdapter(
            config,
            program=self._engine.program,
            lifetime=self._lifetime,
            tag=dataclasses.replace(self._tag, name=""),
            clock=self._clock,
            engine_env=self._env,
            streams=self._streams,
            engine=self._engine,
            outlet=self._outlet,
            lifetime_s=self._deadline.lifetime_s,
        )
        copy._image = image
        return copy

    async def _shared_container(self, what: str) -> Container:
        if self._lifetime == "command":
            raise UnsupportedError(
                f"{self.name} cannot {what} containers that last for one command",
                hint='use lifetime="client" or lifetime="sandbox"',
            )
        await self.channel()
        if self._container is None:
            raise SandboxError("the sandbox has been cleaned up")
        return self._container

    async def resume(self) -> None:
        """Let the processes continue; see `CanPause.resume`."""
        await self._pause.end()

    def keep_outlet(self, note: str) -> None:
        """Keep the outlet with the container; `note` says how to serve it after `attach`."""
        self._outlets.keep(note)

    async def close(self) -> None:
        """Close the channel. A persistent container keeps running, with its jobs."""
        await finish(self._close())

    async def _close(self) -> None:
        with contextlib.suppress(KakoiError):  # It ends anyway, or says so later.
            await self._pause.end()
        connection = self._connection
        self._connection = Connection(self._open, self._deadline)
        await connection.close()
        await self._end_guest()
        await self._outlets.stop_all()
        await asyncio.to_thread(self._checkpoints.remove)

    async def cleanup(self) -> None:
        """End everything and remove the container. Failures are logged, never raised."""
        await finish(self._cleanup())

    async def _cleanup(self) -> None:
        self._deadline = Deadline(self._deadline.lifetime_s)  # Of the next container, if any.
        await self._close()
        container, self._container = self._container, None
        if self._made is not None:
            container, self._made = self._made[1], None
        if container is not None:
            await self._discard(container)
        await self._copied.close()
        self._outlets.remove()
        image, self._image = self._image, None
        if image is not None:
            await image.release()

    async def _discard(self, container: Container) -> None:
        await self._see_gone(container.name)
        await container.leave()

    async def _see_gone(self, name: str) -> None:
        await self._outlets.stop(name)
        try:
            await self._engine.remove(name)
        except KakoiError as error:
            _LOG.warning("the container %s could not be removed: %s", name, error)

    async def _plan(self, tag: Tag) -> ContainerPlan:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("containers share the network of this machine: `network` is `host`")
        now_s = None if self._clock is None else self._clock()
        plan = await plan_container(self._engine, self._config, tag, now_s=now_s)
        plan = await self._copied.planned(plan)
        self._limit_report = planned_limit_report(plan)
        self._limit_report.check_enforced(self._config.limits, sandbox=self.name)
        left_s = self._deadline.left_s
        plan = dataclasses.replace(
            plan,
            is_held=self._lifetime != "sandbox",
            ends_after_s=None if left_s is None else math.ceil(left_s),
        )
        return self._outlets.planned(plan)

    async def _open(self) -> Channel:
        if self._lifetime == "command":
            return await self._open_guest()
        if self._container is None:
            return await self._open_fresh()
        return await self._open_again(self._container)

    # --- Containers that end when we do ------------------------------------------------------

    async def _run_once(self, command: Command) -> ExecutionResult:
        guest = await self._start(dataclasses.replace(self._tag, name=""))
        try:
            result = await guest.channel.run(command)
        finally:
            await finish(self._end(guest))
        if result.reason is Reason.SANDBOX_LOST and await self._engine.had_oom(guest.name):
            return out_of_memory(result)
        return result

    async def _open_guest(self) -> Channel:
        await self._end_guest()
        self._guest = await self._start(self._tag)
        return self._guest.channel

    async def _end_guest(self) -> None:
        guest, self._guest = self._guest, None
        if guest is not None:
            await finish(self._end(guest))

    async def _start(self, tag: Tag) -> TransientContainer:
        plan = dataclasses.replace(await self._plan(tag), is_held=True)
        try:
            with self._outlets.explaining():
                guest = await self._entry.start(plan)
            try:
                await self._outlets.serve(guest.name, guest.channel)
            except BaseException:
                await finish(guest.leave())
                raise
            return guest
        except BaseException as error:
            if not is_conflict(error):
                await finish(self._see_gone(plan.name))
            raise

    async def _end(self, guest: TransientContainer) -> None:
        await self._see_gone(guest.name)  # First: nothing in it needs a graceful shutdown.
        await guest.leave()

    # --- One container for everything ----------------------------------------------------------

    async def _make(self, saved_disk: str = "") -> tuple[ContainerPlan, Container]:
        self._deadline.begin()
        plan = await self._plan(self._tag)
        if saved_disk and plan.disk is not None:
            plan = dataclasses.replace(plan, disk=dataclasses.replace(plan.disk, saved=saved_disk))
        with self._outlets.explaining():
            hold = self._entry.hold if plan.is_held else None
            self._made = plan, await Container.make(self._engine, plan, hold)
        return self._made

    async def _open_fresh(self) -> Channel:
        plan, container = self._made or await self._make()
        self._made = None
        try:
            async with closed_on_failure(await self._enter(container)) as channel:
                await self._entry.check(channel, plan)
                await self._outlets.serve(container.name, channel)
                await write_git_settings(channel, self._config)
        except BaseException:
            await finish(self._discard(container))
            raise
        self._container = container
        self._memory = ContainerMemory(self._engine, container).watching(channel)
        return channel

    async def _open_again(self, container: Container) -> Channel:
        """Connect to its runner. If the runner is gone, end everything that it started."""
        await self._copied.enter(container)
        async with closed_on_failure(await self._find_runner(container)) as channel:
            await self._outlets.serve(container.name, channel)
            before = await kills_in(channel)
        self._memory = ContainerMemory(self._engine, container, before).watching(channel)
        return channel

    async def _find_runner(self, container: Container) -> Channel:
        await container.check()
        # On the host's network the runners of other containers are visible too.
        may_wait = self._config.network != "host"
        if not await container.end_everything(unless_in_use=may_wait):
            try:
                async with asyncio.timeout(_REOPEN_S):
                    return await self._enter(container)
            except (SandboxError, TimeoutError) as error:
                _LOG.warning("the runner in %s does not answer: %s", container.name, error)
            await container.end_everything(unless_in_use=False)
        return await self._enter(container)

    async def _enter(self, container: Container) -> Channel:
        settings = RunnerSettings(
            linger=True,
            key=container.key,
            restrictions=container_restrictions(self._config).for_runner(),
            rlimits=self._config.limits.rlimits,
        )
        channel = await self._entry.enter(container.name, container.user, settings)
        if not isinstance(channel, RunnerChannel) or os.geteuid() != 0:
            return channel
        async with closed_on_failure(channel):
            pid = await self._engine.pid(container.name)
        folder = self._config.env.get("TMPDIR") or "/tmp"  # noqa: S108 - as images have it
        return await prefer_direct_channel(channel, pid=pid, folder=folder, key=container.key)

    async def _explain_loss(
        self, result: ExecutionResult, connection: Connection, memory: ContainerMemory
    ) -> ExecutionResult:
        """Report why the sandbox was lost, and make sure that nothing in it keeps running."""
        try:
            result, is_running = await memory.explained(result)
            if is_running:
                await connection.channel()
        except KakoiError as error:
            return dataclasses.replace(result, error=f"{result.error}; {error}")
        return result
