"""What came of a command, and how its output is cut to a limit.

Output is counted in bytes and its head is kept. A cut never breaks a character: the bytes of
a character that does not fit whole are dropped. Bytes that are no UTF-8 become U+FFFD.
"""

import codecs
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Reason(StrEnum):
    """Why a command ended. A failure of ours is never dressed as the command's."""

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
    """What a sandbox wanted to reach and was refused. `host` is empty if it was not to be read.

    `by_list`: it is not among `allowed_domains`; added there, it could be reached.
    """

    host: str
    port: int
    reason: str
    by_list: bool = False

    @property
    def line(self) -> str:
        """What to add to `allowed_domains`; empty if that would not help."""
        if not self.by_list:
            return ""
        return self.host if self.port in (80, 443) else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        where = f"{self.host}:{self.port}" if self.host else "a request to the proxy"
        return f"{where} was refused{' by `allowed_domains`' * self.by_list}: {self.reason}"


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """What came of one command.

    `stdout` and `stderr` hold the kept head of each stream, without any marker; the `_bytes`
    fields count what the command wrote, kept or not. A signalled command has 128 + the signal
    as its `exit_code`, as in a shell. One that did not end by itself has the status that shells
    and `timeout` use: 124 out of time, 125 sandbox lost, 126 or 127 never started, 130 cancelled.
    `cwd` is the directory the shell ended in, if that was asked for and it could say.
    `exports` are the variables that it has exported by then, with None for what it has unset.
    `leftovers_ended` counts the processes it left behind and that were killed. `id` is the name
    by which output beyond the kept head can still be read in the sandbox. `error` says in words
    why it was never started or how the sandbox was lost, and that the kernel keeps a list of
    programs where a shell could not execute something. `blocked_connections` are what its sandbox
    was refused while it ran; a command that ran at the same time is told the same. `disk_full` is a
    directory on whose disk no room was left when the command had failed, as the kernel counts.
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
    def exitCode(self) -> int:  # noqa: N802 - the name in spec B
        """`exit_code`, under the name that spec B gives it."""
        return self.exit_code

    @property
    def truncated(self) -> bool:
        """Was either stream cut?"""
        return self.stdout_truncated or self.stderr_truncated

    @property
    def ok(self) -> bool:
        """Did the command end by itself, with status 0?"""
        return self.reason is Reason.EXITED and self.exit_code == 0


class Capture:
    """The first `limit_bytes` of a stream, and a count of all of it.

    Memory stays below the limit however much is fed.
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
        """Was more fed than the limit allows to keep?"""
        return self.total_bytes > self._limit_bytes

    def text(self) -> str:
        """The kept bytes as text, without a character that the cut would break."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(self._kept, final=not self.truncated)


def mark_truncated(text: str, *, total_bytes: int) -> str:
    """`text` (cut output) with a last line that tells its reader how much is missing."""
    kept_bytes = min(len(text.encode("utf-8", "replace")), total_bytes)
    separator = "" if not text or text.endswith("\n") else "\n"
    return f"{text}{separator}[kakoi: output cut, {kept_bytes} of {total_bytes} bytes kept]\n"
