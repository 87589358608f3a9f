"""A command in the foreground of a sandbox without Python.

Its streams are those of a shell of ours; its time is kept here, its end is made there.
"""

import asyncio
import contextlib
import dataclasses
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.results import Capture, ExecutionResult, Reason
from kakoi.runner.commands import MIB, Command, OutputPart, Stream, TerminalSize
from kakoi.runner.posix_answers import result_of, title
from kakoi.runner.posix_exec import Ending, Exec, cancelled, request
from kakoi.runner.posix_shells import OrderError, Shells, finished

_UNREAD = MIB
_TRIES = 3
_SECOND_TRY_S = 2.0
_OVERDUE_S = 15.0
# A command costs four processes in the sandbox, and from here on only three.
_MANY = 32


def run_request(command: Command, verb: str, *, source: str, is_loud: bool) -> bytes:
    """What posix.sh needs to know; `source`: `none`, `open`, or the name of a file of ours."""
    words = command.command
    size = command.terminal
    env = [f"{name}={value}" for name, value in command.env.items()]
    argv = [words] if isinstance(words, str) else list(words)
    return request(
        verb,
        command.id,
        "text" if isinstance(words, str) else "argv",
        source,
        "yes" if command.report_cwd else "no",
        *((0, 0) if size is None else (size.rows, size.columns)),
        "loud" if is_loud else "quiet",
        command.spill_bytes,
        round((command.timeout_s or 0) * 100) or int(command.timeout_s is not None),
        round((command.idle_timeout_s or 0) * 100) or int(command.idle_timeout_s is not None),
        len(argv),
        len(env),
        lines=[command.cwd or "", title(command), *env, *argv],
    )


class Spill:
    """Output beyond the kept head, on its way back into the sandbox, where it can be read."""

    def __init__(self, shells: Shells, name: str, limit: int) -> None:
        self._shells = shells
        self._name = name
        self._room = limit
        self._shell: Exec | None = None
        self._asking: asyncio.Future[Ending | None] | None = None
        self._started = asyncio.Event()

    def on_started(self, root: int, main: int) -> None:
        self._started.set()

    async def on_data(self, stream: Stream, data: bytes) -> None:
        """It has nothing to say."""

    async def write(self, data: bytes) -> None:
        """Take more; what is beyond the limit is dropped."""
        data = data[: self._room]
        self._room -= len(data)
        if not data:
            return
        if self._shell is None:
            self._shell = await self._shells.borrow()
            body = request("put", self._name, "any", "whole")
            self._asking = asyncio.ensure_future(
                self._shells.unless_lost(self._shell.ask(body, self))
            )
            started = asyncio.ensure_future(self._started.wait())
            await asyncio.wait([self._asking, started], return_when=asyncio.FIRST_COMPLETED)
            await cancelled(started)
        if self._asking is not None:
            await _unless_done(self._shell.write(data), self._asking)

    async def finish(self) -> None:
        """Returns when all of it is there."""
        if self._shell is not None and self._asking is not None:
            await self._shell.close_input()
            await asyncio.wait([self._asking])
            self._shells.give_back(self._shell, is_clean=False)


async def _unless_done(work: Awaitable[None], end: "asyncio.Future[object]") -> None:
    """Do it, but no longer than until `end`."""
    working = asyncio.ensure_future(work)
    try:
        await asyncio.wait([working, end], return_when=asyncio.FIRST_COMPLETED)
    finally:
        await cancelled(working)


