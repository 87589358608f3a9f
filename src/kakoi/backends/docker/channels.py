"""Opens channels into containers: to a runner, or to shells if the image has no Python."""

import asyncio
import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from kakoi._support.asyncio import finish, wait_through
from kakoi.backends.docker.arguments import HOME, ContainerPlan, DockerSettings, run_args
from kakoi.backends.docker.checks import (
    check_confinement,
    disk_faults,
    engine_limits,
    ignored_limits,
    kernel_limits,
    limits_error,
    sees_view,
)
from kakoi.backends.docker.container import Container, ContainerLauncher, RunningProgram, mountable
from kakoi.backends.docker.engine import CALL_LIMIT, Engine, call_limit_s
from kakoi.backends.docker.errors import explain
from kakoi.backends.landlock import Restrictions, unavailable_error
from kakoi.backends.seccomp import system_call_filters
from kakoi.channel.api import Channel, Command
from kakoi.channel.connection import closed_on_failure
from kakoi.channel.delivery import NoPythonError, RunnerSettings, any_argv
from kakoi.channel.runner_channel import open_channel
from kakoi.errors import EnvironmentUnavailableError, ExecutionError, SandboxError
from kakoi.process.stream import Launch, ProcessStream

if TYPE_CHECKING:
    from kakoi.channel.posix.resident_shell import Launcher

_WRITE_S = 20.0
_WRITE_GIT_SETTINGS = '[ -e ~/.gitconfig ] || printf %s "$KAKOI_GIT_SETTINGS" >~/.gitconfig'


def container_restrictions(settings: DockerSettings) -> Restrictions:
    """The restrictions that the runner applies to its commands, as far as the kernel can."""
    writable = (settings.inside, *settings.directories, HOME, "/tmp", "/var/tmp", "/dev/shm")  # noqa: S108
    # Engines have filters too, but ours also refuses calls that some of them allow. A setuid file
    # in a workspace that root lends would belong to root.
    is_lent = settings.workspace is not None and os.geteuid() == 0
    calls = system_call_filters(deny_setuid=is_lent)
    return Restrictions(runner_filter=calls, programs=settings.programs, writable=writable)


async def write_git_settings(channel: Channel, settings: DockerSettings) -> None:
    """Write the git settings, if there are any. A home that cannot be written to stays as it is."""
    if settings.git_settings:
        # By the shell alone, which runs whatever the programs of the image are.
        env = {"KAKOI_GIT_SETTINGS": settings.git_settings.decode()}
        await channel.run(Command(command=_WRITE_GIT_SETTINGS, env=env, timeout_s=_WRITE_S))


class ContainerStreams(Protocol):
    """Starts long-running programs, and opens channels."""

    async def hold(self, launch: Launch) -> RunningProgram:
        """Start a program, send it a line and return at its first output.

        Raises SandboxError if there is none.
        """
        ...

    async def open(self, launch: Launch, settings: RunnerSettings) -> Channel: ...
    async def open_shells(self, launcher: "Launcher", rlimits: Mapping[str, int]) -> Channel: ...


class EngineStreams:
    """Starts real processes."""

    async def hold(self, launch: Launch) -> ProcessStream:
        """Start a program; see `ContainerStreams.hold`."""
        limit_s = call_limit_s(launch.env)
        stream = ProcessStream(launch)
        try:
            async with asyncio.timeout(limit_s):
                loop = asyncio.get_running_loop()
                with contextlib.suppress(ConnectionError):  # It has exited; its stderr says why.
                    await loop.sock_sendall(stream.socket, b"\n")
                    if await loop.sock_recv(stream.socket, 2):
                        return stream
                await stream.wait()
        except BaseException as error:
            await finish(stream.end(grace_s=0))
            if not isinstance(error, TimeoutError):
                raise
            raise SandboxError(
                f"{launch.argv[0]} did not start a container within {limit_s:g} s",
                hint=f"does `{launch.argv[0]} info` answer? If not, restart the engine; "
                f"{CALL_LIMIT}=SECONDS waits longer",
            ) from error
        await finish(stream.end(grace_s=0))
        raise SandboxError(
            "the container exited immediately", details={"stderr": stream.stderr.strip()}
        )

    async def open(self, launch: Launch, settings: RunnerSettings) -> Channel:
        """Open a channel to a runner."""
        return await open_channel(launch, settings)

    async def open_shells(self, launcher: "Launcher", rlimits: Mapping[str, int]) -> Channel:
        """Open a channel without a runner."""
        # Imported here because few images need it.
        from kakoi.channel.posix.channel import open_posix_channel

        return await open_posix_channel(launcher, rlimits)


@dataclasses.dataclass(frozen=True, slots=True)
class TransientContainer:
    """A container that ends when we do. `holder`: the program that keeps it running."""

    name: str
    channel: Channel
    holder: RunningProgram

    async def leave(self) -> None:
        """Close its channel, and let it end."""
        await self.channel.close()
        await self.holder.end()


class ContainerEntry:
    """Opens channels. It checks the image and the engine only once."""

    def __init__(
        self, engine: Engine, *, env: Mapping[str, str], streams: ContainerStreams | None
    ) -> None:
        self._engine = engine
        self._program = engine.program
        self._env = dict(env)
        self._streams = streams or EngineStreams()
        self._has_python = True  # Until opening a channel shows otherwise.
        self._is_checked = False

    async def start(self, plan: ContainerPlan) -> TransientContainer:
        """Start a container that ends when we do; SandboxError if it is not as requested."""
        async with mountable(plan):
            # To its end, even if we are cancelled: see `Container`.
            holding = asyncio.ensure_future(self.hold(run_args(plan, plan.first_argv), plan.name))
            cancelled = await wait_through(holding)
        holder = holding.result()
        try:
            if cancelled is not None:
                raise cancelled
            settings = RunnerSettings(
                restrictions=container_restrictions(plan.settings).for_runner(),
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
        return TransientContainer(plan.name, channel, holder)

    async def hold(self, args: Sequence[str], name: str) -> RunningProgram:
        """Start the engine's program with `args`, by which the container `name` is held."""
        with self._explaining(name):
            return await self._streams.hold(Launch(argv=[self._program, *args], env=self._env))

    def launch(self, container: Container, argv: Sequence[str]) -> Launch:
        """How to start a program in a running container, as the user of its commands."""
        return ContainerLauncher(self._program, container.name, container.user, self._env)(argv)

    async def enter(self, name: str, user: str, settings: RunnerSettings) -> Channel:
        """Open a channel into a running container."""
        inside = ContainerLauncher(self._program, name, user, self._env)
        if self._has_python:
            try:
                with self._explaining(name):
                    return await self._streams.open(inside(any_argv()), settings)
            except NoPythonError:
                self._has_python = False
        if settings.restrictions.get("needs_abi"):
            raise EnvironmentUnavailableError(
                "the list of programs cannot be enforced in an image without python3",
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
            if (explained := unavailable_error(error, sandbox=self._program)) is not error:
                raise explained from error
            stderr = str(error.details.get("stderr") or "")
            if not stderr:
                raise
            doing = "starting a container"
            raise explain(stderr, program=self._program, doing=doing, about=name) from error
        except ExecutionError as error:
            raise EnvironmentUnavailableError(
                str(error), details={"environmentType": self._program}, hint=error.hint
            ) from error

    async def check(self, channel: Channel, plan: ContainerPlan) -> None:
        """Raise SandboxError if a container is not as requested; checked once."""
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
                "the container does not show the workspace: is the engine on another machine?",
                hint="use an engine on this machine, or no workspace",
            )
        self._is_checked = True
