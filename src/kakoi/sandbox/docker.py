"""DockerAdapter: commands in containers, one for each command or one that stays.

    lifetime    container                      ends
    command     docker run --rm -i             after its command, and when we die
    sandbox     docker create, docker start    at `cleanup`; if we die before, when it is swept

The way in is always a `docker exec -i` that stays. Podman is driven by the same words.
"""

import asyncio
import dataclasses
import logging
import os
from collections.abc import Callable, Mapping, Sequence

from kakoi.errors import KakoiError, SandboxError
from kakoi.process import ProcessExecutor
from kakoi.process.options import default_environment
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.channel import RunnerChannel
from kakoi.runner.commands import Channel, Command, check_type
from kakoi.runner.connection import Connection, closed_on_failure
from kakoi.runner.delivery import RunnerSettings
from kakoi.sandbox.adapter import (
    PROXIED,
    Availability,
    ExecuteOptions,
    Holding,
    Network,
    as_command,
    exit_code_or_raise,
)
from kakoi.sandbox.docker_advice import is_conflict
from kakoi.sandbox.docker_checks import holding_of
from kakoi.sandbox.docker_cli import DockerSettings, Lifetime, Plan, Program, Tag, run_args
from kakoi.sandbox.docker_container import (
    Container,
    default_owner,
    mountable,
    plan_container,
)
from kakoi.sandbox.docker_engine import Engine
from kakoi.sandbox.docker_entry import Entry, Guest, Streams, walls_of
from kakoi.sandbox.docker_memory import ContainerMemory, kills_in, out_of_memory
from kakoi.sandbox.docker_shortcut import shortened
from kakoi.sandbox.docker_way import Ways, adopted
from kakoi.sandbox.outlet import Outlet, checked_outlet
from kakoi.waiting import finish

_DEFAULTS = DockerSettings()
_NO_TAG = Tag()
_REOPEN_S = 20.0  # A runner that is already there answers at once, if it is in order.
_LOG = logging.getLogger(__name__)


