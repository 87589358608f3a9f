"""What to run in a sandbox, and how to hold on to it while it runs: values and one protocol."""

import re
import secrets
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

from kakoi.errors import ConfigurationError
from kakoi.results import ExecutionResult
from kakoi.runner.shells import changes_the_shell

Stream = Literal["stdout", "stderr"]

MIB = 1024 * 1024
# Linux takes no longer argument, and a shell text is one.
MAX_WORD_BYTES = 128 * 1024 - 1
MAX_COMMAND_BYTES = 768 * 1024
MAX_FILE_BYTES = 64 * MIB
_MAX_SECONDS = 10.0 * 365 * 24 * 3600


def check_type(what: str, value: object, *types: type) -> None:
    """Refuse what is of another type; no truth value is a number."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        wanted = " or ".join("None" if each is type(None) else each.__name__ for each in types)
        raise ConfigurationError(f"{what} is {type(value).__name__}; it must be {wanted}")


def new_id() -> str:
    """A name for a command that nobody can guess."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """How big a terminal is, in characters."""

    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            if not 0 < getattr(self, name) < 2**16:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; no terminal is so big")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command for a sandbox. Wrong values raise ConfigurationError here, not later.

    `command`: shell text, run as `bash --norc --noprofile -c` (`sh` where there is no bash); or a
        program and its arguments, run without a shell.
    `cwd`: an absolute directory inside the sandbox; None is the sandbox's own.
    `env`: variables added to those of the sandbox.
    `stdin`: what it reads; None is an empty input. `stdin_open`: more follows (`write`).
    `terminal`: run on a terminal of this size; both streams then arrive as stdout.
    `timeout_s`, `idle_timeout_s`: how long it may take, and how long it may be silent.
    `max_output_bytes`: how much of each stream is kept in the result (its head).
    `spill_bytes`: how much of each stream stays readable by offset in the sandbox afterwards.
    `report_shell`: also say where the shell ended, and what it exported; costs a little.
    `id`: names the command; the same id twice is the same execution.
    """

    command: str | Sequence[str]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    stdin_open: bool = False
    terminal: TerminalSize | None = None
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    max_output_bytes: int = MIB
    spill_bytes: int = 64 * MIB
    report_shell: bool = False
    id: str = field(default_factory=new_id)

    def __post_init__(self) -> None:
        for names, types in _TYPES.items():
            for name in names.split():
                check_type(name, getattr(self, name), *types)
        _check_words(self.command)
        _check_env(self.env)
        if self.cwd is not None and not self.cwd.startswith("/"):
            raise ConfigurationError(f"cwd is {self.cwd!r}; it must be an absolute path")
        _check_text("cwd", self.cwd or "")
        for name in ("timeout_s", "idle_timeout_s"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds < _MAX_SECONDS:
                raise ConfigurationError(
                    f"{name} is {seconds}; it must be above zero; leave it out for no limit"
                )
        for name in ("max_output_bytes", "spill_bytes"):
            if getattr(self, name) < 0:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)}; it must not be negative"
                )
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", self.id):
            raise ConfigurationError(f"id is {self.id!r}; it must be 1 to 64 of A-Z a-z 0-9 . _ -")


_TYPES: Final[Mapping[str, tuple[type, ...]]] = {
    "cwd": (str, type(None)),
    "env": (Mapping,),
    "stdin": (bytes, type(None)),
    "stdin_open report_shell": (bool,),
    "terminal": (TerminalSize, type(None)),
    "timeout_s idle_timeout_s": (int, float, type(None)),
    "max_output_bytes spill_bytes": (int,),
    "id": (str,),
}


def _check_words(command: object) -> None:
    if isinstance(command, str):
        words: list[object] = [command]
    elif isinstance(command, Sequence) and command and not isinstance(command, bytes):
        words = list(command)
    else:
        raise ConfigurationError("command must be shell text, or a program and its arguments")
    for word in words:
        if not isinstance(word, str):
            raise ConfigurationError(f"command holds {type(word).__name__}; it must be text")
        _check_text("command", word)
    sizes = [len(str(word).encode("utf-8", "surrogateescape")) for word in words]
    if max(sizes) > MAX_WORD_BYTES or sum(sizes) > MAX_COMMAND_BYTES:
        raise ConfigurationError(
            f"command is {sum(sizes)} bytes long; at most {MAX_COMMAND_BYTES} in all and"
            f" {MAX_WORD_BYTES} in one text can be handed over",
            hint="put the data into a file, or on stdin",
        )
    if not words[0]:
        raise ConfigurationError("command is empty")


