"""The pool of resident shells in a sandbox without Python, and the orders sent to them."""

import asyncio
import contextlib
import os
import secrets
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Coroutine, Sequence
from typing import Any

from kakoi._support.asyncio import cancel_and_wait, wait_done
from kakoi.channel.api import Stream
from kakoi.channel.posix.protocol import BreachError, Ending, ProcessTree, request
from kakoi.channel.posix.resident_shell import ResidentShell, ShellConfig
from kakoi.channel.posix.watcher import Watcher
from kakoi.errors import SandboxError

# Few: an engine needs some processes in the sandbox to start one more.
_STARTING = 4
_SOON_S = 0.3
_IDLE = 8
_ORDERS = 8
_BIRTHS = 8
_GRACE_S = 1.0
_LAST_WORDS_S = 1.0
_LARGEST_ERRNO = 125
_MOST_PARTS = 4


class OrderError(OSError):
    """An order failed; `errno` says why."""


class Collector:
    """Collects an answer: up to `limit` bytes of it, and one more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.output = bytearray()
        self.started: asyncio.Future[ProcessTree] = asyncio.get_running_loop().create_future()

    def on_started(self, kept: ProcessTree) -> None:
        if not self.started.done():
            self.started.set_result(kept)

    async def on_data(self, stream: Stream, data: bytes) -> None:
        if stream == "stdout":
            self.output += data[: self._limit + 1 - len(self.output)]


class Relay:
    """Passes an answer on as it comes; the sandbox waits while nobody takes it."""

    def __init__(self) -> None:
        self.output = b""
        self.started: asyncio.Future[ProcessTree] = asyncio.get_running_loop().create_future()
        self._parts: deque[bytes] = deque()
        self._changed = asyncio.Event()
        self._is_left = False

    def on_started(self, kept: ProcessTree) -> None:
        if not self.started.done():
            self.started.set_result(kept)

    async def on_data(self, stream: Stream, data: bytes) -> None:
        if stream == "stdout" and not self._is_left:
            self._parts.append(data)
            self._changed.set()
        while len(self._parts) > _MOST_PARTS:
            self._changed.clear()
            await self._changed.wait()

    async def parts(self, work: "asyncio.Future[bytes]") -> AsyncGenerator[bytes, None]:
        """Yield the answer until `work`, which asked for it, is done."""
        work.add_done_callback(lambda _work: self._changed.set())
        while True:
            while self._parts:
                part = self._parts.popleft()
                self._changed.set()
                yield part
            if work.done():
                return
            self._changed.clear()
            await self._changed.wait()

    def leave(self) -> None:
        """Nobody takes the rest."""
        self._is_left = True
        self._parts.clear()
        self._changed.set()


class Shells:
    """The resident shells of one sandbox and its watcher.

    `lost` says why the sandbox no longer accepts requests.
    """

    def __init__(self, config: ShellConfig, watcher_shell: ResidentShell) -> None:
        self.config = config
        self.lost = ""
        self._loop = asyncio.get_running_loop()
        self._idle: list[ResidentShell] = []
        self._busy: set[ResidentShell] = set()
        self._none_busy = asyncio.Event()
        self._none_busy.set()
        self._coming: set[ResidentShell] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._leaving: set[asyncio.Future[None]] = set()
        self._orders = asyncio.Semaphore(_ORDERS)
        self._births = asyncio.Semaphore(_BIRTHS)
        self._sweeping = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._closing: asyncio.Future[None] | None = None
        self.watcher = Watcher(watcher_shell, config, self.lose)
        self._keep_spare()

    def check(self) -> None:
        """Raise SandboxError if the sandbox was lost."""
        if self.lost:
            raise SandboxError(f"the sandbox was lost: {self.lost}")

    @property
    def busy_count(self) -> int:
        """How many shells are busy."""
        return len(self._busy)

    def turn(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Hold this while a command runs: without an init, commands must run one at a time."""
        return contextlib.nullcontext() if self.config.init else self._turn

    # --- Borrowing ---------------------------------------------------------------------------

    async def borrow(self) -> ResidentShell:
        """Return a shell that waits for a request: an idle one, or a new one (a few at a time)."""
        while True:
            self.check()
            while self._idle:
                shell = self._idle.pop()
                if self._is_quiet(shell):
                    return self.adopt(shell)
                self._retire(shell)
            if len(self._coming) < _STARTING:
                return self._start()
            waiter = self._loop.create_future()
            self._waiters.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake()  # Pass the turn on.
                raise

    def adopt(self, shell: ResidentShell) -> ResidentShell:
        """Mark a shell as busy; it must be given back."""
        self._busy.add(shell)
        self._none_busy.clear()
        return shell

    def give_back(self, shell: ResidentShell, *, is_clean: bool) -> None:
        """Return a shell to the pool; `is_clean`: it can take another request."""
        self._busy.discard(shell)
        if not self._busy:
            self._none_busy.set()
        is_clean = is_clean and not shell.is_closed
        is_kept = is_clean and not self.lost and len(self._idle) < _IDLE
        if is_kept:
            self._idle.append(shell)
        else:
            self._retire(shell)
            self._keep_spare()
        self._is_up(shell)
        if is_kept:
            self._wake()

    async def unless_lost(self, answer: Coroutine[None, None, Ending | None]) -> Ending | None:
        """Return an answer, or None if the stream has ended or the sandbox was lost."""
        hearing = asyncio.ensure_future(answer)
        try:
            either: list[asyncio.Future[Any]] = [hearing, self._over]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return hearing.result() if hearing.done() else None
        except BreachError as error:
            self.lose(str(error))
            return None
        finally:
            await cancel_and_wait(hearing)

    def _start(self) -> ResidentShell:
        shell = ResidentShell(self.config.shell_launch())
        self._coming.add(shell)
        # If it is not free again soon, others have to be started.
        shell.on_up = lambda: self._loop.call_later(_SOON_S, self._is_up, shell)
        return self.adopt(shell)

    def _keep_spare(self) -> None:
        """Start a spare shell, so that the next request does not wait for one to start."""
        if not (self.lost or self._idle or self._coming):
            with contextlib.suppress(SandboxError):  # The next `borrow` reports the error.
                self._idle.append(ResidentShell(self.config.shell_launch()))

    def _is_up(self, shell: ResidentShell) -> None:
        shell.on_up = lambda: None
        if shell in self._coming:
            self._coming.discard(shell)
            self._wake()

    def _is_quiet(self, shell: ResidentShell) -> bool:
        try:
            return shell.is_quiet()
        except BreachError as error:
            self._retire(shell)
            self.lose(str(error))
            raise

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _retire(self, shell: ResidentShell) -> None:
        leaving = asyncio.ensure_future(shell.end(_GRACE_S))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    # --- Orders ------------------------------------------------------------------------------

    async def order(
        self,
        verb: str,
        *words: object,
        lines: Sequence[str] = (),
        payload: bytes | AsyncIterable[bytes] = b"",
        limit: int = 64 * 1024,
        may_wait: bool = False,
        relay: Relay | None = None,
    ) -> bytes:
        """Carry out an order of orders.sh; returns its output.

        `payload` follows the request. `may_wait`: the order can take long, and others must not wait
        for it. `relay`: takes the output as it comes. Cancelling ends the order first. OrderError:
        it failed. SandboxError: it could not be sent.
        """
        async with contextlib.nullcontext() if may_wait else self._orders:
            shell = await self.borrow()
            listener = Collector(limit) if relay is None else relay
            body = request(verb, *words, lines=lines)
            asking = asyncio.ensure_future(self._ask(shell, body, payload, listener))
            try:
                ending = await asyncio.shield(asking)
            except asyncio.CancelledError:
                await wait_done(self._call_off(shell, asking, listener))
                raise
        self.check()
        if ending is None or ending.kind != "done" or ending.status > _LARGEST_ERRNO:
            why = shell.errors if ending is None else "no other process can be started"
            raise SandboxError(f"the sandbox did not carry out `{verb}`: {why or 'no answer'}")
        if ending.status:
            raise OrderError(ending.status, os.strerror(ending.status))
        return bytes(listener.output)

    async def _ask(
        self,
        shell: ResidentShell,
        body: bytes,
        payload: bytes | AsyncIterable[bytes],
        listener: Collector | Relay,
    ) -> Ending | None:
        ending = None
        try:
            ending = await self.unless_lost(shell.ask(body, listener, payload))
            return ending
        finally:
            # A failed order may have left part of the payload unread.
            self.give_back(shell, is_clean=ending is not None and ending.status == 0)

    async def _call_off(
        self,
        shell: ResidentShell,
        asking: "asyncio.Future[Ending | None]",
        listener: Collector | Relay,
    ) -> None:
        """End the input of an order; if that does not end the order, kill it."""
        await shell.close_input()
        await asyncio.wait([asking], timeout=_LAST_WORDS_S)
        while not asking.done() and listener.started.done() and not self.lost:
            with contextlib.suppress(SandboxError):
                await self.watcher.end_below(listener.started.result())
            await asyncio.wait([asking], timeout=_LAST_WORDS_S)
        await asyncio.wait([asking])

    async def put(self, name: str, data: bytes) -> str:
        """Write a file to the private folder; returns its path. SandboxError: the disk is full."""
        try:
            await self.order("put", name, len(data), payload=data)
        except OrderError as error:
            raise SandboxError("no space is left in the sandbox") from error
        return f"{self.config.base}/{name}"

    async def put_spec(self, nonce: str, body: bytes) -> str:
        """Write a request to a file, for a shell that cannot be sent one; returns its path."""
        key = secrets.token_hex(16)
        spec = f"{key}\n{key} {nonce}\n".encode() + body
        return await self.put(f"{secrets.token_hex(8)},spec", spec)

    # --- Jobs --------------------------------------------------------------------------------

    def birth(self) -> asyncio.Semaphore:
        """Hold this while a job is being started."""
        return self._births

    async def start_job(self, spec: str) -> str:
        """Start a shell that stays; returns the error output if it did not start."""
        shell = self.adopt(ResidentShell(self.config.job_launch(spec)))
        try:
            await self.unless_lost(shell.hear(secrets.token_hex(16), Collector(0)))
        finally:
            self.give_back(shell, is_clean=False)
        self.check()
        return shell.errors

    async def sweep(self) -> int:
        """End everything that has lost the shell above it; returns how many processes survived."""
        async with self._sweeping, contextlib.AsyncExitStack() as stack:
            # A job that is being started looks like one of those.
            for _ in range(_BIRTHS):
                await stack.enter_async_context(self._births)
            return await self.watcher.sweep()

    # --- The end -----------------------------------------------------------------------------

    def lose(self, why: str) -> None:
        """Mark the sandbox as lost and end everything that runs for this channel."""
        if not self.lost:
            self.lost = why
            self._closing = asyncio.ensure_future(self._close())

    async def close(self) -> None:
        """`lose`, and wait until everything has ended."""
        self.lose("it was closed")
        if self._closing is not None:
            await wait_done(self._closing)

    async def _close(self) -> None:
        while self._waiters:
            self._wake()
        await self.watcher.close()
        # Everything was ended: pending answers arrive now or never.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._none_busy.wait()
        self._over.set_result(None)
        await self._none_busy.wait()
        for shell in self._idle:
            self._retire(shell)
        self._idle.clear()
        while self._leaving:
            await asyncio.wait(self._leaving)
