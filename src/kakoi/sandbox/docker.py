"""DockerAdapter: commands in containers, one for each command or one that stays.

    run        docker run --rm … sh → runner      one command, and all of it is gone
    channel    docker create, start; docker exec … sh → runner      stays until `cleanup`

Podman is driven by the same words.
"""

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from kakoi.errors import EnvironmentUnavailableError, ExecutionError, KakoiError, SandboxError
from kakoi.process import ProcessExecutor
from kakoi.process.options import default_environment
from kakoi.process.stream import Launch
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.channel import open_channel
from kakoi.runner.commands import Channel, Command
from kakoi.runner.connection import Connection
from kakoi.runner.delivery import NoPythonError, RunnerSettings, any_argv
from kakoi.sandbox.adapter import Availability, ExecuteOptions, as_command, exit_code_or_raise
from kakoi.sandbox.docker_advice import explain
from kakoi.sandbox.docker_checks import (
    check_confinement,
    engine_limits,
    ignored_limits,
    kernel_limits,
    limits_error,
    sees_view,
)
from kakoi.sandbox.docker_cli import DockerSettings, Lifetime, Plan, Program, Tag, run_args
from kakoi.sandbox.docker_container import (
    Container,
    default_owner,
    finish,
    mountable,
    plan_container,
)
from kakoi.sandbox.docker_engine import Engine

Opener = Callable[[Launch, RunnerSettings], Awaitable[Channel]]

_DEFAULTS = DockerSettings()
_NO_TAG = Tag()
# A runner that is already there answers at once, if it is in order.
_REOPEN_S = 10.0
_LOG = logging.getLogger(__name__)


