"""PosixChannel: commands, jobs and files of a sandbox that has a shell but no Python.

The same contract as RunnerChannel, but slower. Instead of one runner there are several resident
shells (shells.py), each under an init of its own; a job has a shell to itself, which stays when the
client goes. The state of a job is kept in files of a private folder in the sandbox (jobs.sh).
"""

import asyncio
import contextlib
import errno
import secrets
from collections import OrderedDict
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from kakoi._support.asyncio import cancel_and_wait
from kakoi._support.late import pattern
from kakoi.channel.api import (
    MAX_FILE_BYTES,
    MIB,
    Command,
    FileEvent,
    FileInfo,
    JobInfo,
    OutputPart,
    Stream,
    TerminalSize,
    check_count,
    check_mode,
    check_path,
)
from kakoi.channel.posix.foreground import PosixCommand
from kakoi.channel.posix.protocol import (
    BreachError,
    limit_words,
    parse_files,
    parse_jobs,
    parse_output,
    parse_probe,
    parse_stat,
    parse_state,
    request,
    run_request,
)
from kakoi.channel.posix.resident_shell import Launcher, ResidentShell, ShellConfig
from kakoi.channel.posix.shells import Collector, OrderError, Relay, Shells
from kakoi.errors import ConfigurationError, SandboxError, UnsupportedError
from kakoi.results import ExecutionResult

_MOST_RUNS = 1000
_MOST_BYTES = 8 * MIB
_MOST_STORED_BYTES = 256 * MIB
_PRUNE_AFTER = 100


class RunHistory:
    """The newest commands, with their results and output, bounded here and in the sandbox.

    A command that is forgotten here is still known by id in the sandbox: it is not run again.
    """

    def __init__(self, shells: Shells) -> None:
        self._shells = shells
        self._runs: OrderedDict[str, PosixCommand] = OrderedDict()
        self._chores: set[asyncio.Future[None]] = set()
        self._count = 0

    def find(self, name: str) -> PosixCommand | None:
        """Return the command of that id, if it is remembered."""
        return self._runs.get(name)

    def add(self, running: PosixCommand) -> None:
        """Remember a command that is starting."""
        self._runs[running.id] = running

    def tidy(self) -> None:
        """A command has ended: forget the oldest, here and there, if there are too many."""
        self._count += 1
        forgotten = self._shrink()
        is_time = self._count % _PRUNE_AFTER == 0
        if not self._shells.lost and (forgotten or is_time):
            chore = asyncio.ensure_future(self._clean(forgotten, prune=is_time))
            self._chores.add(chore)
            chore.add_done_callback(self._chores.discard)

    async def close(self) -> None:
        """Wait for pending clean-up."""
        while self._chores:
            await asyncio.wait(self._chores)

    async def _clean(self, names: list[str], *, prune: bool) -> None:
        with contextlib.suppress(SandboxError, OrderError):
            for name in names:
                await self._shells.order("drop", name)
            if prune:
                await self._shells.order("prune")

    def _shrink(self) -> list[str]:
        """Forget the oldest; returns those whose output in the sandbox must be removed as well."""
        over = [running for running in self._runs.values() if running.is_over]
        kept, stored = _sizes(over)
        forgotten = []
        for count, running in enumerate(over[:-1]):
            is_much = kept > _MOST_BYTES or len(over) - count > _MOST_RUNS
            if not is_much and stored <= _MOST_STORED_BYTES:
                break
            sizes = _sizes([running])
            kept, stored = kept - sizes[0], stored - sizes[1]
            if sizes[1]:
                forgotten.append(running.id)
            del self._runs[running.id]
        return forgotten


def _sizes(runs: list[PosixCommand]) -> tuple[int, int]:
    """Return about how many bytes of output are kept here, and how many in the sandbox."""
    streams = [stream for running in runs for stream in running.streams.values()]
    return sum(stream.size for stream in streams), sum(stream.stored for stream in streams)


