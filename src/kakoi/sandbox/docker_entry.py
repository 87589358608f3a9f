"""The way into a container: a runner over one stream, or shells where there is no Python."""

import dataclasses
from collections.abc import Awaitable, Callable, Mapping, Sequence

from kakoi.errors import EnvironmentUnavailableError, ExecutionError, SandboxError
from kakoi.process.stream import Launch, ProcessStream
from kakoi.runner.channel import open_channel
from kakoi.runner.commands import Channel
from kakoi.runner.delivery import NoPythonError, RunnerSettings, any_argv
from kakoi.runner.posix import open_posix_channel
from kakoi.sandbox.docker_advice import explain
from kakoi.sandbox.docker_checks import (
    check_confinement,
    engine_limits,
    ignored_limits,
    kernel_limits,
    limits_error,
    sees_view,
)
from kakoi.sandbox.docker_cli import Plan, run_args
from kakoi.sandbox.docker_container import Container, Inside, finish, hold, mountable
from kakoi.sandbox.docker_engine import Engine

Opener = Callable[[Launch, RunnerSettings], Awaitable[Channel]]


@dataclasses.dataclass(frozen=True, slots=True)
class Guest:
    """A container that goes when its channel does, and when we do.

    `holder`: what else keeps it there, if the channel does not.
    """

    name: str
    channel: Channel
    holder: ProcessStream | None = None

    async def leave(self) -> None:
        """Give it up. The engine takes it away."""
        await self.channel.close()
        if self.holder is not None:
            await self.holder.end()


class Entry:
    """Opens channels. What it learns of the image and the engine, it learns once."""

    def __init__(self, engine: Engine, *, env: Mapping[str, str], opener: Opener | None) -> None:
        self._engine = engine
        self._program = engine.program
        self._env = dict(env)
        self._opener: Opener = opener or open_channel
        self._has_python = True  # Until an image shows that it has none.
        self._is_checked = False

    async def start(self, plan: Plan) -> Guest:
        """Start a container that goes with us, and refuse one that is not what was asked for."""
        async with mountable(plan):
            guest = await self._start(plan)
        try:
            if not self._is_checked:
                await self.check(guest.channel, plan)
        except BaseException:
            await finish(guest.leave())
            raise
        return guest

    async def _start(self, plan: Plan) -> Guest:
        if self._has_python:
            try:
                args = run_args(plan, any_argv())
                return Guest(plan.name, await self._open(args, RunnerSettings(), plan.name))
            except NoPythonError:
                self._has_python = False
                await self._engine.remove(plan.name)  # The next one has the same name.
        holder = await hold(plan, env=self._env)
        try:
            return Guest(plan.name, await self._open_shells(plan.name, plan.user), holder)
        except BaseException:
            await finish(holder.end())
            raise

    async def enter(self, container: Container) -> Channel:
        """Open a channel into a container that stays."""
        if self._has_python:
            try:
                args = container.exec_args(any_argv())
                return await self._open(args, RunnerSettings(linger=True), container.name)
            except NoPythonError:
                self._has_python = False
        return await self._open_shells(container.name, container.user)

    async def _open(self, args: Sequence[str], settings: RunnerSettings, name: str) -> Channel:
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
                stderr, program=self._program, doing="starting a runner", about=name
            ) from error
        except ExecutionError as error:
            raise EnvironmentUnavailableError(
                str(error), details={"environmentType": self._program}, hint=error.hint
            ) from error

    async def _open_shells(self, name: str, user: str) -> Channel:
        return await open_posix_channel(Inside(self._program, name, user, self._env))

    async def check(self, channel: Channel, plan: Plan) -> None:
        """SandboxError if a container is not what was asked for."""
        await check_confinement(channel)
        limits = plan.settings.limits
        found = await kernel_limits(channel)
        if ignored_limits(limits, found, {}):
            engine = engine_limits(await self._engine.host_config(plan.name))
            if faults := ignored_limits(limits, found, engine):
                raise limits_error(faults, program=self._program)
        if plan.lent is not None and not await sees_view(channel, plan.settings.inside):
            raise SandboxError(
                "the workspace is not what the container shows: does the engine run elsewhere?",
                hint="use an engine on this machine, or no workspace",
            )
        self._is_checked = True