class DockerAdapter:
    """Containers as a sandbox.

    `lifetime`: "command" gives `run` and `execute` a fresh container each time, and `channel` one
        that goes when the channel is closed, or we die. "sandbox" gives all of them the same one,
        which stays until `cleanup`, with its jobs; after our death `attach` finds it again.
    `tag`: name and labels. `clock`: the time of day in seconds; without it no label has a date.
    `engine_env`: variables of the engine's own program, such as DOCKER_HOST.
    `streams`: what starts programs that stay; for tests.
    `engine`: one that knows the images already; the others then say how to enter containers only.
    `outlet`: who serves the networks `open` and `allowlist`.
    """

    def __init__(
        self,
        config: DockerSettings = _DEFAULTS,
        executor: ProcessExecutor | None = None,
        *,
        program: Program = "docker",
        lifetime: Lifetime = "command",
        tag: Tag = _NO_TAG,
        clock: Callable[[], float] | None = None,
        engine_env: Mapping[str, str] | None = None,
        streams: Streams | None = None,
        engine: Engine | None = None,
        outlet: Outlet | None = None,
    ) -> None:
        check_type("config", config, DockerSettings)
        check_type("executor", executor, ProcessExecutor, type(None))
        check_type("engine_env", engine_env, Mapping, type(None))
        env = {**default_environment(), **(engine_env or {})}
        self._outlet = checked_outlet(config.network, outlet)
        if self._outlet is not None:
            config = dataclasses.replace(config, env={**self._outlet.env, **config.env})
        self._ways = Ways(self._outlet)
        self._config = config
        self._tag = tag if tag.owner else dataclasses.replace(tag, owner=default_owner())
        self._engine = engine or Engine(
            executor or ProcessExecutor(), program=program, env=engine_env, owner=self._tag.owner
        )
        self._entry = Entry(self._engine, env=env, streams=streams)
        self._lifetime = lifetime
        self._clock = clock
        self._container: Container | None = None
        self._guest: Guest | None = None
        self._memory: ContainerMemory | None = None
        self._holding = Holding()
        self._connection = Connection(self._open)
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
        """An adapter for a container that an earlier one has made and not cleaned up.

        Its jobs are found again. `outlet_for`: who serves its way out, if it has one, by the note
        that was made about that (`keep_way`). SandboxError: there is no such container, it is not
        ours, it does not run, or nobody is there to serve it.
        """
        owner = owner or default_owner()
        engine = engine or Engine(
            executor or ProcessExecutor(), program=program, env=engine_env, owner=owner
        )
        found = await Container.find(engine, container, owner=owner)
        await found.check()
        handover = adopted(found)
        if handover is not None and outlet_for is None:
            raise SandboxError(f"the way out of the container `{container}` needs who serves it")
        # Its network is what it was made with, whatever the settings say today.
        network: Network | None = None if config.network in PROXIED else config.network
        adapter = cls(
            dataclasses.replace(config, network="allowlist" if handover else network),
            executor,
            program=program,
            lifetime="sandbox",
            tag=Tag(owner=owner, name=container),
            engine_env=engine_env,
            engine=engine,
            outlet=outlet_for(handover.note) if handover and outlet_for else None,
        )
        adapter._ways.adopt(handover)
        found.data_only = config.programs is not None
        adapter._container = found
        return adapter

    @property
    def name(self) -> str:
        """Which kind of sandbox this is."""
        return self._engine.program

    @property
    def container(self) -> str | None:
        """The name of the container behind `channel`, once there is one."""
        current = self._container or self._guest
        return None if current is None else current.name

    @property
    def container_id(self) -> str:
        """The engine's own name for a container that stays; empty if it was not made here."""
        return "" if self._container is None else self._container.id

    @property
    def holding(self) -> Holding:
        """Which of the limits hold, and by what, once a container was made here."""
        return self._holding

    # --- Can it be used? ---------------------------------------------------------------------

    async def availability(self) -> Availability:
        """Ask the engine, and run an empty command in a container if the image is here; with a
        list of programs, have a runner in there keep it."""
        try:
            version = await self._engine.version()
            if await self._engine.find_image(self._config.image) is None:
                return Availability(
                    True,
                    f"{self.name} {version} answers; the image `{self._config.image}` will be "
                    "pulled when it is needed",
                )
            await self._probe()
        except KakoiError as error:
            return Availability(False, str(error), error.hint)
        return Availability(True, f"{self.name} {version} has run a container")

    async def is_available(self) -> bool:
        """Is it there and does it work?"""
        return bool(await self.availability())

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
            return await self._run_once(command)
        # Kept in hand: after a cleanup meanwhile, another one would make another container.
        connection = self._connection
        channel = await connection.channel()
        memory = self._memory
        result = await channel.run(command)
        if memory is None or not (channel.lost or result.reason is Reason.SANDBOX_LOST):
            return result
        return await self._explain_loss(result, connection, memory)

    async def execute(
        self, command: str | Sequence[str], options: ExecuteOptions | None = None
    ) -> ExecutionResult:
        """Run `command` as spec B has it; see `SandboxAdapter.execute`."""
        wanted = as_command(command, options, timeout_s=self._config.timeout_s)
        return exit_code_or_raise(await self.run(wanted), wanted)

    async def channel(self) -> Channel:
        """The way in, opened at first use and again after it was lost."""
        return await self._connection.channel()

    async def shell(self) -> str:
        """What reads commands there; see `SandboxAdapter.shell`."""
        return (await self.channel()).shell

    async def rename(self, name: str) -> None:
        """Give the container that stays another name."""
        if self._container is None:
            raise SandboxError("there is no container that stays")
        old = self._container.name
        await self._engine.must(["rename", old, name], doing="renaming a container", about=old)
        self._ways.rename(old, name)
        self._container.name = name
        self._tag = dataclasses.replace(self._tag, name=name)

    def keep_way(self, note: str) -> None:
        """Have the way out stay with the container; `note` tells who attaches how to serve it."""
        self._ways.keep(note)

    async def close(self) -> None:
        """Give the channel up, and leave a container that stays alone, with its jobs."""
        await finish(self._close())

    async def _close(self) -> None:
        connection, self._connection = self._connection, Connection(self._open)
        await connection.close()
        await self._end_guest()
        await self._ways.stop_all()

    async def cleanup(self) -> None:
        """End everything and take the container away. Failures are logged, never raised."""
        await finish(self._cleanup())

    async def _cleanup(self) -> None:
        await self._close()
        container, self._container = self._container, None
        if container is not None:
            await self._see_gone(container.name)
        self._ways.remove()

    async def _see_gone(self, name: str) -> None:
        await self._ways.stop(name)
        try:
            await self._engine.remove(name)
        except KakoiError as error:
            _LOG.warning("the container %s could not be removed: %s", name, error)

    async def _plan(self, tag: Tag) -> Plan:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("containers share the network of this machine: `network` is `host`")
        now_s = None if self._clock is None else self._clock()
        plan = await plan_container(self._engine, self._config, tag, now_s=now_s)
        self._holding = holding_of(plan)
        self._holding.refuse_unkept(self._config.limits, sandbox=self.name)
        return self._ways.planned(plan)

    async def _open(self) -> Channel:
        if self._lifetime == "command":
            return await self._open_guest()
        if self._container is None:
            return await self._open_fresh()
        return await self._open_again(self._container)

    # --- Containers that go when we go -------------------------------------------------------

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

    async def _start(self, tag: Tag) -> Guest:
        plan = await self._plan(tag)
        try:
            with self._ways.explaining():
                guest = await self._entry.start(plan)
            try:
                await self._ways.serve(guest.name, guest.channel)
            except BaseException:
                await finish(guest.leave())
                raise
            return guest
        except BaseException as error:
            if not is_conflict(error):
                await finish(self._see_gone(plan.name))
            raise

    async def _end(self, guest: Guest) -> None:
        await self._see_gone(guest.name)  # First: nothing in it has to be ended with care.
        await guest.leave()

    # --- A container that stays --------------------------------------------------------------

    async def _open_fresh(self) -> Channel:
        plan = await self._plan(self._tag)
        with self._ways.explaining():
            container = await Container.make(self._engine, plan)
        try:
            async with closed_on_failure(await self._enter(container)) as channel:
                await self._entry.check(channel, plan)
                await self._ways.serve(container.name, channel)
        except BaseException:
            await finish(self._see_gone(container.name))
            raise
        self._container = container
        self._memory = ContainerMemory(self._engine, container).watching(channel)
        return channel

    async def _open_again(self, container: Container) -> Channel:
        """Find the runner that lives there. If there is none, nothing it started may live on."""
        async with closed_on_failure(await self._find_runner(container)) as channel:
            await self._ways.serve(container.name, channel)
            before = await kills_in(channel)
        self._memory = ContainerMemory(self._engine, container, before).watching(channel)
        return channel

    async def _find_runner(self, container: Container) -> Channel:
        await container.check()
        # On the host's network other containers' runners are seen as well.
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
            walls=walls_of(self._config).handed_over(),
            rlimits=self._config.limits.rlimits,
        )
        channel = await self._entry.enter(container.name, container.user, settings)
        if not isinstance(channel, RunnerChannel) or os.geteuid() != 0:
            return channel
        async with closed_on_failure(channel):
            pid = await self._engine.pid(container.name)
        folder = self._config.env.get("TMPDIR") or "/tmp"  # noqa: S108 - as images have it
        return await shortened(channel, pid=pid, folder=folder, key=container.key)

    async def _explain_loss(
        self, result: ExecutionResult, connection: Connection, memory: ContainerMemory
    ) -> ExecutionResult:
        """A lost sandbox: say what became of it, and see to it that nothing of it goes on."""
        try:
            result, is_running = await memory.explained(result)
            if is_running:
                await connection.channel()
        except KakoiError as error:
            return dataclasses.replace(result, error=f"{result.error}; {error}")
        return result
