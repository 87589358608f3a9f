"""Pauses sandboxes, and makes sure that nothing stays frozen when this process ends.

A frozen process cannot notice that we are gone, or that the lifetime of its sandbox has ended. So
while a sandbox is paused, a program outside of it waits for the end of this process, and thaws the
sandbox then; and we thaw it at the end of its lifetime.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import field

from kakoi._support.asyncio import finish
from kakoi._support.late import dataclass
from kakoi.backends.control_groups import Freezer
from kakoi.errors import UnsupportedError
from kakoi.process.options import default_environment
from kakoi.process.stream import Launch, ProcessStream

# A line means that it is not needed any more; end of file, that this process has ended.
_GUARD = 'read -r line || exec "$@"'
_THAW = 'printf %s "$2" >"$1"'


@dataclass(frozen=True, slots=True)
class PauseMethod:
    """How one sandbox is frozen and thawed. `thaw_argv`: a program that also thaws it."""

    freeze: Callable[[], Awaitable[None]]
    thaw: Callable[[], Awaitable[None]]
    thaw_argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=default_environment)


def group_method(freezer: Freezer | None, *, sandbox: str) -> PauseMethod:
    """How to pause what is in a control group; raises UnsupportedError if it has no freezer."""
    if freezer is None:
        raise UnsupportedError(
            f"{sandbox} cannot pause here: there is no control group with a freezer",
            hint="run as root, or where systemd delegates control groups to you; or use docker",
        )
    found = freezer

    async def freeze() -> None:
        await asyncio.to_thread(found.freeze)

    async def thaw() -> None:
        await asyncio.to_thread(found.thaw)

    argv = ["/bin/sh", "-c", _THAW, "sh", str(found.file), found.thawed]
    return PauseMethod(freeze, thaw, argv)


class Pause:
    """Whether a sandbox is paused."""

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._method: PauseMethod | None = None
        self._guard: ProcessStream | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._thawing: asyncio.Task[None] | None = None

    async def begin(self, method: PauseMethod, left_s: float | None = None) -> None:
        """Freeze the sandbox, for at most `left_s`; does nothing if it is frozen."""
        async with self._turn:
            if self._method is not None:
                return
            argv = ["/bin/sh", "-c", _GUARD, "sh", *method.thaw_argv]
            self._guard = ProcessStream(Launch(argv=argv, env=method.env))
            self._method = method
            try:
                await method.freeze()
            except BaseException:
                await finish(self._end())
                raise
            if left_s is not None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_later(left_s, self._thaw_in_background)

    def _thaw_in_background(self) -> None:
        self._thawing = asyncio.ensure_future(self.end())

    async def end(self) -> None:
        """Thaw the sandbox; does nothing if it is not frozen."""
        async with self._turn:
            await finish(self._end())

    async def _end(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        method, self._method = self._method, None
        guard, self._guard = self._guard, None
        try:
            if method is not None:
                await method.thaw()
        finally:
            if guard is not None:
                with contextlib.suppress(OSError):  # It was killed.
                    await asyncio.get_running_loop().sock_sendall(guard.socket, b"\n")
                await guard.end()
