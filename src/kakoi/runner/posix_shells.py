"""The shells of ours in one sandbox without Python: those that work, and the one that watches.

The watcher is there from the first moment to the last. It ends what has to be ended without
starting a process, and when it loses us it ends everything that was started for us.
"""

import asyncio
import contextlib
import os
import re
import secrets
from collections import deque
from collections.abc import Callable, Coroutine, Sequence

from kakoi.errors import SandboxError
from kakoi.runner.commands import Stream
from kakoi.runner.posix_exec import BreachError, Ending, Exec, Place, cancelled, request

_STARTING = 8
_SOON_S = 0.3
_IDLE = 8
_ORDERS = 8
_BIRTHS = 8
# More than this is faster as the last that a shell is sent.
_SHORT = 64 * 1024
# It tries for five seconds to end what does not want to.
_ANSWER_S = 10.0
_CLOSE_S = 20.0
_LAST_WORDS_S = 1.0
_LARGEST_ERRNO = 125
_LONGEST_REPLY = 100
_REPLY = re.compile(rb"([0-9]{1,9}) ([0-9]{1,6}) ([0-9]{1,6})")


class OrderError(OSError):
    """An order was not carried out; `errno` says why."""


async def finished(task: "asyncio.Future[object]") -> None:
    """Wait until it is done, whatever happens to us; a cancellation is raised only then."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


class Watcher:
    """Our end of the shell that watches. `on_lost` is called once, if it goes before we do."""

    def __init__(self, shell: Exec, place: Place, on_lost: Callable[[str], None]) -> None:
        self._shell = shell
        self._place = place
        self._on_lost = on_lost
        self._waiting: dict[int, asyncio.Future[tuple[int, int]]] = {}
        self._last_number = 0
        self._is_orderly = self._is_deaf = False
        self._listening = asyncio.ensure_future(self._listen())

    async def call(self, *words: object) -> int:
        """Have something done that posix.sh names; returns how many processes live even so."""
        if self._listening.done():
            raise SandboxError("the sandbox was lost: its watcher is gone")
        self._last_number += 1
        number = self._last_number
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self._shell.write(" ".join(map(str, (number, *words))).encode() + b"\n")
                survivors, _ = await answer
        except TimeoutError:
            self._is_deaf = True
            self._on_lost("its watcher does not answer")
            raise SandboxError("the sandbox was lost: its watcher does not answer") from None
        finally:
            self._waiting.pop(number, None)
        return survivors

    async def close(self) -> None:
        """End all that was started for us, and the watcher. It may be gone: then by another."""
        await self._shell.close_input()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0 if self._is_deaf else _CLOSE_S):
                await asyncio.shield(self._listening)
        self._listening.cancel()
        await asyncio.wait([self._listening])
        await self._shell.end(grace_s=0.5)
        if not self._is_orderly:
            await self._end_anew()

    async def _listen(self) -> None:
        unread, why = b"", "it ended"
        await self._shell.write(self._request(self._shell))
        while chunk := await self._shell.next_chunk():
            *lines, unread = (unread + chunk).split(b"\n")
            if not all(map(self._take, lines)) or len(unread) > _LONGEST_REPLY:
                why = "it does not keep to the protocol"
                break
        error = SandboxError(f"the sandbox was lost: {why}")
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)
        if not self._is_orderly:
            self._on_lost(why)

    def _take(self, line: bytes) -> bool:
        if line == b"closed":
            self._is_orderly = True
            return True
        found = _REPLY.fullmatch(line)
        if found is None:
            return False
        answer = self._waiting.get(int(found[1]))
        if answer is not None and not answer.done():
            answer.set_result((int(found[2]), int(found[3])))
        return True

    def _request(self, shell: Exec) -> bytes:
        words = request("watch", self._place.base, self._place.init)
        return shell.full_request("watcher", words)

    async def _end_anew(self) -> None:
        """What a watcher does when it loses us, by one that loses us at once."""
        with contextlib.suppress(SandboxError, TimeoutError):
            shell = Exec(self._place.shell_launch(kept=False))
            try:
                async with asyncio.timeout(_CLOSE_S):
                    await shell.write(self._request(shell))
                    await shell.close_input()
                    while await shell.next_chunk():
                        pass
            finally:
                await shell.end(grace_s=0.5)


class Collector:
    """Listens to an answer, and keeps up to `limit` bytes of it and one more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.output = bytearray()
        self.started: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()

    def on_started(self, root: int, main: int) -> None:
        if not self.started.done():
            self.started.set_result((root, main))

    async def on_data(self, stream: Stream, data: bytes) -> None:
        if stream == "stdout":
            self.output += data[: self._limit + 1 - len(self.output)]


