"""Commands, jobs and files of a sandbox: the values, and the protocols to run and use them."""

import os
import re
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import field
from typing import Final, Literal, Protocol

from kakoi._support.late import dataclass
from kakoi._support.parsing import LONGEST_S
from kakoi.errors import ConfigurationError
from kakoi.results import ExecutionResult
from kakoi.runner.frames import changes_the_shell

Stream = Literal["stdout", "stderr"]

MIB = 1024 * 1024
# The longest argument that Linux accepts; a shell text is one argument.
MAX_WORD_BYTES = 128 * 1024 - 1
MAX_COMMAND_BYTES = 1536 * 1024
MAX_FILE_BYTES = 64 * MIB
# How much of each output stream is kept, unless a command says otherwise.
DEFAULT_OUTPUT_BYTES = MIB


def check_type(what: str, value: object, *types: type) -> None:
    """Raise ConfigurationError if `value` has another type; a bool does not count as an int."""
    if type(value) in types:  # Most are; `isinstance` with an abstract class takes longer.
        return
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        wanted = " or ".join("None" if each is type(None) else each.__name__ for each in types)
        raise ConfigurationError(f"{what} is {type(value).__name__}; it must be {wanted}")


def new_id() -> str:
    """Return a random id for a command."""
    return os.urandom(8).hex()