class PosixRunning:
    """A command in the foreground; see `Running`. `heads` is what was kept of its output."""

    def __init__(
        self,
        shells: Shells,
        command: Command,
        *,
        live: bool,
        on_over: Callable[[], None],
    ) -> None:
        self._shells = shells
        self._command = command
        self._live = live
        self._is_loud = True
        self._on_over = on_over
        self._loop = asyncio.get_running_loop()
        self._kept = {name: Capture(command.max_output_bytes) for name in ("stdout", "stderr")}
        self.heads: dict[str, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._spills: dict[str, Spill] = {}
        self._unread: deque[tuple[Stream, bytes]] = deque()
        self._changed = asyncio.Event()
        self._shell: Exec | None = None
        self._said = ""
        self._ids: tuple[int, int] | None = None
        self._started: asyncio.Future[None] = self._loop.create_future()
        self._work: asyncio.Future[ExecutionResult] | None = None
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self._feeding: asyncio.Future[None] | None = None
        self._writing = asyncio.Lock()
        self._timers: list[asyncio.TimerHandle] = []
        self._ending: asyncio.Future[None] | None = None
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

    def count(self, stream: Stream) -> int:
        """How much it has written so far."""
        return self._kept[stream].total_bytes

    @property
    def kept_bytes(self) -> int:
        """How much of it we keep, about."""
        return 2 * sum(
            min(kept.total_bytes, self._command.max_output_bytes) for kept in self._kept.values()
        )

    @property
    def spilled_bytes(self) -> int:
        """How much of it is kept in the sandbox, at most."""
        return sum(
            min(self._kept[stream].total_bytes, self._command.spill_bytes)
            for stream in self._spills
        )

    def head_part(self, stream: Stream, offset: int, limit: int) -> OutputPart | None:
        """A part of what it wrote, as long as that is kept here; None if it is in the sandbox."""
        if stream in self._spills:
            return None
        head = self.heads[stream]
        data = bytes(head[offset : offset + limit])
        ended = self.is_over and offset + len(data) >= len(head)
        return OutputPart(data, offset, offset + len(data), ended, self.count(stream) - len(head))

    async def __aenter__(self) -> "PosixRunning":
        self._shells.check()
        self._work = asyncio.ensure_future(self._run())
        self._work.add_done_callback(lambda _: self._on_over())
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._work is not None and not self._work.done():
            self._drain()
            self.end(Reason.CANCELLED)
            await finished(self._work)

    # --- What it writes ----------------------------------------------------------------------

    async def on_data(self, stream: Stream, data: bytes) -> None:
        """More of its output."""
        self._last_output = self._loop.time()
        kept, head = self._kept[stream], self.heads[stream]
        kept.feed(data)
        if not kept.truncated:
            head += data
        elif self._command.spill_bytes:
            await self._keep_more(stream, data)
        if self._live:
            self._unread.append((stream, data))
            self._changed.set()
            while self._live and self._unread_bytes() > _UNREAD:
                self._changed.clear()
                await self._changed.wait()

    async def _keep_more(self, stream: Stream, data: bytes) -> None:
        if stream not in self._spills:
            name = f"{self.id},{stream}"
            self._spills[stream] = Spill(self._shells, name, self._command.spill_bytes)
            data, self.heads[stream] = bytes(self.heads[stream]) + data, bytearray()
        try:
            await self._spills[stream].write(data)
        except SandboxError:
            return  # The sandbox is lost; so is what would have been kept in it.

    def _unread_bytes(self) -> int:
        return sum(len(data) for _, data in self._unread)

    async def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """What it writes, as it writes it."""
        while True:
            while self._unread:
                part = self._unread.popleft()
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

    # --- What it reads -----------------------------------------------------------------------

    async def write(self, data: bytes) -> None:
        """Give it input; waits while it does not read. A command that is over takes none."""
        await self._until_fed()
        async with self._writing:
            if self._shell is not None and not self._answered.done():
                await _unless_done(self._shell.write(data), self._answered)

    async def close_stdin(self) -> None:
        """Its input ends here (on a terminal: Ctrl-D)."""
        await self._until_fed()
        async with self._writing:
            if self._shell is not None and not self._answered.done():
                await _unless_done(self._shell.close_input(), self._answered)

    async def _until_fed(self) -> None:
        waiting = [self._started, self._answered]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if self._feeding is not None:
            await asyncio.wait([self._feeding, self._answered], return_when=asyncio.FIRST_COMPLETED)

    async def _feed(self, shell: Exec) -> None:
        await shell.write(self._command.stdin or b"")
        if not self._command.stdin_open:
            await shell.close_input()

    # --- What it is told ---------------------------------------------------------------------

    async def resize(self, size: TerminalSize) -> None:
        """Tell its terminal how big it is now."""
        if self._ids is not None and not self._answered.done():
            await self._shells.order("resize", self._ids[1], size.rows, size.columns)

    async def signal(self, number: int) -> None:
        """Send a signal to its process group."""
        if not 0 < number < 65:
            raise ConfigurationError(f"there is no signal {number}")
        await asyncio.wait([self._started, self._answered], return_when=asyncio.FIRST_COMPLETED)
        if self._ids is not None and not self._answered.done():
            depth = 2 if self._is_loud and self._shells.place.init else 1
            await self._shells.signal(*self._ids, number, depth=depth)

    # --- Its time ----------------------------------------------------------------------------

    def on_started(self, root: int, main: int) -> None:
        """It runs below these two from now on."""
        self._ids = root, main
        self._began = self._last_output = self._loop.time()
        if self._started.done():
            return
        self._started.set_result(None)
        command = self._command
        if command.timeout_s is not None:
            self._after(command.timeout_s, Reason.TIMED_OUT)
        if command.idle_timeout_s is not None:
            self._timers.append(self._loop.call_later(command.idle_timeout_s, self._check_idle))
        is_fed = command.stdin is not None or not command.stdin_open
        if self._shell is not None and is_fed and self._takes_input:
            self._feeding = asyncio.ensure_future(self._feed(self._shell))

    @property
    def _takes_input(self) -> bool:
        command = self._command
        return command.terminal is not None or command.stdin is not None or command.stdin_open

    def _after(self, seconds: float, why: Reason) -> None:
        self._timers.append(self._loop.call_later(seconds, self.end, why))

    def _check_idle(self) -> None:
        limit_s = self._command.idle_timeout_s or 0
        # Who is not read cannot speak.
        is_held = self._live and self._unread_bytes() > _UNREAD
        left_s = limit_s if is_held else self._last_output + limit_s - self._loop.time()
        if left_s <= 0:
            self.end(Reason.IDLE_TIMEOUT)
        else:
            self._timers.append(self._loop.call_later(left_s, self._check_idle))

    def end(self, why: Reason) -> None:
        """Have everything of it killed; the result comes when that is done."""
        if self._why is None and not self._answered.done():
            self._why = why
            self._ending = asyncio.ensure_future(self._enforce())

    async def _enforce(self) -> None:
        await asyncio.wait([self._started, self._answered], return_when=asyncio.FIRST_COMPLETED)
        try:
            for _ in range(_TRIES):
                if self._answered.done() or self._ids is None:
                    return
                await self._shells.end_below(*self._ids)
                await asyncio.wait([self._answered], timeout=_SECOND_TRY_S)
            await asyncio.wait([self._answered], timeout=_OVERDUE_S)
        except SandboxError:
            return  # All is being ended, and not only this.
        if not self._answered.done() and not (self._live and self._unread):
            self._shells.lose("a command did not end in time")

    # --- From its beginning to its end -------------------------------------------------------

    async def result(self) -> ExecutionResult:
        """What came of it."""
        self._drain()
        if self._work is None:
            raise ConfigurationError("a command is opened with `async with`")
        return await asyncio.shield(self._work)

    async def _run(self) -> ExecutionResult:
        try:
            async with self._shells.turn():
                if self._command.terminal is not None:
                    ending = await self._on_a_terminal()
                else:
                    ending = await self._in_a_shell()
            duration_ms = round((self._loop.time() - self._began) * 1000)
            await self._finish_spills()
            return await self._judge(ending, duration_ms)
        except SandboxError as error:
            return self._lost(str(error))
        finally:
            for timer in self._timers:
                timer.cancel()
            self._over()

    def _over(self) -> None:
        if not self._answered.done():
            self._answered.set_result(None)
        self._changed.set()

    async def _in_a_shell(self) -> Ending | None:
        """Ask an idle shell. If it went away unheard of, another one: an id is only run once."""
        source = "open" if self._takes_input else "none"
        for _ in range(_TRIES):
            shell = await self._shells.borrow()
            was_used = shell.is_used
            if self._why is not None:
                self._shells.give_back(shell, is_clean=True)
                return None
            self._is_loud = self._shells.busy_count < _MANY
            body = run_request(self._command, "run", source=source, is_loud=self._is_loud)
            ending = await self._ask(shell, body)
            if ending is not None or self._ids is not None or not was_used:
                break
        return ending

    async def _ask(self, shell: Exec, body: bytes) -> Ending | None:
        self._shell = shell
        ending = None
        try:
            ending = await self._shells.unless_lost(shell.ask(body, self))
            return ending
        finally:
            self._said = shell.said
            await self._stop_feeding(is_over=ending is not None or self._ids is not None)
            is_clean = ending is not None and self._why is None and not self._takes_input
            self._shells.give_back(shell, is_clean=is_clean)

    async def _on_a_terminal(self) -> Ending | None:
        """A shell of its own, which finds the request in a file: its input is the command's."""
        nonce = secrets.token_hex(16)
        body = run_request(self._command, "run", source="open", is_loud=True)
        spec = await self._shells.put_spec(nonce, body)
        launch = self._shells.place.shell_launch(spec, terminal=True)
        self._shell = shell = Exec(launch, terminal=True)
        self._shells.adopt(shell)
        try:
            return await self._shells.unless_lost(shell.hear(nonce, self))
        finally:
            self._said = shell.said
            await self._stop_feeding(is_over=True)
            self._shells.give_back(shell, is_clean=False)

    async def _stop_feeding(self, *, is_over: bool) -> None:
        if is_over:
            self._over()
        if self._feeding is not None:
            await cancelled(self._feeding)
        async with self._writing:
            self._shell = None

    async def _finish_spills(self) -> None:
        for stream, spill in self._spills.items():
            await spill.finish()
            lost = self._kept[stream].total_bytes - self._command.spill_bytes
            if lost > 0:
                count = b"%d\n" % lost
                name = f"{self.id},{stream},lost"
                with contextlib.suppress(OrderError):
                    await self._shells.order("put", name, len(count), "part", payload=count)

    async def _judge(self, ending: Ending | None, duration_ms: int) -> ExecutionResult:
        """Who ended it: it itself, we, or somebody who killed a shell of ours."""
        error = ""
        if ending is None and self._ids is not None:
            ending = Ending("lost", 125, survivors=await self._shells.sweep())
        elif ending is None:
            duration_ms = 0
            ending, error = Ending("no-process", 126), self._said
        self._shells.check()
        if ending.kind == "taken":
            raise ConfigurationError(
                f"a command with the id {self.id!r} was run before, and its result is forgotten",
                hint="give each command an id of its own, or none",
            )
        if self._why is not None and (self._ids is not None or self._said == ""):
            ending = dataclasses.replace(ending, kind=self._why.value)
        out, err = self._kept["stdout"], self._kept["stderr"]
        return result_of(ending, self.id, duration_ms, out, err, error=error)

    def _lost(self, why: str) -> ExecutionResult:
        duration_ms = round((self._loop.time() - self._began) * 1000)
        out, err = self._kept["stdout"], self._kept["stderr"]
        return result_of(Ending("lost", 125), self.id, duration_ms, out, err, error=why)
