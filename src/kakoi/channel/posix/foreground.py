"""A foreground command in a sandbox without Python.

Its streams are those of a resident shell. Timeouts are measured here; the sandbox ends the command.
"""

import asyncio
import contextlib
import dataclasses
import secrets
from collections.abc import AsyncIterator, Awaitable, Coroutine
from typing import Protocol

from kakoi._support.asyncio import cancel_and_wait, wait_done
from kakoi.channel.api import MIB, Command, OutputPart, Stream, TerminalSize
from kakoi.channel.output_buffer import OutputBuffer
from kakoi.channel.posix.protocol import (
    Ending,
    ProcessTree,
    parse_directory,
    result_of,
    run_request,
)
from kakoi.channel.posix.resident_shell import ResidentShell
from kakoi.channel.posix.shells import OrderError, Shells
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.results import Capture, ExecutionResult, Reason

_SAVED_AT_ONCE = MIB // 4


class StoredOutput:
    """One output stream: its head is kept here, the rest is stored in the sandbox."""

    def __init__(self, shells: Shells, command: Command, stream: Stream) -> None:
        self._shells = shells
        self._name = f"{command.id},{stream}"
        self._limit = command.spill_bytes
        self._head_limit = command.max_output_bytes
        self._unsaved = bytearray()
        self.head = bytearray()
        self.capture = Capture(command.max_output_bytes)
        self.stored = 0

    @property
    def is_spilled(self) -> bool:
        """Must it be read from the sandbox?"""
        return self.capture.truncated and self._limit > 0

    @property
    def size(self) -> int:
        """About how many bytes are kept here, for reading and as text in the result."""
        return len(self.head) + 2 * min(self.capture.total_bytes, self._head_limit)

    async def take(self, data: bytes) -> None:
        """Take more output."""
        self.capture.feed(data)
        if not self.capture.truncated:
            self.head += data
        elif self._limit:
            self._unsaved += self.head + data
            self.head.clear()
            if len(self._unsaved) >= _SAVED_AT_ONCE:
                await self._save()

    async def finish(self) -> None:
        """The stream has ended: store the rest in the sandbox."""
        await self._save()
        lost = self.capture.total_bytes - self.stored
        if self.is_spilled and lost > 0 and not self._shells.lost:
            with contextlib.suppress(SandboxError):  # The disk is too full even for a number.
                await self._shells.put(f"{self._name},lost", b"%d\n" % lost)

    async def _save(self) -> None:
        data = bytes(self._unsaved[: self._limit - self.stored])
        self._unsaved.clear()
        if data:
            try:
                await self._shells.order("append", self._name, len(data), payload=data)
                self.stored += len(data)
            except (OrderError, SandboxError):
                self._limit = self.stored  # The disk is full, or the sandbox was lost.

    def part(self, offset: int, limit: int, *, is_over: bool) -> OutputPart:
        """Return a part of the head."""
        data = bytes(self.head[offset : offset + limit])
        ended = is_over and offset + len(data) >= len(self.head)
        lost = self.capture.total_bytes - len(self.head)
        return OutputPart(data, offset, offset + len(data), ended, lost)


_UNREAD = MIB
_TRIES = 3
_SECOND_TRY_S = 2.0
_OVERDUE_S = 15.0
_SIGNAL_TRIES, _SIGNAL_PAUSE_S = 50, 0.02
_LARGEST_SIGNAL = 64
# A command costs four processes in the sandbox, and from here on only three.
_MANY = 16
_FEW = 2


class History(Protocol):
    """Remembers commands; see `RunHistory`."""

    def add(self, running: "PosixCommand") -> None: ...
    def tidy(self) -> None:
        """A command has ended."""
        ...


