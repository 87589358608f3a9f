"""Requests to the resident shells of a sandbox, and their parsed answers.

The content of answers is untrusted; a malformed one raises BreachError.
"""

import re
import signal
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

from kakoi._support.late import dataclass, pattern
from kakoi.channel.api import Command, FileInfo, JobInfo
from kakoi.channel.shell_exports import parse_exports
from kakoi.errors import SandboxError
from kakoi.results import Capture, ExecutionResult, Reason

_PLAIN = pattern(rb"[ -\[\]-~]*")
_PATH = pattern(r"(/[A-Za-z0-9_./-]{1,200})?")
_STARTED = pattern(rb" started ([0-9]{1,10}) ([0-9]{1,10}) ([0-9]{1,18})")
_END = pattern(rb" end ([a-z_-]{1,20}) ([0-9]{1,3})" + rb" ([0-9]{1,15})" * 3)
_ENDED = pattern(r"([a-z_-]{1,20}) ([0-9]{1,3})" + r" ([0-9]{1,15})" * 4)
_COUNTS = pattern(rb"([0-9]{1,15}) ([0-9]{1,15})")
_JOB = pattern(r"([A-Za-z0-9_.-]{1,64})" + r" ([0-9]{1,15})" * 3)
_OUTPUT = pattern(rb"([0-9]{1,15}) ([0-9]{1,15}) ([a-z_-]{1,20})")
_FILE_FACTS = (
    rb"([0-9a-f]{1,8}) ([0-9]{1,19}) (-?[0-9]{1,19}) ([0-9]{1,10}) ([0-9]{1,10})"
    rb" ([^\n/]{0,64})/([^\n/]{0,64})"
)
_FILE = pattern(_FILE_FACTS + rb"/\./(.{1,4096})\n", re.DOTALL)
_STAT = pattern(_FILE_FACTS + rb"\n(?:(.{1,4096})\n)?", re.DOTALL)
_LINK = pattern(rb"([0-9]{1,4}) ([0-9]{1,4}) \./")
_LONGEST_PATH = 4096
_LONGEST_TITLE = 500
# The kernel counts processor time in hundredths of a second, and so do we all time in there.
_MS = 10

NEVER_STARTED = {
    "cwd-missing": "its working directory does not exist",
    "cwd-no-folder": "its working directory is not a directory",
    "cwd-denied": "its working directory cannot be entered: permission denied",
    "program-missing": "the program was not found",
    "program-denied": "the program is not an executable file",
    "no-process": "no other process can be started in the sandbox",
    "no-room": "no space is left for its text in the sandbox",
    "no-shell": "no shell could be started in the sandbox",
}
_LOST = "the command killed its keeper; everything it started was ended"


class BreachError(SandboxError):
    """The other end violates the protocol."""


# --- What goes there -------------------------------------------------------------------------


def escaped(text: str | bytes) -> bytes:
    """Return one line that `printf %b` turns back into the same bytes."""
    data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    if not _PLAIN.fullmatch(data):
        data = re.sub(rb"[^ -\[\]-~]", lambda found: b"\\0%03o" % found[0][0], data)
    return data + b"\n"


def request(verb: str, *words: object, lines: Sequence[str] = ()) -> bytes:
    """Return a request: words that need no escaping, and lines that can contain anything."""
    head = f"{verb}\n" + (" ".join(map(str, words)) + "\n" if words else "")
    return head.encode("ascii") + b"".join(map(escaped, lines))


def run_request(command: Command, verb: Literal["run", "job"], source: str, how: str) -> bytes:
    """What start.sh has to know of a command.

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
    """Return hundredths of a second; 0 means no limit."""
    return 0 if seconds is None else max(1, round(seconds * 100))


def limit_words(rlimits: Mapping[str, int]) -> str:
    """Return limits as shell text. A lower hard limit stays as it is.

    `-f` counts in 512 bytes in every `sh`, bash by that name included.
    """
    units = {"open_files": ("-n", 1), "file_bytes": ("-f", 512), "data_bytes": ("-d", 1024)}
    words = [
        f"ulimit {units[name][0]} {value // units[name][1]}" for name, value in rlimits.items()
    ]
    return "".join(f"{word} 2>/dev/null;" for word in words)


# --- What comes from there: commands ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ProcessTree:
    """The two processes above a command, and when the first was started; see start.sh."""

    root: int
    main: int
    born: int


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command or an order ended; see start.sh."""

    kind: str
    status: int
    ended: int = 0
    survivors: int = 0
    ticks: int = 0
    report: bytes = b""


def parse_line(line: bytes) -> ProcessTree | Ending | None:
    """Parse a protocol line without its nonce; None is the last one."""
    if not line:
        return None
    if found := _STARTED.fullmatch(line):
        return ProcessTree(*map(int, found.groups()))
    if found := _END.fullmatch(line):
        status, ended, survivors, ticks = map(int, found.groups()[1:])
        return Ending(found[1].decode(), status, ended, survivors, ticks)
    raise BreachError("the sandbox violates the protocol")


