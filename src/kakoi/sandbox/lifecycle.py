"""The life of a sandbox: opened once, used from one event loop, closed for good."""

import asyncio
import os
import weakref
from typing import TYPE_CHECKING

from kakoi._support.asyncio import finish, wait_done
from kakoi._support.text import short_repr
from kakoi.channel.api import Channel, check_type
from kakoi.errors import ConfigurationError, SandboxError, UnsupportedError
from kakoi.gate import Gate
from kakoi.sandbox.opened import (
    OpenSandbox,
    SharedRecords,
    attach_sandbox,
    open_sandbox,
)
from kakoi.sandbox.options import SandboxOptions

if TYPE_CHECKING:
    from kakoi.backends.adapter import SandboxAdapter


async def _close_in_the_end(opened: OpenSandbox) -> None:
    try:
        await asyncio.get_running_loop().create_future()  # Until it is cancelled.
    finally:
        await finish(opened.leave())


def _cancel_later(closer: "asyncio.Task[None]", loop: asyncio.AbstractEventLoop) -> None:
    """Cancel the task, from any thread, if its loop still runs."""
    if not closer.done() and not loop.is_closed():
        loop.call_soon_threadsafe(closer.cancel)


async def _backend_of(life: "weakref.ref[SandboxLife]") -> "SandboxAdapter":
    found = life()
    if found is None:
        raise SandboxError("the sandbox is closed", hint="open a new one")
    return (await found.chosen()).adapter


