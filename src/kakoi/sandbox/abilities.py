"""What a `Sandbox` can do on some backends: copies of its workspace, forks, and pauses."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from kakoi._support.text import short_repr
from kakoi.backends.adapter import CanCheckpoint, CanFork, CanPause
from kakoi.channel.api import check_type
from kakoi.errors import ConfigurationError, UnsupportedError
from kakoi.sandbox.lifecycle import SandboxLife
from kakoi.sandbox.opened import fork_sandbox
from kakoi.sandbox.options import path_text

if TYPE_CHECKING:
    from kakoi.overlay import ApplyResult, Change, Difference

_MOST_FORKS = 64


@runtime_checkable
class Copies(CanCheckpoint, Protocol):
    """A backend whose commands write to a copy of the workspace."""

    async def changes(self) -> "list[Change]": ...
    async def diff(self, paths: Sequence[str] = ()) -> "list[Difference]": ...
    async def apply(self, paths: Sequence[str] = (), *, force: bool = False) -> "ApplyResult": ...
    async def discard(self) -> "list[Change]": ...


async def checkpoints(life: SandboxLife) -> CanCheckpoint:
    """Return the backend, if its workspace can return to an earlier state."""
    adapter = (await life.ready()).adapter
    if not isinstance(adapter, CanCheckpoint):
        raise UnsupportedError(
            f"{adapter.name} has no checkpoints of a workspace",
            hint="use bubblewrap, docker or podman",
        )
    return adapter


async def copies(life: SandboxLife) -> Copies:
    """Return the backend, if its commands write to a copy."""
    adapter = (await life.ready()).adapter
    if not isinstance(adapter, Copies):
        raise UnsupportedError(
            f"{adapter.name} has no copies of a workspace",
            hint="use bubblewrap, docker or podman with `workspace` and copy_on_write=True",
        )
    return adapter


def change_paths(paths: object) -> list[str]:
    """Check the argument `paths` of `diff` and `apply`."""
    if isinstance(paths, str | bytes) or not isinstance(paths, Sequence):
        raise ConfigurationError(f"paths is {short_repr(paths)}; it must be a list of paths")
    return [path_text("paths", each) for each in paths]


async def fork(life: SandboxLife, count: int) -> list[SandboxLife]:
    """Return `count` sandboxes that begin where this one is."""
    check_type("count", count, int)
    if not 1 <= count <= _MOST_FORKS:
        raise ConfigurationError(f"count is {count}; it must be between 1 and {_MOST_FORKS}")
    opened = await life.ready()
    if not isinstance(opened.adapter, CanFork):
        raise UnsupportedError(
            f"{opened.adapter.name} sandboxes cannot be forked",
            hint="use bubblewrap, docker or podman",
        )
    forked = await fork_sandbox(opened, opened.adapter, count)
    lives = [SandboxLife(life.options, each) for each in forked]
    await asyncio.sleep(0)  # Their closers have to begin before they can be cancelled.
    return lives


async def pause(life: SandboxLife) -> None:
    """Stop everything in the sandbox where it is."""
    opened = await life.ready()
    if not isinstance(opened.adapter, CanPause):
        raise UnsupportedError(
            f"{opened.adapter.name} sandboxes cannot be paused",
            hint="use bubblewrap, docker or podman",
        )
    await opened.adapter.pause()
    opened.paused = True


async def resume(life: SandboxLife) -> None:
    """Let everything continue."""
    life.check_owner()
    opened = life.opened
    if opened.paused and isinstance(opened.adapter, CanPause):
        await opened.adapter.resume()
        opened.paused = False