def _reason(kind: str, status: int) -> tuple[Reason, int, int | None]:
    """Return why a command ended, its exit code, and the signal if any."""
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
    """Return the result of a command from its ending."""
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
    """Return an absolute path that a sandbox sent; None if it is not one."""
    path = path.removesuffix(b"\n").removesuffix(b"\r")
    if not path.startswith(b"/") or len(path) > _LONGEST_PATH or b"\0" in path:
        return None
    return path.decode("utf-8", "surrogateescape")


# --- Jobs ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JobState:
    """A job is running, or has a result. `is_lost`: the shell and init above it were killed."""

    result: ExecutionResult | None
    is_lost: bool = False


def parse_state(name: str, reply: bytes) -> JobState:
    """Return the state of job `name`."""
    line, _, rest = reply.partition(b"\n")
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


def parse_jobs(reply: bytes) -> Iterator[JobInfo]:
    """Yield the jobs of a sandbox: three lines for each."""
    lines = reply.decode("ascii", "replace").split("\n")
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
class StoredPart:
    """A part of a job's output, how much is stored, and whether the job has ended."""

    data: bytes
    stored: int
    lost: int
    is_over: bool


def parse_output(reply: bytes, limit: int) -> StoredPart:
    head, newline, data = reply.partition(b"\n")
    found = _OUTPUT.fullmatch(head)
    if found is None or not newline or len(data) > limit:
        raise BreachError("the sandbox does not give its output")
    return StoredPart(data, int(found[1]), int(found[2]), found[3] != b"running")


# --- Places and files ------------------------------------------------------------------------


def parse_probe(reply: bytes) -> tuple[str, str, str, str, str]:
    """Return what a sandbox offers: a private folder, an init with two flags, a shell."""
    words = reply.decode("ascii", "replace").split("\n")
    if len(words) != 6 or words[-1]:
        raise BreachError("the sandbox did not report what it has")
    base, init, flag, loud, shell, _ = words
    paths_fit = all(map(_PATH.fullmatch, (base, init, shell)))
    if not paths_fit or not shell or flag not in ("", "-s") or loud not in ("", "-v"):
        raise BreachError("the sandbox did not report what it has")
    return base, init, flag, loud, shell


def parse_stat(path: str, reply: bytes) -> FileInfo:
    """Return what a path names."""
    found = _STAT.fullmatch(reply)
    if found is None:
        raise BreachError("the sandbox does not describe a file")
    target = (found[8] or b"").decode("utf-8", "surrogateescape")
    return _file_info(path, found, target)


def parse_files(folder: str, reply: bytes, links: bytes) -> list[FileInfo]:
    """Return the files below a folder, by name, each directory before its content."""
    targets = dict(_parse_links(links))
    files: dict[tuple[str, ...], FileInfo] = {}
    for part in reply.split(b"//")[1:]:
        found = _FILE.fullmatch(part)
        if found is None:
            raise BreachError("the sandbox does not list its files")
        below = found[8].decode("utf-8", "surrogateescape")
        names = tuple(below.split("/"))
        if "\0" in below or any(name in ("", ".", "..") for name in names):
            raise BreachError("the sandbox lists files elsewhere")
        path = folder.rstrip("/") + "/" + below
        files[names] = _file_info(path, found, targets.get(found[8], ""))
    # What changed in the meantime may have lost the directory above it.
    return [
        files[names]
        for names in sorted(files)
        if len(names) == 1 or ((above := files.get(names[:-1])) and above.kind == "directory")
    ]


def _parse_links(reply: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield the path and the target of each link. The last one may be incomplete."""
    at = 0
    while found := _LINK.match(reply, at):
        start = found.end() - 2
        middle = start + int(found[1])
        at = middle + int(found[2])
        yield reply[start + 2 : middle], reply[middle:at].decode("utf-8", "surrogateescape")


def _file_info(path: str, found: re.Match[bytes], target: str) -> FileInfo:
    bits = int(found[1], 16)
    kind: Literal["file", "directory", "link", "other"] = "other"
    if stat.S_ISREG(bits):
        kind = "file"
    elif stat.S_ISDIR(bits):
        kind = "directory"
    elif stat.S_ISLNK(bits):
        kind = "link"
    return FileInfo(
        name=path.rstrip("/").rpartition("/")[2],
        kind=kind,
        size=int(found[2]),
        mode=stat.S_IMODE(bits),
        modified_s=float(found[3]),
        path=path,
        owner=_account(found[4], found[6]),
        group=_account(found[5], found[7]),
        target=target if kind == "link" else "",
    )


def _account(number: bytes, name: bytes) -> str:
    known = b"" if name == b"UNKNOWN" else name
    return (known or number).decode("utf-8", "surrogateescape")