class SandboxLife:
    """Opens a sandbox at most once, closes it for good, and says why it cannot be used.

    A task of its event loop closes the sandbox: when it is asked to, when nobody can reach the
    sandbox any more, and when the loop ends (`asyncio.run` cancels its tasks).
    """

    def __init__(self, options: SandboxOptions, opened: OpenSandbox | None = None) -> None:
        self.options = options
        self._records: SharedRecords | None = None
        self._gate: Gate | None = None
        self._opened: OpenSandbox | None = None
        self._opening: asyncio.Task[OpenSandbox] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closer: asyncio.Task[None] | None = None
        self._process = os.getpid()
        self._waiting = 0
        self._given_up: set[asyncio.Task[OpenSandbox]] = set()
        self._over = ""
        self._left_id = ""
        if opened is not None:
            self._loop = asyncio.get_running_loop()
            self._records, self._gate = opened.records, opened.gate
            self._keep(opened)

    def _keep(self, opened: OpenSandbox) -> None:
        self._opened = opened
        self._closer = closer = asyncio.create_task(_close_in_the_end(opened))
        weakref.finalize(self, _cancel_later, closer, asyncio.get_running_loop()).atexit = False

    @property
    def gate(self) -> Gate:
        """The gate. The first command that it lets pass opens the sandbox."""
        if self._gate is None:
            life = weakref.ref(self)  # The gate must not keep a sandbox that nobody can reach.
            self._gate = self._shared_records().gate(lambda: _backend_of(life))
        return self._gate

    def _shared_records(self) -> SharedRecords:
        if self._records is None:
            self._records = SharedRecords(self.options)
        return self._records

    @property
    def workspace(self) -> str:
        """Where commands start, as far as that is known."""
        return self.options.inside if self._opened is None else self._opened.workspace

    @property
    def id(self) -> str:
        """The id of the sandbox, once it was opened."""
        return self._left_id or self.opened.id

    def __repr__(self) -> str:
        return self._over or ("not open" if self._opened is None else self._opened.id)

    @property
    def opened_or_none(self) -> OpenSandbox | None:
        """The open sandbox; None before it is opened and after it is closed."""
        return self._opened

    @property
    def opened(self) -> OpenSandbox:
        """The open sandbox. Raises ConfigurationError if it is not open."""
        if self._opened is None:
            raise ConfigurationError(
                f"the sandbox is {self._over or 'not open yet'}",
                hint="" if self._over else "use `async with`, or `await box.open()`",
            )
        return self._opened

    async def ready(self) -> OpenSandbox:
        """Return the open sandbox, which works; the first call opens it."""
        opened = await self.chosen(connect=True)
        await opened.connect()
        self.check_usable()
        return opened

    async def chosen(self, *, connect: bool = False) -> OpenSandbox:
        """Return the open sandbox. With `connect`, a new one has been found to work."""
        self.check_owner()
        if self._opened is None:
            opened = await self._open(connect=connect)
            self.check_owner()  # It may have been closed meanwhile.
            if self._opened is None:
                self._keep(opened)
                await asyncio.sleep(0)  # The closer has to begin before it can be cancelled.
        if self._closer is not None and self._closer.done():
            self._over = "closed"
            self.check_owner()
        return self.opened

    def check_usable(self) -> None:
        """Raise SandboxError if the sandbox is closed, paused, or belongs to others."""
        self.check_owner()
        if self._opened is not None and self._opened.paused:
            raise SandboxError("the sandbox is paused", hint="call `resume()` first")

    async def channel(self) -> Channel:
        """Return the channel into the open sandbox."""
        return await (await self.ready()).channel()

    def check_owner(self) -> None:
        """Raise SandboxError if the sandbox is closed, or belongs to others."""
        if self._over:
            raise SandboxError(f"the sandbox is {self._over}", hint="open a new one")
        loop = asyncio.get_running_loop()
        if self._process != os.getpid():
            raise SandboxError(
                "the sandbox belongs to the process that opened it, of which this one is a fork",
                hint="open another one here",
            )
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            if self._loop.is_closed():
                raise SandboxError(
                    "the sandbox was closed with its event loop",
                    hint="open one in each loop, or use kakoi.sync.Sandbox, which has its own",
                )
            raise SandboxError(
                "the sandbox was opened in another event loop",
                hint="open one in each loop, or use kakoi.sync.Sandbox, which has its own",
            )

    async def _open(self, *, connect: bool) -> OpenSandbox:
        if self._opening is None:
            work = open_sandbox(self._shared_records(), self.gate, connect=connect)
            self._opening = asyncio.ensure_future(work)
        opening = self._opening
        self._waiting += 1
        try:
            return await asyncio.shield(opening)
        finally:
            self._waiting -= 1
            if not self._waiting and not opening.done():
                # Every caller has given up: it ends, and nothing is left.
                opening.cancel()
                self._given_up.add(opening)
                opening.add_done_callback(self._given_up.discard)
                self._opening = None
            elif opening.done() and (opening.cancelled() or opening.exception() is not None):
                self._opening = None

    async def close(self) -> None:
        """End the sandbox. Closing it again does nothing."""
        self._over = self._over or "closed"
        if self._process != os.getpid() or self._loop is not asyncio.get_running_loop():
            # It is the parent's; or its loop has ended, and it with it, or will close it.
            if self._process == os.getpid() and self._closer is not None and self._loop is not None:
                _cancel_later(self._closer, self._loop)
            self._opened = None
            return
        if self._given_up:
            await asyncio.wait(self._given_up)
        opening, self._opening = self._opening, None
        if self._opened is None and opening is not None:
            opening.cancel()
            await asyncio.wait([opening])
            if not opening.cancelled() and opening.exception() is None:
                self._keep(opening.result())
                await asyncio.sleep(0)
        records, self._records = self._records, None
        if self._opened is not None and self._over == "closed":
            self._opened.outlives = False  # It is closed on purpose.
        elif self._opened is None and records is not None:
            await records.release()
        await self._end_closer()

    async def detach(self) -> None:
        """Leave the sandbox running until its lifetime ends."""
        opened = await self.ready()
        if not opened.outlives:
            raise UnsupportedError(
                "this sandbox ends with its process",
                hint="open it with `lifetime`, network `none` or `host`, and docker or podman",
            )
        self._over, self._left_id = "detached", opened.id
        await self._end_closer()

    async def _end_closer(self) -> None:
        closer, self._closer, self._opened = self._closer, None, None
        if closer is not None:
            closer.cancel()
            await wait_done(asyncio.wait([closer]))
            if not closer.cancelled() and (error := closer.exception()) is not None:
                raise error

    async def attach(self, id: str) -> None:
        """Find a running sandbox by its id, instead of opening a new one."""
        check_type("id", id, str)
        if not (id[:1].isalnum() and id.replace("-", "").replace("_", "").isalnum()):
            raise ConfigurationError(
                f"id is {short_repr(id)}; it must be the `id` of a sandbox, such as `kakoi-1a2b`"
            )
        self.check_owner()
        self._keep(await attach_sandbox(self._shared_records(), self.gate, id))
        await asyncio.sleep(0)
