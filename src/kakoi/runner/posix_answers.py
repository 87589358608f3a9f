"""What a shell of ours says, turned into values or refused: the sandbox may lie, but not in another
shape. Wrong shapes raise BreachError."""

import re
import signal
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from kakoi.results import Capture, ExecutionResult, Reason
from kakoi.runner.commands import Command, FileInfo, JobInfo
from kakoi.runner.posix_exec import BreachError, Ending, Launcher, Place

_PATH = re.compile(rb"/[A-Za-z0-9_./-]{1,200}")
_ENDED = re.compile(r"([a-z_-]{1,20}) ([0-9]{1,3})" + r" ([0-9]{1,15})" * 4)
_COUNTS = re.compile(r"([0-9]{1,15}) ([0-9]{1,15})\n")
_JOB = re.compile(r"([A-Za-z0-9_.-]{1,64})" + r" ([0-9]{1,15})" * 3)
_OUTPUT = re.compile(rb"([0-9]{1,15}) ([0-9]{1,15}) ([a-z_-]{1,20})")
_FILE = re.compile(rb"([0-9a-f]{1,8}) ([0-9]{1,19}) (-?[0-9]{1,19}) \./(.{1,255})\n", re.DOTALL)
_STAT = re.compile(rb"([0-9a-f]{1,8}) ([0-9]{1,19}) (-?[0-9]{1,19})\n")
# The kernel counts processor time in these, whatever its own clock does.
_MS_PER_TICK = 10

NEVER_STARTED = {
    "cwd-missing": "its working directory does not exist",
    "cwd-no-folder": "its working directory is not a directory",
    "cwd-denied": "its working directory may not be entered",
    "program-missing": "the program was not found",
    "program-denied": "the program is not an executable file",
    "no-process": "there is no room for another process in the sandbox",
    "no-room": "there is no room for its text in the sandbox",
}
_LOST = "the command killed its keeper; everything it started was ended"


def parse_place(launch: Launcher, channel: str, said: bytes) -> Place:
    """What a sandbox has, from the answer to `probe`."""
    words = said.split(b"\n")
    if (
        len(words) != 6
        or words[-1]
        or any(word and not _PATH.fullmatch(word) for word in (words[0], words[1], words[4]))
    ):
        raise BreachError("the sandbox does not say what it has")
    base, init, flag, loud, shell, _ = (word.decode() for word in words)
    if flag not in ("", "-s") or loud not in ("", "-v"):
        raise BreachError("the sandbox does not say what it has")
    return Place(launch, channel, base, init, flag, loud, shell)


def reason_of(kind: str, status: int) -> tuple[Reason, int, int | None]:
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
    reason, exit_code, number = reason_of(ending.kind, ending.status)
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
        cwd=_cwd(ending.path),
        cpu_ms=ending.ticks * _MS_PER_TICK,
        leftovers_ended=ending.ended,
        id=name,
        error=error or NEVER_STARTED.get(ending.kind, ""),
    )


def _cwd(path: bytes) -> str | None:
    path = path.removesuffix(b"\n").removesuffix(b"\r")
    if not path.startswith(b"/") or len(path) > 4096 or b"\0" in path:
        return None
    return path.decode("utf-8", "surrogateescape")


@dataclass(frozen=True, slots=True)
class JobState:
    """How it is with a job: `running`, `gone` (its shell was killed), or its ending."""

    word: str
    ending: Ending | None = None
    duration_ms: int = 0


def parse_state(said: bytes) -> tuple[JobState, int, int]:
    """How it is with a job, and how much it has written on each stream."""
    line, _, counts = said.decode("ascii", "replace").partition("\n")
    found = _COUNTS.fullmatch(counts)
    if found is None:
        raise BreachError("the sandbox does not say how a job is")
    return _parse_line(line), int(found[1]), int(found[2])


def _parse_line(line: str) -> JobState:
    if line in ("running", "gone"):
        return JobState(line)
    found = _ENDED.fullmatch(line)
    if found is None:
        raise BreachError("the sandbox does not say how a job is")
    status, ended, survivors, ticks, duration = map(int, found.groups()[1:])
    ending = Ending(found[1], status, ended, survivors, ticks)
    reason_of(ending.kind, status)
    return JobState("ended", ending, duration * 10)


def job_result(
    name: str, state: JobState, stdout_bytes: int, stderr_bytes: int
) -> ExecutionResult | None:
    """A job's result; its output stays in the sandbox. None while it runs."""
    if state.word == "running":
        return None
    ending = state.ending or Ending("lost", 125)
    result = result_of(ending, name, state.duration_ms, Capture(0), Capture(0))
    return replace(
        result,
        stdout_bytes=stdout_bytes,
        stderr_bytes=stderr_bytes,
        stdout_truncated=stdout_bytes > 0,
        stderr_truncated=stderr_bytes > 0,
    )


def parse_jobs(said: bytes) -> Iterator[JobInfo]:
    """The jobs of a sandbox: three lines for each."""
    lines = said.decode("ascii", "replace").split("\n")
    if len(lines) % 3 != 1 or lines[-1]:
        raise BreachError("the sandbox does not list its jobs")
    for head, state, label in zip(*(lines[start:-1:3] for start in range(3)), strict=True):
        found = _JOB.fullmatch(head)
        if found is None:
            raise BreachError("the sandbox does not list its jobs")
        age, stdout_bytes, stderr_bytes = map(int, found.groups()[1:])
        yield JobInfo(
            id=found[1],
            command=_unescaped(label)[:500],
            started_s_ago=age / 100,
            stdout_bytes=stdout_bytes,
            stderr_bytes=stderr_bytes,
            result=job_result(found[1], _parse_line(state), stdout_bytes, stderr_bytes),
        )


def title(command: Command) -> str:
    """What to call a command in a list."""
    words = command.command
    return (words if isinstance(words, str) else " ".join(words))[:500]


def _unescaped(label: str) -> str:
    data = re.sub(r"\\0([0-3][0-7]{2})", lambda found: chr(int(found[1], 8)), label)
    return data.encode("latin-1").decode("utf-8", "surrogateescape")


def parse_output(said: bytes) -> tuple[int, int, bool, bytes]:
    """How much is stored, how much was lost, whether that is all, and the part asked for."""
    head, newline, data = said.partition(b"\n")
    found = _OUTPUT.fullmatch(head)
    if found is None or not newline:
        raise BreachError("the sandbox does not give its output")
    return int(found[1]), int(found[2]), found[3] != b"running", data


def parse_stat(name: str, said: bytes) -> FileInfo:
    """What a path names."""
    found = _STAT.fullmatch(said)
    if found is None:
        raise BreachError("the sandbox does not describe a file")
    return _file_info(name, found[1], found[2], found[3])


def parse_files(said: bytes) -> list[FileInfo]:
    """The files of a folder."""
    found = []
    for part in said.split(b"//")[1:]:
        match = _FILE.fullmatch(part)
        if match is None:
            raise BreachError("the sandbox does not list its files")
        name = match[4].decode("utf-8", "surrogateescape")
        found.append(_file_info(name, match[1], match[2], match[3]))
    return found


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
