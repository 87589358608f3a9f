"""A command in the foreground of a sandbox without Python.

Its streams are those of a shell of ours; its time is kept here, its end is made there.
"""

import asyncio
import dataclasses
import secrets
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Protocol

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.results import ExecutionResult, Reason
from kakoi.runner.commands import MIB, Command, Stream, TerminalSize
from kakoi.runner.posix_exec import Exec
from kakoi.runner.posix_output import KeptOutput
from kakoi.runner.posix_shells import OrderError, Shells
from kakoi.runner.posix_words import Ending, Kept, parse_directory, result_of, run_request
from kakoi.runner.unread import Unread
from kakoi.waiting import cancel, over

_UNREAD = MIB
_TRIES = 3
_SECOND_TRY_S = 2.0
_OVERDUE_S = 15.0
_SIGNAL_TRIES, _SIGNAL_PAUSE_S = 50, 0.02
_LARGEST_SIGNAL = 64
# A command costs four processes in the sandbox, and from here on only three.
_MANY = 16
_FEW = 2


class Memory(Protocol):
    """Who remembers commands."""

    def add(self, running: "PosixRunning") -> None: ...
    def tidy(self) -> None:
        """One of them is over."""
        ...


class PosixRunning:
    """A command in the foreground; see `Running`. It is remembered from its start on."""

    def __init__(self, shells: Shells, command: Command, memory: Memory, *, live: bool) -> None:
        self._shells = shells
        self._command = command
        self._live = live
        self._memory = memory
        self._loop = asyncio.get_running_loop()
        self.streams = {name: KeptOutput(shells, command, name) for name in _STREAMS}
        self._unread = Unread(self._loop.time)
        self._changed = asyncio.Event()
        self._shell: Exec | None = None
        self._said = ""
        self._is_loud = True
        self._kept: Kept | None = None
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self._work: asyncio.Future[ExecutionResult] | None = None
        self._feeding: asyncio.Future[None] | None = None
        self._enforcing: asyncio.Future[None] | None = None
        self._writing = asyncio.Lock()
        self._timers: list[asyncio.TimerHandle] = []
        self._why: Reason | None = None
        self._began = self._last_output = self._loop.time()

    @property
    def id(self) -> str:
        """The name of the command."""
        return self._command.id

    @property
    def is_over(self) -> bool:
        """Is there a result?"""
        return self._work is not None and self._work.done()

    async def __aenter__(self) -> "PosixRunning":
        self._shells.check()
        self._memory.add(self)
        self._work = asyncio.ensure_future(self._run())
        self._work.add_done_callback(self._on_over)
        return self

    def _on_over(self, work: "asyncio.Future[ExecutionResult]") -> None:
        if not work.cancelled():
            work.exception()  # Seen, even if nobody asks for the result.
        self._memory.tidy()

    async def __aexit__(self, *error: object) -> None:
        if self._work is not None and not self._work.done():
            self._drain()
            self.end(Reason.CANCELLED)
            await over(self._work)

    async def result(self) -> ExecutionResult:
        """What came of it."""
        self._drain()
        if self._work is None:
            raise ConfigurationError("a command is opened with `async with`")
        return await asyncio.shield(self._work)

    # --- What it writes ----------------------------------------------------------------------

    async def on_data(self, stream: Stream, data: bytes) -> None:
        """More of its output."""
        self._last_output = self._loop.time()
        await self.streams[stream].take(data)
        if self._live:
            self._unread.put(stream, data)
            self._changed.set()
            while self._is_held():
                self._changed.clear()
                await self._changed.wait()

    def _is_held(self) -> bool:
        """Is there so much that nobody has read that it has to wait?"""
        return self._live and self._unread.size > _UNREAD

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """What it writes, as it writes it."""
        while True:
            while self._unread:
                part = self._unread.take()
                self._changed.set()
                yield part
            if self._answered.done():
                return
            self._changed.clear()
            await self._changed.wait()

    def _drain(self) -> None:
        """Nobody reads: let it write."""
        self._live = False
        self._unread.clear()
        self._changed.set()

    # --- What it reads, and what it is told --------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Give it input; waits while it does not read. A command that is over takes none."""
        async with self._writing:
            await self._until_fed()
            if self._shell is not None and not self._answered.done():
                await _no_longer_than(self._shell.write(data), self._answered)

    async def close_stdin(self) -> None:
        """Its input ends here (on a terminal: Ctrl-D)."""
        async with self._writing:
            await self._until_fed()
            if self._shell is not None and not self._answered.done():
                await _no_longer_than(self._shell.close_input(), self._answered)

    async def _until_fed(self) -> None:
        await _first(self._started, self._answered)
        if self._feeding is not None:
            await _first(self._feeding, self._answered)

    async def _feed(self, shell: Exec) -> None:
        await shell.write(self._command.stdin or b"")
        if not self._command.stdin_open:
            await shell.close_input()

    async def resize(self, size: TerminalSize) -> None:
        """Tell its terminal how big it is now."""
        await _first(self._started, self._answered)
        if self._kept is not None and not self._answered.done():
            await self._shells.order("resize", self._kept.main, size.rows, size.columns)

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        if not 0 < number <= _LARGEST_SIGNAL:
            raise ConfigurationError(f"there is no signal {number}")
        await _first(self._started, self._answered)
        depth = 2 if self._is_loud and self._shells.place.init else 1
        for _ in range(_SIGNAL_TRIES):
            if self._kept is None or self._answered.done():
                return
            if await self._shells.watcher.signal(self._kept, number, depth=depth):
                return
            await asyncio.sleep(_SIGNAL_PAUSE_S)  # It is just being started.

    # --- Its time ----------------------------------------------------------------------------

    def on_started(self, kept: Kept) -> None:
        """It runs below these from now on."""
        if self._kept is not None:
            return
        self._kept = kept
        self._began = self._last_output = self._loop.time()
        self._started.set_result(None)
        command = self._command
        if command.timeout_s is not None:
            timer = self._loop.call_later(command.timeout_s, self.end, Reason.TIMED_OUT)
            self._timers.append(timer)
        if command.idle_timeout_s is not None:
            self._timers.append(self._loop.call_later(command.idle_timeout_s, self._check_idle))
        has_first_words = command.stdin is not None or not command.stdin_open
        if self._shell is not None and self._takes_input and has_first_words:
            self._feeding = asyncio.ensure_future(self._feed(self._shell))

    @property
    def _takes_input(self) -> bool:
        command = self._command
        return command.terminal is not None or command.stdin is not None or command.stdin_open

    def _check_idle(self) -> None:
        limit_s = self._command.idle_timeout_s or 0
        # Who is not read cannot speak.
        is_held = self._is_held()
        left_s = limit_s if is_held else self._last_output + limit_s - self._loop.time()
        if left_s <= 0:
            self.end(Reason.IDLE_TIMEOUT)
        else:
            self._timers.append(self._loop.call_later(left_s, self._check_idle))

    def end(self, why: Reason) -> None:
        """Have everything of it killed; the result comes when that is done."""
        if self._why is None and not self._answered.done():
            self._why = why
            self._enforcing = asyncio.ensure_future(self._enforce())

    async def _enforce(self) -> None:
        await _first(self._started, self._answered)
        try:
            for _ in range(_TRIES):
                if self._answered.done() or self._kept is None:
                    return
                await self._shells.watcher.end_below(self._kept)
                await asyncio.wait([self._answered], timeout=_SECOND_TRY_S)
            while not self._answered.done():
                await asyncio.wait([self._answered], timeout=_OVERDUE_S)
                if not self._answered.done() and not self._is_held():
                    self._shells.lose("a command did not end in time")
                    return
        except SandboxError:
            return  # All is being ended, and not only this.

    # --- From its beginning to its end -------------------------------------------------------

    async def _run(self) -> ExecutionResult:
        try:
            async with self._shells.turn():
                ending = await (
                    self._in_a_shell() if self._command.terminal is None else self._on_a_terminal()
                )
            duration_ms = round((self._loop.time() - self._began) * 1000)
            for kept in self.streams.values():
                await kept.finish()
            return await self._with_room(await self._judge(ending, duration_ms))
        except SandboxError as error:
            duration_ms = round((self._loop.time() - self._began) * 1000)
            return self._result(Ending("lost", 125), duration_ms, str(error))
        finally:
            self._stop_waiting()
            for timer in self._timers:
                timer.cancel()
            if self._enforcing is not None:
                await over(self._enforcing)

    async def _in_a_shell(self) -> Ending | None:
        """Ask an idle shell, or if that went away unheard of, another: an id is only run once."""
        source = "open" if self._takes_input else "none"
        ending = None
        for _ in range(_TRIES):
            shell = await self._shells.borrow()
            if self._why is not None:
                self._shells.give_back(shell, is_clean=shell.is_used)
                return None
            was_used = shell.is_used
            self._is_loud = self._shells.place.loud != "" and self._shells.busy_count < _MANY
            how = "loud" if self._is_loud else "quiet"
            body = run_request(self._command, "run", source, how)
            ending = await self._hear(shell, shell.ask(body, self))
            if ending is not None or self._kept is not None or not was_used:
                break
        return ending

    async def _on_a_terminal(self) -> Ending | None:
        """A shell of its own, which finds the request in a file: its input is the command's."""
        nonce = secrets.token_hex(16)
        body = run_request(self._command, "run", "open", "loud")
        spec = await self._shells.put_spec(nonce, body)
        launch = self._shells.place.shell_launch(spec, terminal=True)
        shell = self._shells.adopt(Exec(launch, terminal=True))
        return await self._hear(shell, shell.hear(nonce, self))

    async def _hear(
        self, shell: Exec, answer: Coroutine[None, None, Ending | None]
    ) -> Ending | None:
        self._shell = shell
        ending = None
        try:
            ending = await self._shells.unless_lost(answer)
            return ending
        finally:
            self._said = shell.said
            if ending is not None or self._kept is not None:
                self._stop_waiting()
            if self._feeding is not None:
                await cancel(self._feeding)
            self._shell = None
            async with self._writing:  # Whoever writes has noticed by now.
                is_clean = ending is not None and self._why is None and not self._takes_input
                self._shells.give_back(shell, is_clean=is_clean)

    def _stop_waiting(self) -> None:
        if not self._answered.done():
            self._answered.set_result(None)
        self._changed.set()

    async def _judge(self, ending: Ending | None, duration_ms: int) -> ExecutionResult:
        """Who ended it: it itself, we, or somebody who killed a shell of ours."""
        error = ""
        if ending is None and self._kept is not None:
            # Not even the shell may be dead: what carried its words may be.
            survivors = await self._shells.watcher.end_below(self._kept)
            ending = Ending("lost", 125, survivors=survivors + await self._shells.sweep())
        elif ending is None:
            await self._shells.watcher.ping()
            ending, duration_ms, error = Ending("no-shell", 126), 0, self._said
        self._shells.check()
        if ending.kind == "taken":
            raise ConfigurationError(
                f"a command with the id {self.id!r} was run before, and its result is forgotten",
                hint="give each command an id of its own, or none",
            )
        if self._why is not None and (self._kept is not None or ending.kind == "no-shell"):
            ending = dataclasses.replace(ending, kind=self._why.value)
        return self._result(ending, duration_ms, error)

    async def _with_room(self, result: ExecutionResult) -> ExecutionResult:
        """Of a command that has failed, whether the disk was full."""
        if result.ok or result.reason not in (Reason.EXITED, Reason.SIGNALLED):
            return result
        # One more shell for each would leave too few to tell how a command ended.
        if self._shells.busy_count > _FEW:
            return result
        try:
            said = await self._shells.order("room", lines=[self._command.cwd or ""])
        except (SandboxError, OrderError):
            return result
        return dataclasses.replace(result, disk_full=parse_directory(said) or "")

    def _result(self, ending: Ending, duration_ms: int, error: str) -> ExecutionResult:
        captures = [kept.capture for kept in self.streams.values()]
        return result_of(ending, self.id, duration_ms, *captures, error=error)


_STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


async def _first(*futures: "asyncio.Future[None]") -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _no_longer_than(work: Awaitable[None], end: "asyncio.Future[None]") -> None:
    """Do it, but give up when `end` has come."""
    working = asyncio.ensure_future(work)
    try:
        await _first(working, end)
    finally:
        await cancel(working)