class PosixCommand:
    """A foreground command; see `RunningCommand`. It is remembered from its start."""

    def __init__(self, shells: Shells, command: Command, history: History, *, live: bool) -> None:
        self._shells = shells
        self._command = command
        self._live = live
        self._history = history
        self._loop = asyncio.get_running_loop()
        self.streams = {name: StoredOutput(shells, command, name) for name in _STREAMS}
        self._output_buffer = OutputBuffer(self._loop.time)
        self._changed = asyncio.Event()
        self._shell: ResidentShell | None = None
        self._shell_errors = ""
        self._is_loud = True
        self._kept: ProcessTree | None = None
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
        """The id of the command."""
        return self._command.id

    @property
    def is_over(self) -> bool:
        """Is there a result?"""
        return self._work is not None and self._work.done()

    async def __aenter__(self) -> "PosixCommand":
        self._shells.check()
        self._history.add(self)
        self._work = asyncio.ensure_future(self._run())
        self._work.add_done_callback(self._on_over)
        return self

    def _on_over(self, work: "asyncio.Future[ExecutionResult]") -> None:
        if not work.cancelled():
            work.exception()  # Marked as retrieved, even if nobody asks for the result.
        self._history.tidy()

    async def __aexit__(self, *error: object) -> None:
        if self._work is not None and not self._work.done():
            self._drain()
            self.end(Reason.CANCELLED)
            await wait_done(self._work)

    async def result(self) -> ExecutionResult:
        """Return the result."""
        self._drain()
        if self._work is None:
            raise ConfigurationError("a command is opened with `async with`")
        return await asyncio.shield(self._work)

    # --- What it writes ----------------------------------------------------------------------

    async def on_data(self, stream: Stream, data: bytes) -> None:
        """Take more of its output."""
        self._last_output = self._loop.time()
        await self.streams[stream].take(data)
        if self._live:
            self._output_buffer.put(stream, data)
            self._changed.set()
            while self._is_held():
                self._changed.clear()
                await self._changed.wait()

    def _is_held(self) -> bool:
        """Is there so much unread output that the command has to wait?"""
        return self._live and self._output_buffer.size > _UNREAD

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Yield output as it is written."""
        while True:
            while self._output_buffer:
                part = self._output_buffer.take()
                self._changed.set()
                yield part
            if self._answered.done():
                return
            self._changed.clear()
            await self._changed.wait()

    def _drain(self) -> None:
        """Nobody reads any more: let the command write."""
        self._live = False
        self._output_buffer.clear()
        self._changed.set()

    # --- Input and signals -------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Send input; waits while the command does not read. Ignored once it has ended."""
        async with self._writing:
            await self._until_fed()
            if self._shell is not None and not self._answered.done():
                await _no_longer_than(self._shell.write(data), self._answered)

    async def close_stdin(self) -> None:
        """End the input (on a terminal: Ctrl-D)."""
        async with self._writing:
            await self._until_fed()
            if self._shell is not None and not self._answered.done():
                await _no_longer_than(self._shell.close_input(), self._answered)

    async def _until_fed(self) -> None:
        await _first(self._started, self._answered)
        if self._feeding is not None:
            await _first(self._feeding, self._answered)

    async def _feed(self, shell: ResidentShell) -> None:
        await shell.write(self._command.stdin or b"")
        if not self._command.stdin_open:
            await shell.close_input()

    async def resize(self, size: TerminalSize) -> None:
        """Set the size of its terminal."""
        await _first(self._started, self._answered)
        if self._kept is not None and not self._answered.done():
            await self._shells.order("resize", self._kept.main, size.rows, size.columns)

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        if not 0 < number <= _LARGEST_SIGNAL:
            raise ConfigurationError(f"unknown signal {number}")
        await _first(self._started, self._answered)
        depth = 2 if self._is_loud and self._shells.config.init else 1
        for _ in range(_SIGNAL_TRIES):
            if self._kept is None or self._answered.done():
                return
            if await self._shells.watcher.signal(self._kept, number, depth=depth):
                return
            await asyncio.sleep(_SIGNAL_PAUSE_S)  # It is just being started.

    # --- Its time ----------------------------------------------------------------------------

    def on_started(self, kept: ProcessTree) -> None:
        """The command has started below these processes."""
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
        # A command whose output is not read is not idle.
        is_held = self._is_held()
        left_s = limit_s if is_held else self._last_output + limit_s - self._loop.time()
        if left_s <= 0:
            self.end(Reason.IDLE_TIMEOUT)
        else:
            self._timers.append(self._loop.call_later(left_s, self._check_idle))

    def end(self, why: Reason) -> None:
        """Kill everything it started; the result comes when that is done."""
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
            return  # The whole sandbox is being ended.

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
                await wait_done(self._enforcing)

    async def _in_a_shell(self) -> Ending | None:
        """Use an idle shell, or another if that one was gone: an id is run only once."""
        source = "open" if self._takes_input else "none"
        ending = None
        for _ in range(_TRIES):
            shell = await self._shells.borrow()
            if self._why is not None:
                self._shells.give_back(shell, is_clean=shell.is_used)
                return None
            was_used = shell.is_used
            self._is_loud = self._shells.config.loud != "" and self._shells.busy_count < _MANY
            how = "loud" if self._is_loud else "quiet"
            body = run_request(self._command, "run", source, how)
            ending = await self._hear(shell, shell.ask(body, self))
            if ending is not None or self._kept is not None or not was_used:
                break
        return ending

    async def _on_a_terminal(self) -> Ending | None:
        """Use a new shell that reads the request from a file: its stdin is the command's."""
        nonce = secrets.token_hex(16)
        body = run_request(self._command, "run", "open", "loud")
        spec = await self._shells.put_spec(nonce, body)
        launch = self._shells.config.shell_launch(spec, terminal=True)
        shell = self._shells.adopt(ResidentShell(launch, terminal=True))
        return await self._hear(shell, shell.hear(nonce, self))

    async def _hear(
        self, shell: ResidentShell, answer: Coroutine[None, None, Ending | None]
    ) -> Ending | None:
        self._shell = shell
        ending = None
        try:
            ending = await self._shells.unless_lost(answer)
            return ending
        finally:
            self._shell_errors = shell.errors
            if ending is not None or self._kept is not None:
                self._stop_waiting()
            if self._feeding is not None:
                await cancel_and_wait(self._feeding)
            self._shell = None
            async with self._writing:  # Pending writes have noticed the end by now.
                is_clean = ending is not None and self._why is None and not self._takes_input
                self._shells.give_back(shell, is_clean=is_clean)

    def _stop_waiting(self) -> None:
        if not self._answered.done():
            self._answered.set_result(None)
        self._changed.set()

    async def _judge(self, ending: Ending | None, duration_ms: int) -> ExecutionResult:
        """Decide who ended it: the command itself, we, or what killed a resident shell."""
        error = ""
        if ending is None and self._kept is not None:
            # Not even the shell may be dead: what carried its words may be.
            survivors = await self._shells.watcher.end_below(self._kept)
            ending = Ending("lost", 125, survivors=survivors + await self._shells.sweep())
        elif ending is None:
            await self._shells.watcher.ping()
            ending, duration_ms, error = Ending("no-shell", 126), 0, self._shell_errors
        self._shells.check()
        if ending.kind == "taken":
            raise ConfigurationError(
                f"a command with the id {self.id!r} was run before, and its result is no longer "
                "available",
                hint="give each command its own id, or none",
            )
        if self._why is not None and (self._kept is not None or ending.kind == "no-shell"):
            ending = dataclasses.replace(ending, kind=self._why.value)
        return self._result(ending, duration_ms, error)

    async def _with_room(self, result: ExecutionResult) -> ExecutionResult:
        """For a failed command, add whether the disk was full."""
        if result.ok or result.reason not in (Reason.EXITED, Reason.SIGNALLED):
            return result
        # One more shell for each would leave too few to tell how a command ended.
        if self._shells.busy_count > _FEW:
            return result
        try:
            reply = await self._shells.order("room", lines=[self._command.cwd or ""])
        except (SandboxError, OrderError):
            return result
        return dataclasses.replace(result, disk_full=parse_directory(reply) or "")

    def _result(self, ending: Ending, duration_ms: int, error: str) -> ExecutionResult:
        captures = [kept.capture for kept in self.streams.values()]
        return result_of(ending, self.id, duration_ms, *captures, error=error)


_STREAMS: tuple[Stream, ...] = ("stdout", "stderr")


async def _first(*futures: "asyncio.Future[None]") -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


async def _no_longer_than(work: Awaitable[None], end: "asyncio.Future[None]") -> None:
    """Await `work`, but give up when `end` is done."""
    working = asyncio.ensure_future(work)
    try:
        await _first(working, end)
    finally:
        await cancel_and_wait(working)