class DockerAdapter:
    """Containers as a sandbox.

    `lifetime`: "command" gives `run` and `execute` a fresh container each time; "sandbox" one
        that stays. `channel` always opens the one that stays.
    `tag`: name and labels. `clock`: the time of day in seconds; without it no label has a date.
    `engine_env`: variables of the engine's own program, such as DOCKER_HOST.
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
        opener: Opener = open_channel,
    ) -> None:
        self._config = config
        self._engine = Engine(executor or ProcessExecutor(), program=program, env=engine_env)
        self._program = program
        self._lifetime = lifetime
        self._tag = tag if tag.owner else dataclasses.replace(tag, owner=default_owner())
        self._clock = clock
        self._env = {**default_environment(), **(engine_env or {})}
        self._opener = opener
        self._container: Container | None = None
        self._connection = Connection(self._open)
        self._is_checked = False
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
    ) -> "DockerAdapter":
        """An adapter for a container that an earlier one has made and not cleaned up.

        Its jobs are found again. SandboxError: there is no such container, or it is not ours.
        """
        tag = Tag(owner=owner, name=container)
        adapter = cls(
            config, executor, program=program, lifetime="sandbox", tag=tag, engine_env=engine_env
        )
        adapter._container = await Container.find(
            adapter._engine, container, owner=adapter._tag.owner
        )
        await adapter._container.check()
        return adapter

    @property
    def name(self) -> str:
        """Which kind of sandbox this is."""
        return self._program

    @property
    def container(self) -> str | None:
        """The name of the container that stays, once there is one."""
        return None if self._container is None else self._container.name

    # --- Can it be used? ---------------------------------------------------------------------

    async def availability(self) -> Availability:
        """Ask the engine, and run an empty command in a container if the image is here."""
        try:
            version = await self._engine.version()
            if await self._engine.find_image(self._config.image) is None:
                return Availability(
                    True,
                    f"{self._program} {version} answers; the image `{self._config.image}` will be "
                    "pulled when it is needed",
                )
            await self._probe()
        except KakoiError as error:
            return Availability(False, str(error), error.hint)
        return Availability(True, f"{self._program} {version} has run a container")

    async def is_available(self) -> bool:
        """Is it there and does it work?"""
        return bool(await self.availability())

    async def _probe(self) -> None:
        plan = await self._plan(dataclasses.replace(self._tag, name=""))
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
        result = await (await connection.channel()).run(command)
        return await self._explain_loss(result, connection)

    async def execute(
        self, command: str | Sequence[str], options: ExecuteOptions | None = None
    ) -> ExecutionResult:
        """Run `command` as spec B has it; see `SandboxAdapter.execute`."""
        wanted = as_command(command, options, timeout_s=self._config.timeout_s)
        return exit_code_or_raise(await self.run(wanted), wanted)

    async def channel(self) -> Channel:
        """The way into the container that stays; it is made at first use."""
        return await self._connection.channel()

    async def close(self) -> None:
        """Give the channel up, and leave the container and its jobs alone (see `attach`)."""
        await self._connection.close()
        self._connection = Connection(self._open)

    async def cleanup(self) -> None:
        """End everything and take the container away. Failures are logged, never raised."""
        await finish(self._cleanup())

    async def _cleanup(self) -> None:
        await self.close()
        container, self._container = self._container, None
        if container is not None:
            await self._see_gone(container.name)

    async def _see_gone(self, name: str) -> None:
        try:
            await self._engine.remove(name)
        except KakoiError as error:
            _LOG.warning("the container %s could not be removed: %s", name, error)

    # --- One container for one command -------------------------------------------------------

    async def _run_once(self, command: Command) -> ExecutionResult:
        plan = await self._plan(dataclasses.replace(self._tag, name=""))
        try:
            async with mountable(plan):
                channel = await self._start(plan)
            try:
                if not self._is_checked:
                    await self._check(channel, plan)
                result = await channel.run(command)
            finally:
                await finish(channel.close())
        finally:
            await finish(self._see_gone(plan.name))
        if result.reason is Reason.SANDBOX_LOST and await self._engine.ran_out_of_memory(plan.name):
            return _out_of_memory(result)
        return result

    async def _start(self, plan: Plan) -> Channel:
        return await self._open_stream(run_args(plan, any_argv()), RunnerSettings())

    # --- One container that stays ------------------------------------------------------------

    async def _open(self) -> Channel:
        if self._container is None:
            return await self._open_fresh()
        return await self._open_again(self._container)

    async def _open_fresh(self) -> Channel:
        plan = await self._plan(self._tag)
        container = await Container.make(self._engine, plan)
        try:
            channel = await self._enter(container)
            try:
                await self._check(channel, plan)
            except BaseException:
                await finish(channel.close())
                raise
        except BaseException:
            await finish(self._see_gone(container.name))
            raise
        self._container = container
        return channel

    async def _open_again(self, container: Container) -> Channel:
        """Find the runner that lives there. If there is none, nothing it started may live on."""
        await container.check()
        # On the host's network other containers' runners are seen as well.
        mine = self._config.network != "host"
        if not await container.end_everything(unless_runner=mine):
            try:
                async with asyncio.timeout(_REOPEN_S):
                    return await self._enter(container)
            except (SandboxError, TimeoutError) as error:
                _LOG.warning("the runner in %s does not answer: %s", container.name, error)
            await container.end_everything(unless_runner=False)
        return await self._enter(container)

    async def _enter(self, container: Container) -> Channel:
        args = container.exec_args(any_argv())
        return await self._open_stream(args, RunnerSettings(linger=True))

    async def _explain_loss(
        self, result: ExecutionResult, connection: Connection
    ) -> ExecutionResult:
        """A lost sandbox: say what became of it, and see to it that nothing of it goes on."""
        container = self._container
        if result.reason is not Reason.SANDBOX_LOST or container is None:
            return result
        try:
            state = await container.state()
            if state.running:
                await connection.channel()
                return result
        except KakoiError as error:
            return dataclasses.replace(result, error=f"{result.error}; {error}")
        if state.out_of_memory:
            return _out_of_memory(result)
        return dataclasses.replace(result, error=f"{result.error}; its container is {state}")

    # --- Both --------------------------------------------------------------------------------

    async def _plan(self, tag: Tag) -> Plan:
        if not self._has_warned:
            self._has_warned = True
            _LOG.warning("containers share the network of this machine: `network` is `host`")
        now_s = None if self._clock is None else self._clock()
        return await plan_container(self._engine, self._config, tag, now_s=now_s)

    async def _open_stream(self, args: Sequence[str], settings: RunnerSettings) -> Channel:
        launch = Launch(argv=[self._program, *args], env=self._env)
        try:
            return await self._opener(launch, settings)
        except NoPythonError:
            raise
        except SandboxError as error:
            stderr = str(error.details.get("stderr") or "")
            if not stderr:
                raise
            raise explain(
                stderr, program=self._program, doing="starting a runner", about=self._config.image
            ) from error
        except ExecutionError as error:
            raise EnvironmentUnavailableError(
                str(error), details={"environmentType": self._program}, hint=error.hint
            ) from error

    async def _check(self, channel: Channel, plan: Plan) -> None:
        """Refuse a container that is not what was asked for."""
        await check_confinement(channel)
        limits = plan.settings.limits
        found = await kernel_limits(channel)
        if faults := ignored_limits(limits, found, {}):
            engine = engine_limits(await self._engine.host_config(plan.name))
            faults = ignored_limits(limits, found, engine)
            if faults:
                raise limits_error(faults, program=self._program)
        if plan.lent is not None and not await sees_view(channel, plan.settings.inside):
            raise SandboxError(
                "the workspace is not what the container shows: does the engine run elsewhere?",
                hint="use an engine on this machine, or no workspace",
            )
        self._is_checked = True


def _out_of_memory(result: ExecutionResult) -> ExecutionResult:
    return dataclasses.replace(result, reason=Reason.OUT_OF_MEMORY, exit_code=137)
