"""The way into a container: a runner over one stream, or shells where there is no Python."""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Protocol

from kakoi.errors import EnvironmentUnavailableError, ExecutionError, SandboxError
from kakoi.process.stream import Launch, ProcessStream
from kakoi.runner.channel import open_channel
from kakoi.runner.commands import Channel
from kakoi.runner.connection import closed_on_failure
from kakoi.runner.delivery import NoPythonError, RunnerSettings, any_argv
from kakoi.sandbox.docker_advice import explain
from kakoi.sandbox.docker_checks import (
    check_confinement,
    disk_faults,
    engine_limits,
    ignored_limits,
    kernel_limits,
    limits_error,
    sees_view,
)
from kakoi.sandbox.docker_cli import HOME, DockerSettings, Plan, run_args
from kakoi.sandbox.docker_container import Inside, mountable
from kakoi.sandbox.docker_engine import Engine
from kakoi.sandbox.landlock import Walls, as_unavailable
from kakoi.sandbox.seccomp import system_call_filters
from kakoi.waiting import finish

if TYPE_CHECKING:
    from kakoi.runner.posix_exec import Launcher

_HOLD_S = 60.0
# No command can end it: it is another user's. It ends when its input does, that is, when we go.
_HOLDER = ["sh", "-c", "echo up; while read -r line; do :; done"]


def walls_of(settings: DockerSettings) -> Walls:
    """What the runner in a container raises around its commands, as far as it is let."""
    writable = (settings.inside, *settings.directories, HOME, "/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
    # Engines have filters, too; this one also refuses what some of them let be. A setuid file in
    # a workspace that root has lent would be root's.
    is_lent = settings.workspace is not None and os.geteuid() == 0
    calls = system_call_filters(deny_setuid=is_lent)
    return Walls(runner_filter=calls, programs=settings.programs, writable=writable)


class Held(Protocol):
    """A program that stays until it is ended."""

    async def end(self, grace_s: float = ...) -> None: ...


class Streams(Protocol):
    """How programs that stay are started, and channels opened."""

    async def hold(self, launch: Launch) -> Held:
        """Start a program; returns when it has said something, SandboxError if it does not."""
        ...

    async def open(self, launch: Launch, settings: RunnerSettings) -> Channel: ...
    async def open_shells(self, launcher: "Launcher", rlimits: Mapping[str, int]) -> Channel: ...


class RealStreams:
    """Real processes."""

    async def hold(self, launch: Launch) -> ProcessStream:
        """Start a program; see `Streams.hold`."""
        stream = ProcessStream(launch)
        try:
            async with asyncio.timeout(_HOLD_S):
                if await asyncio.get_running_loop().sock_recv(stream.socket, 2):
                    return stream
                await stream.wait()
        except BaseException as error:
            await finish(stream.end(grace_s=0))
            if not isinstance(error, TimeoutError):
                raise
            raise SandboxError(
                f"{launch.argv[0]} has not started a container after {_HOLD_S:g} s",
                hint=f"does `{launch.argv[0]} info` answer? If not, restart the engine",
            ) from error
        await finish(stream.end(grace_s=0))
        raise SandboxError("the container ended at once", details={"stderr": stream.stderr.strip()})

    async def open(self, launch: Launch, settings: RunnerSettings) -> Channel:
        """A channel to a runner."""
        return await open_channel(launch, settings)

    async def open_shells(self, launcher: "Launcher", rlimits: Mapping[str, int]) -> Channel:
        """A channel without one."""
        # Few images need it.
        from kakoi.runner.posix import open_posix_channel

        return await open_posix_channel(launcher, rlimits)


@dataclasses.dataclass(frozen=True, slots=True)
class Guest:
    """A container that goes when we do. `holder` is what keeps it there until then."""

    name: str
    channel: Channel
    holder: Held

    async def leave(self) -> None:
        """Let go of it."""
        await self.channel.close()
        await self.holder.end()


class Entry:
    """Opens channels. What it learns of the image and the engine, it learns once."""

    def __init__(self, engine: Engine, *, env: Mapping[str, str], streams: Streams | None) -> None:
        self._engine = engine
        self._program = engine.program
        self._env = dict(env)
        self._streams = streams or RealStreams()
        self._has_python = True  # Until an image shows that it has none.
        self._is_checked = False

    async def start(self, plan: Plan) -> Guest:
        """Start a container that goes when we go, and refuse one that is not as it should be."""
        launch = Launch(argv=[self._program, *run_args(plan, _HOLDER)], env=self._env)
        async with mountable(plan):
            with self._explaining(plan.name):
                holder = await self._streams.hold(launch)
        try:
            settings = RunnerSettings(
                walls=walls_of(plan.settings).handed_over(),
                rlimits=plan.settings.limits.rlimits,
            )
            async with closed_on_failure(
                await self.enter(plan.name, plan.user, settings)
            ) as channel:
                if not self._is_checked:
                    await self.check(channel, plan)
        except BaseException:
            await finish(holder.end(grace_s=0))
            raise
        return Guest(plan.name, channel, holder)

    async def enter(self, name: str, user: str, settings: RunnerSettings) -> Channel:
        """Open a channel into a container that runs."""
        inside = Inside(self._program, name, user, self._env)
        if self._has_python:
            try:
                with self._explaining(name):
                    return await self._streams.open(inside(any_argv()), settings)
            except NoPythonError:
                self._has_python = False
        if settings.walls.get("needs_abi"):
            raise EnvironmentUnavailableError(
                "the list of programs cannot be kept in an image without python3",
                details={"environmentType": self._program},
                hint="use an image with python3, or turn sandbox.kernel_allowlist off",
            )
        return await self._streams.open_shells(inside, settings.rlimits)

    @contextlib.contextmanager
    def _explaining(self, name: str) -> Iterator[None]:
        try:
            yield
        except NoPythonError:
            raise
        except SandboxError as error:
            if (told := as_unavailable(error, sandbox=self._program)) is not error:
                raise told from error
            stderr = str(error.details.get("stderr") or "")
            if not stderr:
                raise
            doing = "starting a container"
            raise explain(stderr, program=self._program, doing=doing, about=name) from error
        except ExecutionError as error:
            raise EnvironmentUnavailableError(
                str(error), details={"environmentType": self._program}, hint=error.hint
            ) from error

    async def check(self, channel: Channel, plan: Plan) -> None:
        """SandboxError if a container is not what was asked for; else it is not asked again."""
        await check_confinement(channel)
        limits = plan.settings.limits
        found = await kernel_limits(channel)
        if ignored_limits(limits, found, {}):
            engine = engine_limits(await self._engine.host_config(plan.name))
            if faults := ignored_limits(limits, found, engine):
                raise limits_error(faults, program=self._program)
        if plan.disk is not None and (faults := await disk_faults(channel, plan.disk)):
            raise limits_error(faults, program=self._program)
        if plan.lent is not None and not await sees_view(channel, plan.settings.inside):
            raise SandboxError(
                "the workspace is not what the container shows: does the engine run elsewhere?",
                hint="use an engine on this machine, or no workspace",
            )
        self._is_checked = True
