"""What goes to a shell of ours in a sandbox, and what comes from it, as values.

The sandbox may lie, but not in another shape: wrong ones raise BreachError.
"""

import re
import signal
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kakoi.errors import SandboxError
from kakoi.results import Capture, ExecutionResult, Reason
from kakoi.runner.commands import Command, FileInfo, JobInfo
from kakoi.runner.exports import parse_exports

_PLAIN = re.compile(rb"[ -\[\]-~]*")
_PATH = re.compile(r"(/[A-Za-z0-9_./-]{1,200})?")
_STARTED = re.compile(rb" started ([0-9]{1,10}) ([0-9]{1,10}) ([0-9]{1,18})")
_END = re.compile(rb" end ([a-z_-]{1,20}) ([0-9]{1,3})" + rb" ([0-9]{1,15})" * 3)
_ENDED = re.compile(r"([a-z_-]{1,20}) ([0-9]{1,3})" + r" ([0-9]{1,15})" * 4)
_COUNTS = re.compile(rb"([0-9]{1,15}) ([0-9]{1,15})")
_JOB = re.compile(r"([A-Za-z0-9_.-]{1,64})" + r" ([0-9]{1,15})" * 3)
_OUTPUT = re.compile(rb"([0-9]{1,15}) ([0-9]{1,15}) ([a-z_-]{1,20})")
_FILE = re.compile(rb"([0-9a-f]{1,8}) ([0-9]{1,19}) (-?[0-9]{1,19}) \./(.{1,255})\n", re.DOTALL)
_STAT = re.compile(rb"([0-9a-f]{1,8}) ([0-9]{1,19}) (-?[0-9]{1,19})\n")
_LONGEST_PATH = 4096
_LONGEST_TITLE = 500
# The kernel counts processor time in hundredths of a second, and so do we all time in there.
_MS = 10

NEVER_STARTED = {
    "cwd-missing": "its working directory does not exist",
    "cwd-no-folder": "its working directory is not a directory",
    "cwd-denied": "its working directory may not be entered",
    "program-missing": "the program was not found",
    "program-denied": "the program is not an executable file",
    "no-process": "there is no room for another process in the sandbox",
    "no-room": "there is no room for its text in the sandbox",
    "no-shell": "no shell could be started in the sandbox",
}
_LOST = "the command killed its keeper; everything it started was ended"


class BreachError(SandboxError):
    """The other end does not keep to the protocol."""


# --- What goes there -------------------------------------------------------------------------


