"""PosixChannel: commands, jobs and files of a sandbox that has a shell but no Python.

The same contract as a runner's channel, slower. Instead of one resident runner there are some
resident shells (posix_shells.py), each under an init of its own; a job has a shell to itself, which
stays when we go. What a job is lies in files of a private folder in the sandbox (posix_jobs.sh).
"""

import asyncio
import contextlib
import errno
import os
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeVar

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.results import ExecutionResult
from kakoi.runner.commands import (
    MAX_FILE_BYTES,
    MIB,
    Command,
    FileInfo,
    JobInfo,
    OutputPart,
    Stream,
)
from kakoi.runner.posix_exec import Exec, Launcher, Place
from kakoi.runner.posix_memory import RunMemory
from kakoi.runner.posix_running import PosixRunning
from kakoi.runner.posix_shells import Collector, OrderError, Shells
from kakoi.runner.posix_words import (
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

_T = TypeVar("_T")
_OPEN_S = 60.0
_BIRTH_S = 30.0
_CHUNK = 64 * 1024
_ID = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_FIRST_INPUT = MIB
_LONGEST_WORDS = 2000
_LONGEST_ENTRY = 320
_LONGEST_LIST = 32 * MIB
_LONGEST_PART = 8 * MIB
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.5


async def open_posix_channel(
    launch: Launcher, rlimits: Mapping[str, int] | None = None
) -> "PosixChannel":
    """Open a channel into the sandbox in which `launch` starts programs.

    `rlimits`: what each process of a command may use, by the names in room.py.

    SandboxError: there is no usable shell in it, nowhere to write, or it does not answer.
    """
    channel = secrets.token_hex(8)
    shell = Exec(Place(launch, channel).shell_launch(kept=False))
    probe = Collector(_LONGEST_WORDS)
    try:
        async with asyncio.timeout(_OPEN_S):
            ending = await shell.ask(request("probe"), probe)
        if ending is None or ending.status:
            said = f": {shell.said}" if shell.said else ""
            raise SandboxError(f"no shell could be started in the sandbox{said}")
        found = parse_probe(bytes(probe.output))
        place = Place(launch, channel, *found, limits=limit_words(rlimits or {}))
        if not place.base:
            raise SandboxError(
                "the sandbox has no folder to write in", hint="give it a writable /tmp"
            )
        return PosixChannel(Shells(place, shell))
    except BaseException as error:
        await shell.end(grace_s=0.5)
        if isinstance(error, TimeoutError):
            raise SandboxError(f"the sandbox has not answered for {_OPEN_S:.0f} s") from error
        raise


class PosixChannel:
    """The way into a sandbox without Python; see `Channel`."""

    def __init__(self, shells: Shells) -> None:
        self._shells = shells
        self._memory = RunMemory(shells)
        self._births: dict[str, asyncio.Future[str]] = {}

    @property
    def lost(self) -> bool:
        """Is the other end gone?"""
        return bool(self._shells.lost)

    @property
    def shell(self) -> str:
        """`bash` or `sh`; see `Channel.shell`."""
        return "bash" if self._shells.place.shell.endswith("/bash") else "sh"

    # --- In the foreground -------------------------------------------------------------------

    async def run(self, command: Command) -> ExecutionResult:
        """Run to the end; see `Channel.run`."""
        known = self._memory.find(command.id)
        if known is not None:
            return await known.result()
        async with PosixRunning(self._shells, command, self._memory, live=False) as running:
            return await running.result()

    def open(self, command: Command) -> PosixRunning:
        """Run with live output and input; see `Channel.open`. An id can be opened once."""
        self._check_unused(command)
        return PosixRunning(self._shells, command, self._memory, live=True)

    def _check_unused(self, command: Command) -> None:
        if self._memory.find(command.id) is not None:
            raise ConfigurationError(f"a command with the id {command.id!r} was run before")

    # --- Jobs --------------------------------------------------------------------------------

    async def start(self, command: Command) -> str:
        """Start a job; see `Channel.start`."""
        given = command.stdin or b""
        if len(given) > _FIRST_INPUT:
            raise ConfigurationError(
                f"stdin has {len(given)} bytes; a job can be given {_FIRST_INPUT} at its start",
                hint="write a file and let the job read that, or use write_stdin",
            )
        if command.terminal is not None:
            raise ConfigurationError(
                "a job cannot have a terminal in a sandbox without Python",
                hint="run it in the foreground, or use an image with python3",
            )
        if not self._shells.place.init:
            raise SandboxError(
                "the sandbox has no init that could keep jobs apart",
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
            birth.exception()  # Seen, even if whoever asked has gone.

    async def _start(self, command: Command) -> str:
        if await self._is_known(command.id):
            return command.id
        source = "open" if command.stdin_open else "none"
        if command.stdin is not None:
            # With the order, not after it: a job that is asked for twice must not read it twice.
            name = f"{secrets.token_hex(8)},stdin"
            await self._shells.put(name, command.stdin)
            source = f"open:{name}" if command.stdin_open else name
        how = "loud" if self._shells.place.loud else "quiet"
        body = run_request(command, "job", source, how)
        async with self._shells.birth():
            spec = await self._shells.put_spec("job", body)
            said = await self._shells.start_job(spec)
            known = await self._poll(lambda: self._is_known(command.id), bool, _BIRTH_S)
        if not known:
            raise SandboxError(
                "the job was not started" + (f": {said}" if said else ""),
                hint="has another command had its id?",
            )
        return command.id

    async def list_jobs(self) -> list[JobInfo]:
        """Every job that is remembered, running or not."""
        said = await self._shells.order("jobs", limit=_LONGEST_LIST)
        with self._trusting_nothing():
            return list(parse_jobs(said))

    async def read_output(
        self, job: str, stream: Stream, *, offset: int = 0, limit: int = MIB, wait_s: float = 0
    ) -> OutputPart:
        """A part of a job's output; see `Channel.read_output`."""
        _check_range(offset, limit)
        limit = min(limit, _LONGEST_PART)

        async def look() -> OutputPart:
            known = self._memory.find(job)
            if known is not None and not known.streams[stream].is_spilled:
                return known.streams[stream].part(offset, limit, is_over=known.is_over)
            return await self._read_stored(job, stream, offset, limit)

        return await self._poll(look, lambda part: bool(part.data) or part.ended, wait_s)

    async def _read_stored(self, job: str, stream: Stream, offset: int, limit: int) -> OutputPart:
        words = (job, stream, offset, limit)
        said = await self._ask_about(job, "output", *words, limit=limit + _LONGEST_WORDS)
        with self._trusting_nothing():
            found = parse_output(said, limit)
        known = self._memory.find(job)
        is_over = found.is_over if known is None else known.is_over
        ended = is_over and offset + len(found.data) >= found.stored
        return OutputPart(found.data, offset, offset + len(found.data), ended, found.lost)

    async def write_stdin(self, job: str, data: bytes, *, close: bool = False) -> None:
        """Give a job input; waits while it does not read. BrokenPipeError: it takes none."""
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
        """A job's result, or None if it still runs after `wait_s`."""

        async def look() -> ExecutionResult | None:
            said = await self._ask_about(job, "state", job)
            with self._trusting_nothing():
                state = parse_state(job, said)
            if state.is_lost:
                await self._shells.sweep()
            return state.result

        return await self._poll(look, lambda result: result is not None, wait_s)

    async def _is_known(self, job: str) -> bool:
        try:
            await self._shells.order("state", job)
        except OrderError:
            return False
        return True

    async def _ask_about(self, job: str, verb: str, *words: object, **how: Any) -> bytes:
        """An order about a job; ConfigurationError if there is none of that name."""
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
        """Look again and again, for `wait_s` at most: nobody in there could wake us."""
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
        """The bytes of a file; OSError with EFBIG if there are more than `limit`."""
        _check_range(offset, limit)
        # One more than wanted: whether there is more is known then.
        data = await self._file_order(path, "read_file", offset, limit + 1, limit=limit + 1)
        if len(data) > limit:
            raise OSError(errno.EFBIG, f"the file has more than {limit} bytes", path)
        return data

    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file in one step."""
        if len(data) > MAX_FILE_BYTES:
            raise OSError(errno.EFBIG, f"more than {MAX_FILE_BYTES} bytes", path)
        words = (secrets.token_hex(6), f"{mode:o}", len(data))
        await self._file_order(path, "write_file", *words, payload=data)

    async def list_files(self, path: str, *, limit: int = 10_000) -> list[FileInfo]:
        """What is in a folder; OSError with EOVERFLOW if it is more than `limit`."""
        most = min((limit + 1) * _LONGEST_ENTRY, _LONGEST_LIST)
        said = await self._file_order(path, "list_files", most, limit=most)
        if len(said) < most:
            with self._trusting_nothing():
                found = parse_files(said)
            if len(found) <= limit:
                return found
        raise OSError(errno.EOVERFLOW, f"more than {limit} files", path)

    async def stat_file(self, path: str) -> FileInfo:
        """What a path names; a link is told as a link."""
        said = await self._file_order(path, "stat_file")
        with self._trusting_nothing():
            return parse_stat(os.path.basename(path), said)

    async def _file_order(self, path: str, verb: str, *words: object, **how: Any) -> bytes:
        if "\0" in path or not path:
            raise OSError(errno.EINVAL, "no path", path)
        # No tool takes that for an option.
        named = path if path.startswith("/") else f"./{path}"
        try:
            return await self._shells.order(verb, *words, lines=[named], **how)
        except OrderError as error:
            raise OSError(error.errno, error.strerror, path) from error

    # --- The end -----------------------------------------------------------------------------

    async def close(self) -> None:
        """Give the channel up; returns when every command in the foreground is over."""
        await self._shells.close()
        await self._memory.close()
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
    for name, value in (("offset", offset), ("limit", limit)):
        if value < 0:
            raise ConfigurationError(f"{name} is {value}; it must not be negative")
