"""The result of a command, and how its output is truncated to a limit.

Output is counted in bytes and its head is kept. Truncation never splits a character: the bytes of
a character that does not fit are dropped. Bytes that are not valid UTF-8 become U+FFFD.
"""

import codecs
from collections.abc import Mapping
from enum import StrEnum

from kakoi._support.late import dataclass


class Reason(StrEnum):
    """Why a command ended. A failure of kakoi is never reported as the command's."""

    EXITED = "exited"
    SIGNALLED = "signalled"
    TIMED_OUT = "timed_out"
    IDLE_TIMEOUT = "idle_timeout"
    OUT_OF_MEMORY = "out_of_memory"
    CANCELLED = "cancelled"
    SANDBOX_LOST = "sandbox_lost"
    NEVER_STARTED = "never_started"


@dataclass(frozen=True, slots=True)
class BlockedConnection:
    """A connection that was refused to a sandbox. `host` is empty if it could not be read.

    `port`: 0 if the sandbox asked for the addresses of the host.
    `by_list`: the host is not in `allowed_domains`; adding it there would allow the connection.
    """

    host: str
    port: int
    reason: str
    by_list: bool = False

    @property
    def line(self) -> str:
        """The line to add to `allowed_domains`; empty if that would not help."""
        if not self.by_list:
            return ""
        return self.host if self.port in (0, 80, 443) else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        where = f"{self.host}:{self.port}" if self.port else f"resolving {self.host}"
        if not self.host:
            where = "a request to the proxy"
        return f"{where} was refused{' by `allowed_domains`' * self.by_list}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """The result of one command.

    `stdout` and `stderr` hold the kept head of each stream, without any marker; the `_bytes`
    fields count everything the command wrote, kept or not. A command that a signal ended has
    128 + the signal as its `exit_code`, as in a shell. One that did not end by itself has the code
    that shells and `timeout` use: 124 timed out, 125 sandbox lost, 126 or 127 never started, 130
    cancelled.
    `cwd` is the directory in which the shell ended, if that was requested and the shell could
    report it. `exports` are the variables it had exported by then, with None for an unset one.
    `leftovers_ended` counts the processes that it left behind and that were killed. `id` names the
    command, to read output beyond the kept head in the sandbox. `error` says why it was never
    started or how the sandbox was lost, and names the kernel's program allowlist if a shell could
    not execute something. `blocked_connections` were refused to its sandbox while it ran; commands
    that ran at the same time report the same ones. `disk_full` is a directory whose file system was
    full, by the kernel's count, when the command had failed.
    """

    exit_code: int
    stdout: str
    stderr: str
    duration_ms: int
    reason: Reason = Reason.EXITED
    stdout_bytes: int = 0
    stderr_bytes: int = 0
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    signal: int | None = None
    cwd: str | None = None
    exports: Mapping[str, str | None] | None = None
    cpu_ms: int = 0
    max_rss_bytes: int = 0
    leftovers_ended: int = 0
    id: str = ""
    error: str = ""
    blocked_connections: tuple[BlockedConnection, ...] = ()
    disk_full: str = ""

    @property
    def exitCode(self) -> int:  # noqa: N802 - a public name
        """Another name for `exit_code`."""
        return self.exit_code

    @property
    def duration(self) -> float:
        """How long it ran, in seconds."""
        return self.duration_ms / 1000

    @property
    def cpu_time(self) -> float:
        """The processor time that it used, in seconds."""
        return self.cpu_ms / 1000

    @property
    def truncated(self) -> bool:
        """Was either stream truncated?"""
        return self.stdout_truncated or self.stderr_truncated

    @property
    def ok(self) -> bool:
        """Did the command exit by itself with code 0?"""
        return self.reason is Reason.EXITED and self.exit_code == 0


class Capture:
    """Keeps the first `limit_bytes` of a stream and counts all of it.

    It stores no more than the limit, however much it is fed.
    """

    __slots__ = ("_kept", "_limit_bytes", "total_bytes")

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < 0:
            raise ValueError(f"limit_bytes is {limit_bytes}; it must not be negative")
        self._limit_bytes = limit_bytes
        self._kept = bytearray()
        self.total_bytes = 0

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the stream."""
        self.total_bytes += len(chunk)
        room = self._limit_bytes - len(self._kept)
        if room > 0:
            self._kept += chunk[:room]

    @property
    def truncated(self) -> bool:
        """Was it fed more than the limit?"""
        return self.total_bytes > self._limit_bytes

    def text(self) -> str:
        """Return the kept bytes as text, without a character that the limit would split."""
        if not self._kept:
            return ""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(self._kept, final=not self.truncated)


def mark_truncated(text: str, *, total_bytes: int) -> str:
    """Return `text` (truncated output) with a last line that says how much is missing."""
    kept_bytes = min(len(text.encode("utf-8", "replace")), total_bytes)
    separator = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{separator}[kakoi: output cut, {kept_bytes} of {total_bytes} bytes kept]\n"