class Shells:
    """The shells at work in one sandbox, and what they can be asked.

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
        self._watcher = Watcher(watcher_shell, place, self.lose)

    # --- Borrowing ---------------------------------------------------------------------------

    async def borrow(self) -> Exec:
        """A shell that waits for a request: an idle one, or a new one, some at a time."""
        while True:
            self.check()
            while self._idle:
                shell = self._idle.pop()
                if self._is_quiet(shell):
                    self.adopt(shell)
                    return shell
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

    def give_back(self, shell: Exec, *, is_clean: bool) -> None:
        """Done with it; `is_clean`: the next request may go to it."""
        self._busy.discard(shell)
        if not self._busy:
            self._none_busy.set()
        self._is_up(shell)
        if is_clean and not self.lost and len(self._idle) < _IDLE:
            self._idle.append(shell)
            self._wake()
        else:
            self._retire(shell)

    def adopt(self, shell: Exec) -> None:
        """It is busy, and has to be given back; it may have been started by another."""
        self._busy.add(shell)
        self._none_busy.clear()

    @property
    def busy_count(self) -> int:
        """How many are at work."""
        return len(self._busy)

    def turn(self) -> contextlib.AbstractAsyncContextManager[None]:
        """To be held while a command runs: without an init they cannot be told apart."""
        return contextlib.nullcontext() if self.place.init else self._turn

    def check(self) -> None:
        """SandboxError if nothing can be asked any more."""
        if self.lost:
            raise SandboxError(f"the sandbox was lost: {self.lost}")

    async def unless_lost(self, answer: Coroutine[None, None, Ending | None]) -> Ending | None:
        """An answer, or None if it will not come: the stream has ended, or all is over."""
        hearing = asyncio.ensure_future(answer)
        try:
            await asyncio.wait([hearing, self._over], return_when=asyncio.FIRST_COMPLETED)
            return hearing.result() if hearing.done() else None
        except BreachError as error:
            self.lose(str(error))
            return None
        finally:
            await cancelled(hearing)

    def _start(self) -> Exec:
        shell = Exec(self.place.shell_launch())
        self._coming.add(shell)
        # If it is not free again soon, others have to be started.
        shell.on_up = lambda: self._loop.call_later(_SOON_S, self._is_up, shell)
        self.adopt(shell)
        return shell

    def _is_up(self, shell: Exec) -> None:
        shell.on_up = _nothing
        if shell in self._coming:
            self._coming.discard(shell)
            self._wake()

    def _is_quiet(self, shell: Exec) -> bool:
        try:
            return shell.is_quiet()
        except BreachError as error:
            self.lose(str(error))
            self._retire(shell)
            raise

    def _wake(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _retire(self, shell: Exec) -> None:
        task = asyncio.ensure_future(shell.end(grace_s=1.0))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    # --- Orders ------------------------------------------------------------------------------

    async def order(
        self,
        verb: str,
        *words: object,
        lines: Sequence[str] = (),
        payload: bytes = b"",
        ends: bool = False,
        limit: int = 64 * 1024,
        may_wait: bool = False,
    ) -> bytes:
        """Have something done that posix_orders.sh names; returns what it printed.

        `payload` follows the request; with `ends` it is the last that shell is sent. `may_wait`:
        it can take long, and the others must not wait for it. Cancelling ends it first.
        OrderError: it said no. SandboxError: nobody could be asked.
        """
        async with contextlib.nullcontext() if may_wait else self._orders:
            shell = await self.borrow()
            listener = Collector(limit)
            body = request(verb, *words, lines=lines)
            asking = asyncio.ensure_future(self._ask(shell, body, payload, listener, ends=ends))
            try:
                ending = await asyncio.shield(asking)
            except asyncio.CancelledError:
                await finished(asyncio.ensure_future(self._call_off(asking, listener)))
                raise
        self.check()
        return _output_of(ending, listener, verb, shell.said)

    async def put_spec(self, nonce: str, body: bytes) -> str:
        """A file with a request, for a shell that cannot be sent one; returns its path."""
        name, key = f"{secrets.token_hex(8)},spec", secrets.token_hex(16)
        spec = f"{key}\n{key} {nonce}\n".encode() + body
        await self.put(name, spec)
        return f"{self.place.base}/{name}"

    async def put(self, name: str, data: bytes) -> None:
        """Write a file of ours; SandboxError if there is no room for it."""
        is_long = len(data) > _SHORT
        how = "whole" if is_long else "part"
        try:
            await self.order("put", name, len(data), how, payload=data, ends=is_long)
        except OrderError as error:
            raise SandboxError("there is no room left in the sandbox") from error

    async def _ask(
        self, shell: Exec, body: bytes, payload: bytes, listener: Collector, *, ends: bool
    ) -> Ending | None:
        async def feed() -> None:
            await listener.started
            await shell.write(payload)
            await shell.close_input()

        feeding = asyncio.ensure_future(feed()) if ends else None
        is_clean = False
        try:
            request_ = body if ends else body + payload
            ending = await self.unless_lost(shell.ask(request_, listener))
            is_clean = not ends and ending is not None and ending.status == 0
            return ending
        finally:
            if feeding is not None:
                await cancelled(feeding)
            self.give_back(shell, is_clean=is_clean)

    async def _call_off(self, asking: "asyncio.Future[Ending | None]", listener: Collector) -> None:
        await asyncio.wait([asking, listener.started], return_when=asyncio.FIRST_COMPLETED)
        while not asking.done() and not self.lost:
            with contextlib.suppress(SandboxError):
                await self.end_below(*listener.started.result())
            await asyncio.wait([asking], timeout=1.0)
        await asyncio.wait([asking])

    # --- The watcher -------------------------------------------------------------------------

    async def end_below(self, root: int, main: int) -> int:
        """End everything below a shell of ours; returns how many live even so."""
        return await self._watcher.call("end", root, main)

    async def signal(self, root: int, main: int, number: int, *, depth: int) -> None:
        """Send a signal to the command `depth` below a shell of ours."""
        await self._watcher.call("signal", root, main, number, depth)

    async def sweep(self) -> int:
        """End everything that has lost the shell above it; returns how many live even so."""
        async with self._sweeping, contextlib.AsyncExitStack() as stack:
            # A job that is being born looks like one of those.
            for _ in range(_BIRTHS):
                await stack.enter_async_context(self._births)
            return await self._watcher.call("sweep")

    def birth(self) -> asyncio.Semaphore:
        """To be held while a job is being started."""
        return self._births

    async def start_job(self, spec: str) -> str:
        """Start a shell that stays; returns what was said, if it was not started."""
        shell = Exec(self.place.job_launch(spec))
        self.adopt(shell)
        try:
            await self.unless_lost(shell.hear(secrets.token_hex(16), Collector(0)))
        finally:
            self.give_back(shell, is_clean=False)
        self.check()
        return shell.said

    def lose(self, why: str) -> None:
        """Nothing can be asked any more; everything that runs for us is ended."""
        if not self.lost:
            self.lost = why
            self._closing = asyncio.ensure_future(self._close())

    async def close(self) -> None:
        """`lose`, and wait until all is over."""
        self.lose("it was closed")
        if self._closing is not None:
            await finished(self._closing)

    async def _close(self) -> None:
        while self._waiters:
            self._wake()
        await self._watcher.close()
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


def _nothing() -> None:
    """Nobody needs to know."""


def _output_of(ending: Ending | None, listener: Collector, verb: str, said: str) -> bytes:
    if ending is None or ending.kind != "done" or ending.status > _LARGEST_ERRNO:
        why = "there is no room for another process" if ending is not None else said
        raise SandboxError(f"the sandbox did not carry out `{verb}`" + (f": {why}" if why else ""))
    if ending.status:
        raise OrderError(ending.status, os.strerror(ending.status))
    return bytes(listener.output)