_T = TypeVar("_T")
_OPEN_S = 60.0
_BIRTH_S = 30.0
_CHUNK = 64 * 1024
_ID = pattern(r"[A-Za-z0-9_.-]{1,64}")
_FIRST_INPUT = MIB
_LONGEST_WORDS = 2000
_LONGEST_ENTRY = 480
_LONGEST_LIST = 64 * MIB
_DEEP = 16
_LINK_ENTRY = pattern(rb"//a[0-9a-f]{3} ")
_PART_BYTES = MIB
_LARGEST_SIGNAL = 64
_SIGNAL_S = 1.0
_LONGEST_PART = 8 * MIB
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5


async def open_posix_channel(
    launch: Launcher, rlimits: Mapping[str, int] | None = None
) -> "PosixChannel":
    """Open a channel into the sandbox in which `launch` starts programs.

    `rlimits`: the limits of each process of a command, by the names in runner/rlimits.py.

    SandboxError: it has no usable shell or no writable folder, or it does not answer.
    """
    channel = secrets.token_hex(8)
    shell = ResidentShell(ShellConfig(launch, channel).shell_launch(kept=False))
    probe = Collector(_LONGEST_WORDS)
    try:
        async with asyncio.timeout(_OPEN_S):
            ending = await shell.ask(request("probe"), probe)
        if ending is None or ending.status:
            why = f": {shell.errors}" if shell.errors else ""
            raise SandboxError(f"no shell could be started in the sandbox{why}")
        found = parse_probe(bytes(probe.output))
        config = ShellConfig(launch, channel, *found, limits=limit_words(rlimits or {}))
        if not config.base:
            raise SandboxError("the sandbox has no writable folder", hint="give it a writable /tmp")
        return PosixChannel(Shells(config, shell))
    except BaseException as error:
        await shell.end(grace_s=0.5)
        if isinstance(error, TimeoutError):
            raise SandboxError(f"the sandbox has not responded for {_OPEN_S:.0f} s") from error
        raise