@dataclass(frozen=True, slots=True)
class TerminalSize:
    """The size of a terminal in characters."""

    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            if not 0 < getattr(self, name) < 2**16:
                raise ConfigurationError(
                    f"{name} is {getattr(self, name)}; it must be between 1 and 65535"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One command for a sandbox. Wrong values raise ConfigurationError here, not later.

    `command`: shell text, run as `bash --norc --noprofile -c` (`sh` where there is no bash); or a
        program and its arguments, run without a shell.
    `cwd`: an absolute directory inside the sandbox; None is the sandbox's own.
    `env`: variables added to those of the sandbox.
    `stdin`: what it reads; None is an empty input. `stdin_open`: more follows (`write`).
    `terminal`: run on a terminal of this size; both streams then arrive as stdout.
    `timeout_s`, `idle_timeout_s`: how long it can run, and how long it can go without output.
    `max_output_bytes`: how much of each stream is kept in the result (its head).
    `spill_bytes`: how much of each stream stays readable by offset in the sandbox afterwards.
    `report_shell`: also report the shell's last directory and exports, at a small cost.
    `id`: names the command; the same id twice means the same execution.
    """

    command: str | Sequence[str]
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    stdin_open: bool = False
    terminal: TerminalSize | None = None
    timeout_s: float | None = None
    idle_timeout_s: float | None = None
    max_output_bytes: int = DEFAULT_OUTPUT_BYTES
    spill_bytes: int = 64 * MIB
    report_shell: bool = False
    id: str = field(default_factory=new_id)

    def __post_init__(self) -> None:
        for name, types in _TYPES.items():
            check_type(name, getattr(self, name), *types)
        _check_words(self.command)
        _check_env(self.env)
        if self.cwd is not None and not self.cwd.startswith("/"):
            raise ConfigurationError(f"cwd is {self.cwd!r}; it must be an absolute path")
        _check_text("cwd", self.cwd or "")
        for name in ("timeout_s", "idle_timeout_s"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds < LONGEST_S:
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
    "stdin_open": (bool,),
    "report_shell": (bool,),
    "terminal": (TerminalSize, type(None)),
    "timeout_s": (int, float, type(None)),
    "idle_timeout_s": (int, float, type(None)),
    "max_output_bytes": (int,),
    "spill_bytes": (int,),
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
            raise ConfigurationError(f"command contains {type(word).__name__}; it must be text")
        _check_text("command", word)
    sizes = [len(str(word).encode("utf-8", "surrogateescape")) for word in words]
    if max(sizes) > MAX_WORD_BYTES or sum(sizes) > MAX_COMMAND_BYTES:
        raise ConfigurationError(
            f"command is {sum(sizes)} bytes long; at most {MAX_COMMAND_BYTES} in all and"
            f" {MAX_WORD_BYTES} in one text can be passed",
            hint="put the data into a file, or on stdin",
        )
    if not words[0]:
        raise ConfigurationError("command is empty")


def _check_env(env: Mapping[str, str]) -> None:
    for name, value in env.items():
        if not all(isinstance(text, str) for text in (name, value)) or not name or "=" in name:
            raise ConfigurationError(f"env contains {name!r}; it must map names to text")
        if changes_the_shell(name):
            raise ConfigurationError(
                f"env sets {name}, which would change how the shell runs the command"
            )
        _check_text(f"env[{name!r}]", name + value)


def _check_text(what: str, text: str) -> None:
    if "\0" in text:
        raise ConfigurationError(f"{what} contains a NUL, which cannot be passed to a program")
    try:
        text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise ConfigurationError(
            f"{what} contains a lone surrogate, which is not valid text"
        ) from None


def check_path(path: str, what: str = "path") -> None:
    """Raise ConfigurationError if no file can have this path; `what` names the argument."""
    check_type(what, path, str)
    if not path:
        raise ConfigurationError(f"{what} is empty")
    _check_text(what, path)


def check_count(what: str, value: int, *, least: int = 0) -> None:
    """Raise ConfigurationError if an argument is not a number from `least` on."""
    check_type(what, value, int)
    if value < least:
        wrong = "must not be negative" if least == 0 else f"must be at least {least}"
        raise ConfigurationError(f"{what} is {value}; it {wrong}")


def check_mode(mode: int) -> None:
    """Raise ConfigurationError if `mode` is not the permission bits of a file."""
    check_count("mode", mode)
    if mode > 0o7777:
        raise ConfigurationError(f"mode is {mode:#o}; it must be at most 0o7777")


@dataclass(frozen=True, slots=True)
class JobInfo:
    """One entry of `list_jobs`. `result` is set once the job has ended."""

    id: str
    command: str
    started_s_ago: float
    stdout_bytes: int
    stderr_bytes: int
    result: ExecutionResult | None = None

    @property
    def running(self) -> bool:
        """Is the job still running?"""
        return self.result is None


@dataclass(frozen=True, slots=True)
class OutputPart:
    """A part of a job's output. `next_offset` is where to continue reading.

    `offset` is where `data` really begins. `ended`: nothing follows `next_offset`, ever.
    `lost_bytes`: what was written beyond the bound of the spill file and can't be read.
    """

    data: bytes
    offset: int
    next_offset: int
    ended: bool
    lost_bytes: int = 0

    @property
    def text(self) -> str:
        """The data as text. A character that the part splits is shown as U+FFFD."""
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as the sandbox reports it. Every text is untrusted: never use one as a path here.

    `name`: the last part of `path`. `path`: as it was asked for; in a listing, below the path that
    was listed. `mode`: the permission bits. `modified_s`: seconds since 1970.
    `owner`, `group`: the names that the sandbox has for them, else their numbers.
    `target`: where a link leads, exactly as the link says it; empty for everything else.
    """

    name: str
    kind: Literal["file", "directory", "link", "other"]
    size: int
    mode: int
    modified_s: float
    path: str = ""
    owner: str = ""
    group: str = ""
    target: str = ""


FileEventKind = Literal["created", "written", "removed", "renamed", "mode_changed"]


@dataclass(frozen=True, slots=True)
class FileEvent:
    """Something happened to the file at `path`, which is untrusted like everything in there.

    `created`: it is new under this name, also because something was renamed to it.
    `written`: its content changed: it was closed after writing, grew, or was replaced by a rename.
    `removed`: it is gone. `renamed`: it is gone from this name and has another one.
    `mode_changed`: its permissions, owner or times changed.
    """

    kind: FileEventKind
    path: str


class RunningCommand(Protocol):
    """A command in the foreground. Leaving the `async with` ends it if it is still running."""

    @property
    def id(self) -> str: ...
    def output(self) -> AsyncIterator[tuple[Stream, bytes]]:
        """Yield output as it is written; a slow reader slows the command down."""
        ...

    async def write(self, data: bytes) -> None:
        """Send input; waits while the command does not read."""
        ...

    async def close_stdin(self) -> None: ...
    async def resize(self, size: TerminalSize) -> None: ...
    async def signal(self, number: int) -> None:
        """Send a signal to the command's process group."""
        ...

    async def result(self) -> ExecutionResult:
        """Return the result. Call this after `output`: output that was not read by then is kept, up
        to the limit, and no longer yielded."""
        ...

    async def __aenter__(self) -> "RunningCommand": ...
    async def __aexit__(self, *error: object) -> None: ...


class Channel(Protocol):
    """An open channel into one sandbox: concurrent commands, jobs, files.

    A failing command is a result, not an error. SandboxError is raised when the sandbox failed and
    there is no result to report it in; ConfigurationError, FileNotFoundError and the like when the
    caller made a mistake; UnsupportedError when this kind of sandbox cannot do it.
    """

    @property
    def lost(self) -> bool:
        """Is the other end gone? Then every call fails and a new channel is needed."""
        ...

    @property
    def shell(self) -> str:
        """The shell that runs a command given as text: `bash`, or `sh` where there is no bash."""
        ...

    async def run(self, command: Command) -> ExecutionResult:
        """Run to the end. Cancelling the call ends the command first."""
        ...

    def open(self, command: Command) -> RunningCommand:
        """Run with live output and input: `async with channel.open(command) as running:`."""
        ...

    async def start(self, command: Command) -> str:
        """Start a job that outlives this call; returns its id."""
        ...

    async def list_jobs(self) -> list[JobInfo]: ...
    async def read_output(
        self, job: str, stream: Stream, *, offset: int = 0, limit: int = MIB, wait_s: float = 0
    ) -> OutputPart:
        """Return output from `offset` on; waits up to `wait_s` for the first byte."""
        ...

    async def write_stdin(self, job: str, data: bytes, *, close: bool = False) -> None: ...
    async def stop_job(self, job: str) -> ExecutionResult:
        """End the job and everything it started; returns its result."""
        ...

    async def wait_job(self, job: str, *, wait_s: float | None = None) -> ExecutionResult | None:
        """Return the job's result, or None if it is still running after `wait_s`."""
        ...

    async def signal_job(self, job: str, number: int) -> None:
        """Send a signal to the process group of a job; nothing happens if the job has ended."""
        ...

    async def resize_job(self, job: str, size: TerminalSize) -> None:
        """Set the size of a job's terminal. OSError with ENOTTY: it was started without one."""
        ...

    async def read_file(self, path: str, *, offset: int = 0, limit: int = MAX_FILE_BYTES) -> bytes:
        """Return the bytes of a file; OSError with EFBIG if there are more than `limit`."""
        ...

    def stream_file(self, path: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """Yield the bytes of a file of any size in parts; a slow reader slows the sandbox down.

        Close it (`contextlib.aclosing`) if you stop before the end.
        """
        ...

    async def write_file(
        self, path: str, data: bytes | AsyncIterable[bytes], *, mode: int = 0o644
    ) -> None:
        """Create or replace a file; a reader sees the old or the new one, never a partial one.

        An iterable can be of any size; if it raises, the old file stays. Bytes are limited to
        MAX_FILE_BYTES. A link is followed to its target.
        """
        ...

    async def list_files(self, path: str, *, depth: int = 1, limit: int = 10_000) -> list[FileInfo]:
        """Return what is in a directory, and `depth - 1` levels below: by name, each directory
        before its content. Links are not followed.

        OSError with EOVERFLOW if there are more than `limit` entries. The content of a
        subdirectory that cannot be read is left out.
        """
        ...

    async def make_dir(self, path: str, *, mode: int = 0o755, parents: bool = True) -> bool:
        """Make a directory; returns False if there was one already, which stays as it is.

        `parents`: make missing directories above it as well.
        """
        ...

    async def move_file(self, source: str, destination: str) -> None:
        """Rename a file, a link or a directory, as rename(2) does.

        It replaces a file or an empty directory at `destination`; OSError with EXDEV if that is on
        another file system.
        """
        ...

    async def remove_file(self, path: str, *, recursive: bool = False) -> None:
        """Remove a file or a link, never what a link leads to; with `recursive`, also a directory
        and everything below it.

        If something below cannot be removed, the rest is, and OSError says what was first.
        """
        ...

    def watch_files(
        self, path: str, *, recursive: bool = False
    ) -> AbstractAsyncContextManager[AsyncIterator[FileEvent]]:
        """Watch a file, or a directory and its entries: `async with … as events:`.

        Watching has begun when the block is entered, and ends with it; events are yielded until the
        watched directory (of a file: the one it is in) is removed or renamed. `recursive`: also
        everything below, including directories made later, where an event can come twice. A
        subdirectory that cannot be read is not watched. OSError with EOVERFLOW: events were lost
        because more happened than was read; look at the files, and watch anew. UnsupportedError:
        there is no Python in the sandbox, or no inotify.
        """
        ...

    async def stat_file(self, path: str) -> FileInfo:
        """Return what a path names; links are not followed."""
        ...

    async def close(self) -> None:
        """End every foreground command and close the channel. Never raises."""
        ...