def _check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not all(isinstance(text, str) for text in (name, value)) or not name or "=" in name:
            raise ConfigurationError(f"env holds {name!r}; it must map names to text")
        if changes_the_shell(name):
            raise ConfigurationError(
                f"env sets {name}, which would change what the shell does with the command"
            )
        _check_text(f"env[{name!r}]", name + value)


def _check_text(what: str, text: str) -> None:
    if "\0" in text:
        raise ConfigurationError(f"{what} holds a NUL; no program can be given one")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ConfigurationError(f"{what} holds a lone surrogate; it is no text") from None


@dataclass(frozen=True, slots=True)
class JobInfo:
    """One line of `list_jobs`. `result` is there once it has ended."""

    id: str
    command: str
    started_s_ago: float
    stdout_bytes: int
    stderr_bytes: int
    result: ExecutionResult | None = None

    @property
    def running(self) -> bool:
        """Has it not ended yet?"""
        return self.result is None


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A part of a job's output. `next_offset` is where to go on reading.

    `offset` is where `data` really begins. `ended`: nothing follows `next_offset`, ever.
    `lost_bytes`: what was written beyond the bound of the spill file and can't be read.
    """

    data: bytes
    offset: int
    next_offset: int
    ended: bool
    lost_bytes: int = 0


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file in a sandbox, as the sandbox says: its `name` must not be used as a path here."""

    name: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    mode: int
    modified_s: float


class Running(Protocol):
    """A command in the foreground. Leaving the `async with` ends it, if it still runs."""

    @property
    def id(self) -> str: ...
    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """What it writes, as it writes it; a slow reader slows the command down."""
        ...

    async def write(self, data: bytes) -> None:
        """Give it input; waits while it does not read."""
        ...

    async def close_stdin(self) -> None: ...
    async def resize(self, size: TerminalSize) -> None: ...
    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        ...

    async def result(self) -> ExecutionResult:
        """What came of it. To be called after `output`: what was not read by then is kept, up to
        the limit, and not given out any more."""
        ...

    async def __aenter__(self) -> "Running": ...
    async def __aexit__(self, *error: object) -> None: ...


class Channel(Protocol):
    """The open way into one sandbox: many commands at once, jobs, files.

    A command's own failure is a result. SandboxError is raised when the place failed and there is
    no result to give it in; ConfigurationError and FileNotFoundError, … when the caller erred.
    """

    @property
    def lost(self) -> bool:
        """Is the other end gone? Then every call fails, and a new channel is needed."""
        ...

    @property
    def shell(self) -> str:
        """What reads a command that is one text: `bash`, or `sh` where there is none."""
        ...

    async def run(self, command: Command) -> ExecutionResult:
        """Run to the end. Cancelling the call ends the command first."""
        ...

    def open(self, command: Command) -> Running:
        """Run with live output and input: `async with channel.open(command) as running:`."""
        ...

    async def start(self, command: Command) -> str:
        """Start a job that outlives this call; returns its id."""
        ...

    async def list_jobs(self) -> list[JobInfo]: ...
    async def read_output(
        self, job: str, stream: Stream, *, offset: int = 0, limit: int = MIB, wait_s: float = 0
    ) -> OutputPart:
        """A part of the output from `offset`; waits up to `wait_s` for the first byte."""
        ...

    async def write_stdin(self, job: str, data: bytes, *, close: bool = False) -> None: ...
    async def stop_job(self, job: str) -> ExecutionResult:
        """End the job and everything it started; returns its result."""
        ...

    async def wait_job(self, job: str, *, wait_s: float | None = None) -> ExecutionResult | None:
        """The job's result, or None if it still runs after `wait_s`."""
        ...

    async def read_file(
        self, path: str, *, offset: int = 0, limit: int = MAX_FILE_BYTES
    ) -> bytes: ...
    async def write_file(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Create or replace a file; a reader sees the old or the new one, never a half."""
        ...

    async def list_files(self, path: str, *, limit: int = 10_000) -> list[FileInfo]: ...
    async def stat_file(self, path: str) -> FileInfo: ...
    async def close(self) -> None:
        """End every foreground command, and give the channel up. Never raises."""
        ...