class PosixChannel:
    """The channel into a sandbox without Python; see `Channel`."""

    def __init__(self, shells: Shells) -> None:
        self._shells = shells
        self._history = RunHistory(shells)
        self._births: dict[str, asyncio.Future[str]] = {}

    @property
    def lost(self) -> bool:
        """Is the other end gone?"""
        return bool(self._shells.lost)

    @property
    def shell(self) -> str:
        """`bash` or `sh`; see `Channel.shell`."""
        return "bash" if self._shells.config.shell.endswith("/bash") else "sh"

    # --- In the foreground -------------------------------------------------------------------

    async def run(self, command: Command) -> ExecutionResult:
        """Run to the end; see `Channel.run`."""
        known = self._history.find(command.id)
        if known is not None:
            return await known.result()
        async with PosixCommand(self._shells, command, self._history, live=False) as running:
            return await running.result()

    def open(self, command: Command) -> PosixCommand:
        """Run with live output and input; see `Channel.open`. An id can be opened once."""
        self._check_unused(command)
        return PosixCommand(self._shells, command, self._history, live=True)

    def _check_unused(self, command: Command) -> None:
        if self._history.find(command.id) is not None:
            raise ConfigurationError(f"a command with the id {command.id!r} was run before")

    # --- Jobs --------------------------------------------------------------------------------

    async def start(self, command: Command) -> str:
        """Start a job; see `Channel.start`."""
        given = command.stdin or b""
        if len(given) > _FIRST_INPUT:
            raise ConfigurationError(
                f"stdin has {len(given)} bytes; a job can start with {_FIRST_INPUT} at most",
                hint="write a file for the job to read, or use write_stdin",
            )
        if command.terminal is not None:
            raise UnsupportedError(
                "a job cannot have a terminal in a sandbox without Python",
                hint="run it in the foreground, or use an image with python3",
            )
        if not self._shells.config.init:
            raise SandboxError(
                "the sandbox has no init process, which jobs need",
                hint="start the container with `--init`, or use an image with python3",
            )
        self._check_unused(command)
        if command.id not in self._births:
            birth = asyncio.ensure_future(self._start(command))
            self._births[command.id] = birth
            birth.add_done_callback(lambda _: self._forget_birth(command.id))
        return await asyncio.shield(self._births[command.id])

    def _forget_birth(self, job: str) -> None:
        birth = self._births.pop(job)
        if not birth.cancelled():
            birth.exception()  # Marked as retrieved, even if the caller has gone.

    async def _start(self, command: Command) -> str:
        if await self._is_known(command.id):
            return command.id
        source = "open" if command.stdin_open else "none"
        if command.stdin is not None:
            # With the order, not after it: a job that is requested twice must not read it twice.
            name = f"{secrets.token_hex(8)},stdin"
            await self._shells.put(name, command.stdin)
            source = f"open:{name}" if command.stdin_open else name
        how = "loud" if self._shells.config.loud else "quiet"
        body = run_request(command, "job", source, how)
        async with self._shells.birth():
            spec = await self._shells.put_spec("job", body)
            errors = await self._shells.start_job(spec)
            known = await self._poll(lambda: self._is_known(command.id), bool, _BIRTH_S)
        if not known:
            raise SandboxError(
                "the job was not started" + (f": {errors}" if errors else ""),
                hint="was its id used by another command?",
            )
        return command.id

    async def list_jobs(self) -> list[JobInfo]:
        """Return every remembered job, running or not."""
        reply = await self._shells.order("jobs", limit=_LONGEST_LIST)
        with self._trusting_nothing():
            return list(parse_jobs(reply))

    async def read_output(
        self, job: str, stream: Stream, *, offset: int = 0, limit: int = MIB, wait_s: float = 0
    ) -> OutputPart:
        """Return a part of a job's output; see `Channel.read_output`."""
        _check_range(offset, limit)
        limit = min(limit, _LONGEST_PART)

        async def look() -> OutputPart:
            known = self._history.find(job)
            if known is not None and not known.streams[stream].is_spilled:
                return known.streams[stream].part(offset, limit, is_over=known.is_over)
            return await self._read_stored(job, stream, offset, limit)

        return await self._poll(look, lambda part: bool(part.data) or part.ended, wait_s)

    async def _read_stored(self, job: str, stream: Stream, offset: int, limit: int) -> OutputPart:
        words = (job, stream, offset, limit)
        reply = await self._ask_about(job, "output", *words, limit=limit + _LONGEST_WORDS)
        with self._trusting_nothing():
            found = parse_output(reply, limit)
        known = self._history.find(job)
        is_over = found.is_over if known is None else known.is_over
        ended = is_over and offset + len(found.data) >= found.stored
        return OutputPart(found.data, offset, offset + len(found.data), ended, found.lost)

    async def write_stdin(self, job: str, data: bytes, *, close: bool = False) -> None:
        """Send input to a job; waits while it does not read. BrokenPipeError: it takes no input."""
        parts = [data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK)] or [b""]
        for part in parts:
            how = "close" if close and part is parts[-1] else "open"
            words = (job, how, len(part))
            await self._ask_about(job, "stdin", *words, payload=part, may_wait=True)

    async def stop_job(self, job: str) -> ExecutionResult:
        """End a job and everything it started."""
        await self._ask_about(job, "stop", job)
        result = await self.wait_job(job, wait_s=_OPEN_S)
        if result is None:
            raise SandboxError(f"the job {job!r} could not be stopped")
        return result

    async def wait_job(self, job: str, *, wait_s: float | None = None) -> ExecutionResult | None:
        """Return a job's result, or None if it is still running after `wait_s`."""

        async def look() -> ExecutionResult | None:
            reply = await self._ask_about(job, "state", job)
            with self._trusting_nothing():
                state = parse_state(job, reply)
            if state.is_lost:
                await self._shells.sweep()
            return state.result

        return await self._poll(look, lambda result: result is not None, wait_s)

    async def signal_job(self, job: str, number: int) -> None:
        """Send a signal to a job's process group; see `Channel.signal_job`."""
        if not 0 < number <= _LARGEST_SIGNAL:
            raise ConfigurationError(f"unknown signal {number}")
        config = self._shells.config
        depth = 2 if config.loud and config.init else 1

        async def look() -> bool:
            try:
                await self._ask_about(job, "signal", job, number, depth)
            except BlockingIOError:  # It is just being started.
                return False
            return True

        await self._poll(look, bool, _SIGNAL_S)

    async def resize_job(self, job: str, size: TerminalSize) -> None:
        """Raise UnsupportedError: jobs have no terminal here."""
        raise UnsupportedError(
            "a job cannot have a terminal in a sandbox without Python",
            hint="run it in the foreground, or use an image with python3",
        )

    async def _is_known(self, job: str) -> bool:
        try:
            await self._shells.order("state", job)
        except OrderError:
            return False
        return True

    async def _ask_about(self, job: str, verb: str, *words: object, **how: Any) -> bytes:
        """Send an order about a job; ConfigurationError if there is no such job."""
        try:
            if not _ID.fullmatch(job):
                raise OrderError(errno.ENOENT, "no such job")
            return await self._shells.order(verb, *words, **how)
        except OrderError as error:
            if error.errno != errno.ENOENT:
                raise OSError(error.errno, error.strerror) from error
            raise ConfigurationError(
                f"there is no job {job!r} in the sandbox",
                hint="list the jobs; a finished one is forgotten after a while",
            ) from error

    async def _poll(
        self,
        look: Callable[[], Awaitable[_T]],
        is_enough: Callable[[_T], bool],
        wait_s: float | None,
    ) -> _T:
        """Poll for at most `wait_s`, because the sandbox cannot notify us."""
        give_up = None if wait_s is None else self._now() + wait_s
        pause_s = _FIRST_PAUSE_S
        while True:
            found = await look()
            left_s = _LONGEST_PAUSE_S if give_up is None else give_up - self._now()
            if is_enough(found) or left_s <= 0:
                return found
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(pause_s * 1.5, _LONGEST_PAUSE_S)

    # --- Files -------------------------------------------------------------------------------

    async def read_file(self, path: str, *, offset: int = 0, limit: int = MAX_FILE_BYTES) -> bytes:
        """Return the bytes of a file; OSError with EFBIG if there are more than `limit`."""
        _check_range(offset, limit)
        # One byte more than wanted shows whether there is more.
        data = await self._file_order(path, "read_file", offset, limit + 1, limit=limit + 1)
        if len(data) > limit:
            raise OSError(errno.EFBIG, f"the file has more than {limit} bytes", path)
        return data

    async def stream_file(self, path: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file; see `Channel.stream_file`."""
        check_count("offset", offset)
        relay = Relay()
        order = self._file_order(path, "stream_file", offset, relay=relay, may_wait=True)
        work = asyncio.ensure_future(order)
        try:
            async with contextlib.aclosing(relay.parts(work)) as parts:
                async for part in parts:
                    yield part
            await work
        finally:
            relay.leave()
            await cancel_and_wait(work)

    async def write_file(
        self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int = 0o644
    ) -> None:
        """Create or replace a file in one step; see `Channel.write_file`."""
        check_mode(mode)
        words = (secrets.token_hex(6), f"{mode:o}")
        if isinstance(data, AsyncIterable):
            parts = _Parts(data)
            try:
                await self._file_order(
                    path, "write_file", *words, "parts", payload=parts.framed(), may_wait=True
                )
            except OSError as error:
                raise (parts.error or error) from None
            return
        if len(data) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"more than {MAX_FILE_BYTES} bytes", path)
        await self._file_order(path, "write_file", *words, len(data), payload=data)

    async def list_files(self, path: str, *, depth: int = 1, limit: int = 10_000) -> list[FileInfo]:
        """Return the files in a directory; see `Channel.list_files`."""
        check_count("depth", depth, least=1)
        check_count("limit", limit)
        most = min((limit + 1) * _LONGEST_ENTRY * min(depth, _DEEP), _LONGEST_LIST)
        reply = await self._file_order(path, "list_files", depth, most, limit=most)
        links = b""
        if _LINK_ENTRY.search(reply):
            links = await self._file_order(path, "list_links", depth, most, limit=most)
        if len(reply) < most:
            with self._trusting_nothing():
                found = parse_files(path, reply, links)
            if len(found) <= limit:
                return found
        raise OSError(errno.EOVERFLOW, f"more than {limit} files", path)

    async def stat_file(self, path: str) -> FileInfo:
        """Return what a path names; links are not followed."""
        reply = await self._file_order(path, "stat_file")
        with self._trusting_nothing():
            return parse_stat(path, reply)

    async def make_dir(self, path: str, *, mode: int = 0o755, parents: bool = True) -> bool:
        """Make a directory; see `Channel.make_dir`."""
        check_mode(mode)
        words = (f"{mode:o}", "yes" if parents else "no")
        return not await self._file_order(_trimmed(path), "make_dir", *words)

    async def move_file(self, source: str, destination: str) -> None:
        """Rename a file or directory; see `Channel.move_file`.

        Where something has to make room for it, there is a moment in which neither is there.
        """
        check_path(source, "source")
        check_path(destination, "destination")
        more = [_named(_trimmed(destination))]
        await self._file_order(_trimmed(source), "move_file", more_lines=more)

    async def remove_file(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file, or a directory; see `Channel.remove_file`.

        The `rm` of the sandbox does it: busybox's follows a link that is swapped in at the wrong
        moment, and fails where a path is longer than 4096 bytes.
        """
        check_path(path)
        if path.rstrip("/").rpartition("/")[2] in ("", ".", ".."):
            raise OSError(errno.EINVAL, "a directory cannot be removed by this name", path)
        how = "all" if recursive else "one"
        await self._file_order(_trimmed(path), "remove_file", how, may_wait=True)

    def watch_files(
        self, path: str, *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileEvent]]:
        """Raise UnsupportedError: no tool that every image has can watch files."""
        raise UnsupportedError(
            "files cannot be watched in a sandbox without Python",
            hint="use an image with python3, or compare two listings",
        )

    async def _file_order(
        self, path: str, verb: str, *words: object, more_lines: Sequence[str] = (), **how: Any
    ) -> bytes:
        check_path(path)
        try:
            lines = [_named(path), *more_lines]
            return await self._shells.order(verb, *words, lines=lines, **how)
        except OrderError as error:
            raise OSError(error.errno, error.strerror, path) from error

    # --- The end -----------------------------------------------------------------------------

    async def close(self) -> None:
        """Close the channel; returns when every foreground command has ended."""
        await self._shells.close()
        await self._history.close()
        while self._births:
            await asyncio.wait(self._births.values())

    @contextlib.contextmanager
    def _trusting_nothing(self) -> Iterator[None]:
        try:
            yield
        except BreachError as error:
            self._shells.lose(str(error))
            raise

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()


def _check_range(offset: int, limit: int) -> None:
    check_count("offset", offset)
    check_count("limit", limit)


def _named(path: str) -> str:
    """Return a path that no tool takes for an option."""
    return path if path.startswith("/") else f"./{path}"


def _trimmed(path: str) -> str:
    """Return a path without slashes at its end, which would follow a link."""
    return path.rstrip("/") or path[:1]


class _Parts:
    """The parts of a file, as start.sh takes them. `error`: why there are no more."""

    def __init__(self, data: AsyncIterable[bytes]) -> None:
        self._data = data
        self.error: Exception | None = None

    async def framed(self) -> AsyncIterator[bytes]:
        waiting = bytearray()
        try:
            async for part in self._data:
                waiting += part
                if len(waiting) >= _PART_BYTES:
                    yield b"%d\n" % len(waiting) + waiting
                    waiting.clear()
        except Exception as error:
            self.error = error
            yield b"none\n"
            return
        if waiting:
            yield b"%d\n" % len(waiting) + waiting
        yield b"0\n"