def escaped(text: str | bytes) -> bytes:
    """One line from which `printf %b` makes the same bytes again."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if not _PLAIN.fullmatch(data):
        data = re.sub(rb"[^ -\[\]-~]", lambda found: b"\\0%03o" % found[0][0], data)
    return data + b"\n"


def request(verb: str, *words: object, lines: Sequence[str] = ()) -> bytes:
    """A request: words that are safe as they are, and lines that may hold anything."""
    head = f"{verb}\n" + (" ".join(map(str, words)) + "\n" if words else "")
    return head.encode("ascii") + b"".join(map(escaped, lines))


def run_request(command: Command, verb: Literal["run", "job"], source: str, how: str) -> bytes:
    """What posix.sh has to know of a command.

    `source`: where its input comes from, `none`, `open` or a file of ours; `how`: `loud` says more
    about its end than `quiet`, and costs a process.
    """
    words = command.command
    size = command.terminal
    env = [f"{name}={value}" for name, value in command.env.items()]
    argv = [words] if isinstance(words, str) else list(words)
    return request(
        verb,
        command.id,
        "text" if isinstance(words, str) else "argv",
        source,
        "yes" if command.report_shell else "no",
        *((0, 0) if size is None else (size.rows, size.columns)),
        how,
        command.spill_bytes,
        _hundredths(command.timeout_s),
        _hundredths(command.idle_timeout_s),
        len(argv),
        len(env),
        lines=[command.cwd or "", " ".join(argv)[:_LONGEST_TITLE], *env, *argv],
    )


def _hundredths(seconds: float | None) -> int:
    """As an integer, where 0 is no limit."""
    return 0 if seconds is None else max(1, round(seconds * 100))


def limit_words(rlimits: Mapping[str, int]) -> str:
    """Limits as shell text. A hard limit that is lower already stays as it is.

    `-f` counts in 512 bytes in every `sh`, bash by that name included.
    """
    units = {"open_files": ("-n", 1), "file_bytes": ("-f", 512), "data_bytes": ("-d", 1024)}
    words = [
        f"ulimit {units[name][0]} {value // units[name][1]}" for name, value in rlimits.items()
    ]
    return "".join(f"{word} 2>/dev/null;" for word in words)


# --- What comes from there: commands ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kept:
    """The processes that a command is below, and when the first was started: see posix.sh."""

    root: int
    main: int
    born: int


@dataclass(frozen=True, slots=True)
class Ending:
    """The last words about a command or an order; see posix.sh."""

    kind: str
    status: int
    ended: int = 0
    survivors: int = 0
    ticks: int = 0
    report: bytes = b""


def parse_line(line: bytes) -> Kept | Ending | None:
    """A line of ours in a stream, without its nonce; None is the very last one."""
    if not line:
        return None
    if found := _STARTED.fullmatch(line):
        return Kept(*map(int, found.groups()))
    if found := _END.fullmatch(line):
        status, ended, survivors, ticks = map(int, found.groups()[1:])
        return Ending(found[1].decode(), status, ended, survivors, ticks)
    raise BreachError("the sandbox does not keep to the protocol")


def _reason(kind: str, status: int) -> tuple[Reason, int, int | None]:
    """Why a command ended, as which exit code, and by which signal."""
    match kind:
        case "exited" if status < 256:
            return Reason.EXITED, status, None
        case "signalled" if 128 < status <= 128 + signal.NSIG:
            return Reason.SIGNALLED, status, status - 128
        case "timed_out":
            return Reason.TIMED_OUT, 124, None
        case "idle_timeout":
            return Reason.IDLE_TIMEOUT, 124, None
        case "out_of_memory":
            return Reason.OUT_OF_MEMORY, 137, 9
        case "cancelled":
            return Reason.CANCELLED, 130, None
        case "lost":
            return Reason.SANDBOX_LOST, 125, None
    if kind in NEVER_STARTED:
        return Reason.NEVER_STARTED, 127 if status == 127 else 126, None
    raise BreachError(f"an unknown ending {kind!r} {status}")


def result_of(
    ending: Ending,
    name: str,
    duration_ms: int,
    stdout: Capture,
    stderr: Capture,
    *,
    error: str = "",
) -> ExecutionResult:
    """What came of a command, from the last words about it."""
    reason, exit_code, number = _reason(ending.kind, ending.status)
    cwd, _, exports = ending.report.partition(b"\0")
    if reason is Reason.SANDBOX_LOST:
        error = error or _LOST
    if ending.survivors:
        reason, exit_code, number = Reason.SANDBOX_LOST, 125, None
        error = f"{ending.survivors} processes of the command could not be ended"
    return ExecutionResult(
        exit_code=exit_code,
        stdout=stdout.text(),
        stderr=stderr.text(),
        duration_ms=duration_ms,
        reason=reason,
        stdout_bytes=stdout.total_bytes,
        stderr_bytes=stderr.total_bytes,
        stdout_truncated=stdout.truncated,
        stderr_truncated=stderr.truncated,
        signal=number,
        cwd=parse_directory(cwd),
        exports=parse_exports(exports),
        cpu_ms=ending.ticks * _MS,
        leftovers_ended=ending.ended,
        id=name,
        error=error or NEVER_STARTED.get(ending.kind, ""),
    )


def parse_directory(path: bytes) -> str | None:
    """A full path, as a sandbox has said it; None if it is none."""
    path = path.removesuffix(b"\n").removesuffix(b"\r")
    if not path.startswith(b"/") or len(path) > _LONGEST_PATH or b"\0" in path:
        return None
    return path.decode("utf-8", "surrogateescape")


# --- Jobs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobState:
    """How it is with a job: it runs, or it has a result. `is_lost`: somebody killed its keepers."""

    result: ExecutionResult | None
    is_lost: bool = False


def parse_state(name: str, said: bytes) -> JobState:
    """How it is with job `name`."""
    line, _, rest = said.partition(b"\n")
    counts, _, report = rest.partition(b"\n")
    found = _COUNTS.fullmatch(counts)
    if found is None:
        raise BreachError("the sandbox does not say how a job is")
    return _state(name, line.decode("ascii", "replace"), int(found[1]), int(found[2]), report)


def _state(
    name: str, line: str, stdout_bytes: int, stderr_bytes: int, report: bytes = b""
) -> JobState:
    if line == "running":
        return JobState(None)
    ending, duration_ms = Ending("lost", 125), 0
    if line != "gone":
        found = _ENDED.fullmatch(line)
        if found is None:
            raise BreachError("the sandbox does not say how a job ended")
        status, ended, survivors, ticks, duration = map(int, found.groups()[1:])
        ending = Ending(found[1], status, ended, survivors, ticks, report)
        duration_ms = duration * _MS
    # Its output stays in the sandbox.
    result = replace(
        result_of(ending, name, duration_ms, Capture(0), Capture(0)),
        stdout_bytes=stdout_bytes,
        stderr_bytes=stderr_bytes,
        stdout_truncated=stdout_bytes > 0,
        stderr_truncated=stderr_bytes > 0,
    )
    return JobState(result, is_lost=ending.kind == "lost")


def parse_jobs(said: bytes) -> Iterator[JobInfo]:
    """The jobs of a sandbox: three lines for each."""
    lines = said.decode("ascii", "replace").split("\n")
    if len(lines) % 3 != 1 or lines[-1]:
        raise BreachError("the sandbox does not list its jobs")
    for head, line, title in zip(*(lines[start:-1:3] for start in range(3)), strict=True):
        found = _JOB.fullmatch(head)
        if found is None:
            raise BreachError("the sandbox does not list its jobs")
        age, stdout_bytes, stderr_bytes = map(int, found.groups()[1:])
        yield JobInfo(
            id=found[1],
            command=_unescaped(title)[:_LONGEST_TITLE],
            started_s_ago=age / 100,
            stdout_bytes=stdout_bytes,
            stderr_bytes=stderr_bytes,
            result=_state(found[1], line, stdout_bytes, stderr_bytes).result,
        )


def _unescaped(title: str) -> str:
    text = re.sub(r"\\0([0-3][0-7]{2})", lambda found: chr(int(found[1], 8)), title)
    return text.encode("latin-1", "replace").decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class Stored:
    """A part of what a job has written, how much of it there is, and whether that is all."""

    data: bytes
    stored: int
    lost: int
    is_over: bool


def parse_output(said: bytes, limit: int) -> Stored:
    head, newline, data = said.partition(b"\n")
    found = _OUTPUT.fullmatch(head)
    if found is None or not newline or len(data) > limit:
        raise BreachError("the sandbox does not give its output")
    return Stored(data, int(found[1]), int(found[2]), found[3] != b"running")


# --- Places and files ------------------------------------------------------------------------


def parse_probe(said: bytes) -> tuple[str, str, str, str, str]:
    """What a sandbox has: a folder for us, an init with two flags, a shell."""
    words = said.decode("ascii", "replace").split("\n")
    if len(words) != 6 or words[-1]:
        raise BreachError("the sandbox does not say what it has")
    base, init, flag, loud, shell, _ = words
    paths_fit = all(map(_PATH.fullmatch, (base, init, shell)))
    if not paths_fit or not shell or flag not in ("", "-s") or loud not in ("", "-v"):
        raise BreachError("the sandbox does not say what it has")
    return base, init, flag, loud, shell


def parse_stat(name: str, said: bytes) -> FileInfo:
    """What a path names."""
    found = _STAT.fullmatch(said)
    if found is None:
        raise BreachError("the sandbox does not describe a file")
    return _file_info(name, found[1], found[2], found[3])


def parse_files(said: bytes) -> list[FileInfo]:
    """The files of a folder."""
    files = []
    for part in said.split(b"//")[1:]:
        found = _FILE.fullmatch(part)
        if found is None:
            raise BreachError("the sandbox does not list its files")
        name = found[4].decode("utf-8", "surrogateescape")
        files.append(_file_info(name, found[1], found[2], found[3]))
    return files


def _file_info(name: str, mode: bytes, size: bytes, modified: bytes) -> FileInfo:
    bits = int(mode, 16)
    kind: Literal["file", "directory", "link", "other"] = "other"
    if stat.S_ISREG(bits):
        kind = "file"
    elif stat.S_ISDIR(bits):
        kind = "directory"
    elif stat.S_ISLNK(bits):
        kind = "link"
    return FileInfo(name, kind, int(size), stat.S_IMODE(bits), float(modified))
