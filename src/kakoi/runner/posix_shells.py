"""The shells of ours in a sandbox without Python: borrowed, given back, asked for small things."""

import asyncio
import contextlib
import os
import secrets
from collections import deque
from collections.abc import Coroutine, Sequence
from typing import Any

from kakoi.errors import SandboxError
from kakoi.runner.commands import Stream
from kakoi.runner.posix_exec import Exec, Place
from kakoi.runner.posix_watcher import Watcher
from kakoi.runner.posix_words import BreachError, Ending, Kept, request
from kakoi.waiting import cancel, over

# Few: an engine needs some processes in the sandbox to start one more.
_STARTING = 4
_SOON_S = 0.3
_IDLE = 8
_ORDERS = 8
_BIRTHS = 8
_GRACE_S = 1.0
_LAST_WORDS_S = 1.0
_LARGEST_ERRNO = 125


class OrderError(OSError):
    """An order was not carried out; `errno` says why."""


class Collector:
    """Listens to an answer, and keeps up to `limit` bytes of it and one more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.output = bytearray()
        self.started: asyncio.Future[Kept] = asyncio.get_running_loop().create_future()

    def on_started(self, kept: Kept) -> None:
        if not self.started.done():
            self.started.set_result(kept)

    async def on_data(self, stream: Stream, data: bytes) -> None:
        if stream == "stdout":
            self.output += data[: self._limit + 1 - len(self.output)]


class Shells:
    """The shells at work in one sandbox, and the one that watches.

    `lost` says why nothing can be asked any more.
    """

    def __init__(self, place: Place, watcher_shell: Exec) -> None:
        self.place = place
        self.lost = ""
        self._loop = asyncio.get_running_loop()
        self._idle: list[Exec] = []
        self._busy: set[Exec] = set()
        self._none_busy = asyncio.Event()
        self._none_busy.set()
        self._coming: set[Exec] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._leaving: set[asyncio.Future[None]] = set()
        self._orders = asyncio.Semaphore(_ORDERS)
        self._births = asyncio.Semaphore(_BIRTHS)
        self._sweeping = asyncio.Lock()
        self._turn = asyncio.Lock()
        self._over: asyncio.Future[None] = self._loop.create_future()
        self._closing: asyncio.Future[None] | None = None
        self.watcher = Watcher(watcher_shell, place, self.lose)
        self._keep_spare()

    def check(self) -> None:
        """SandboxError if nothing can be asked any more."""
        if self.lost:
            raise SandboxError(f"the sandbox was lost: {self.lost}")

    @property
    def busy_count(self) -> int:
        """How many are at work."""
        return len(self._busy)

    def turn(self) -> contextlib.AbstractAsyncContextManager[None]:
        """To be held while a command runs: without an init they cannot be told apart."""
        return contextlib.nullcontext() if self.place.init else self._turn

    # --- Borrowing ---------------------------------------------------------------------------

    async def borrow(self) -> Exec:
        """A shell that waits for a request: an idle one, or a new one, some at a time."""
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
                    self._wake()  # Somebody else's turn, then.
                raise

    def adopt(self, shell: Exec) -> Exec:
        """It is busy from now on, whoever started it, and has to be given back."""
        self._busy.add(shell)
        self._none_busy.clear()
        return shell

    def give_back(self, shell: Exec, *, is_clean: bool) -> None:
        """Done with it; `is_clean`: the next request may go to it."""
        self._busy.discard(shell)
        if not self._busy:
            self._none_busy.set()
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
        """An answer, or None if it will not come: the stream has ended, or all is over."""
        hearing = asyncio.ensure_future(answer)
        try:
            either: list[asyncio.Future[Any]] = [hearing, self._over]
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            return hearing.result() if hearing.done() else None
        except BreachError as error:
            self.lose(str(error))
            return None
        finally:
            await cancel(hearing)

    def _start(self) -> Exec:
        shell = Exec(self.place.shell_launch())
        self._coming.add(shell)
        # If it is not free again soon, others have to be started.
        shell.on_up = lambda: self._loop.call_later(_SOON_S, self._is_up, shell)
        return self.adopt(shell)

    def _keep_spare(self) -> None:
        """See to it that the next who needs one does not have to wait until it is started."""
        if not (self.lost or self._idle or self._coming):
            with contextlib.suppress(SandboxError):  # Whoever needs one will hear of it.
                self._idle.append(Exec(self.place.shell_launch()))

    def _is_up(self, shell: Exec) -> None:
        shell.on_up = lambda: None
        if shell in self._coming:
            self._coming.discard(shell)
            self._wake()

    def _is_quiet(self, shell: Exec) -> bool:
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

    def _retire(self, shell: Exec) -> None:
        leaving = asyncio.ensure_future(shell.end(_GRACE_S))
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    # --- Orders ------------------------------------------------------------------------------

    async def order(
        self,
        verb: str,
        *words: object,
        lines: Sequence[str] = (),
        payload: bytes = b"",
        limit: int = 64 * 1024,
        may_wait: bool = False,
    ) -> bytes:
        """Have something done that posix_orders.sh names; returns what it printed.

        `payload` follows the request. `may_wait`: it can take long, and the others must not wait
        for it. Cancelling ends it first. OrderError: it said no. SandboxError: nobody could be
        asked.
        """
        async with contextlib.nullcontext() if may_wait else self._orders:
            shell = await self.borrow()
            listener = Collector(limit)
            body = request(verb, *words, lines=lines)
            asking = asyncio.ensure_future(self._ask(shell, body, payload, listener))
            try:
                ending = await asyncio.shield(asking)
            except asyncio.CancelledError:
                await over(asyncio.ensure_future(self._call_off(shell, asking, listener)))
                raise
        self.check()
        if ending is None or ending.kind != "done" or ending.status > _LARGEST_ERRNO:
            why = shell.said if ending is None else "there is no room for another process"
            raise SandboxError(f"the sandbox did not carry out `{verb}`: {why or 'no answer'}")
        if ending.status:
            raise OrderError(ending.status, os.strerror(ending.status))
        return bytes(listener.output)

    async def _ask(
        self, shell: Exec, body: bytes, payload: bytes, listener: Collector
    ) -> Ending | None:
        ending = None
        try:
            ending = await self.unless_lost(shell.ask(body, listener, payload))
            return ending
        finally:
            # One that said no may have left a part of the payload unread.
            self.give_back(shell, is_clean=ending is not None and ending.status == 0)

    async def _call_off(
        self, shell: Exec, asking: "asyncio.Future[Ending | None]", listener: Collector
    ) -> None:
        """Its input ends here; if that does not end it, we do."""
        await shell.close_input()
        await asyncio.wait([asking], timeout=_LAST_WORDS_S)
        while not asking.done() and listener.started.done() and not self.lost:
            with contextlib.suppress(SandboxError):
                await self.watcher.end_below(listener.started.result())
            await asyncio.wait([asking], timeout=_LAST_WORDS_S)
        await asyncio.wait([asking])

    async def put(self, name: str, data: bytes) -> str:
        """Write a file of ours; returns its path. SandboxError if there is no room for it."""
        try:
            await self.order("put", name, len(data), payload=data)
        except OrderError as error:
            raise SandboxError("there is no room left in the sandbox") from error
        return f"{self.place.base}/{name}"

    async def put_spec(self, nonce: str, body: bytes) -> str:
        """A file with a request, for a shell that cannot be sent one; returns its path."""
        key = secrets.token_hex(16)
        spec = f"{key}\n{key} {nonce}\n".encode() + body
        return await self.put(f"{secrets.token_hex(8)},spec", spec)

    # --- Jobs --------------------------------------------------------------------------------

    def birth(self) -> asyncio.Semaphore:
        """To be held while a job is being started."""
        return self._births

    async def start_job(self, spec: str) -> str:
        """Start a shell that stays; returns what was said, if it was not started."""
        shell = self.adopt(Exec(self.place.job_launch(spec)))
        try:
            await self.unless_lost(shell.hear(secrets.token_hex(16), Collector(0)))
        finally:
            self.give_back(shell, is_clean=False)
        self.check()
        return shell.said

    async def sweep(self) -> int:
        """End everything that has lost the shell above it; returns how many live even so."""
        async with self._sweeping, contextlib.AsyncExitStack() as stack:
            # A job that is being born looks like one of those.
            for _ in range(_BIRTHS):
                await stack.enter_async_context(self._births)
            return await self.watcher.sweep()

    # --- The end -----------------------------------------------------------------------------

    def lose(self, why: str) -> None:
        """Nothing can be asked any more; everything that runs for us is ended."""
        if not self.lost:
            self.lost = why
            self._closing = asyncio.ensure_future(self._close())

    async def close(self) -> None:
        """`lose`, and wait until all is over."""
        self.lose("it was closed")
        if self._closing is not None:
            await over(self._closing)

    async def _close(self) -> None:
        while self._waiters:
            self._wake()
        await self.watcher.close()
        # Everything has been ended: whoever waits for it hears of it now, or never.
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
