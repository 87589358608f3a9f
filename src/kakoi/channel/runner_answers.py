"""Parses a runner's answers. Their content is untrusted; a malformed one raises BadFrame."""

import errno
import json
from collections.abc import Mapping
from typing import Any, Literal

from kakoi._support.late import dataclass
from kakoi.channel.api import FileEvent, FileEventKind, FileInfo, JobInfo
from kakoi.channel.shell_exports import parse_exports
from kakoi.errors import ConfigurationError
from kakoi.results import Capture, ExecutionResult, Reason
from kakoi.runner.frames import BadFrame

_LONGEST_TEXT = 64 * 1024
_LONGEST_NAME = 1024
_LONGEST_PATH = 4096
_BIGGEST = 2**63
_NOT_IN_NAMES = frozenset("/\0")
_ENTRY = ("level", "name", "kind", "size", "mode", "modified_s", "owner", "group", "target")
_NEVER_STARTED = {
    "no_cwd": "its working directory",
    "no_program": "the program",
    "no_start": "the program",
    "no_keeper": "its keeper",
}
# How the program allowlist affected the command (runner/allowlist.py).
_LIST = "the kernel enforces the list of programs (kernel_allowlist)"
_OFF = "or turn sandbox.kernel_allowlist off"
_KEPT_OUT = {
    "": "",
    "unlisted": f"{_LIST}, and it is not on it: add it to policy.additional, {_OFF}",
    "writable": f"{_LIST}, and executes nothing from where commands can write: give it to a listed "
    f"program to read, as in `sh FILE`, {_OFF}",
    "something": f"{_LIST}; with 126 a shell says that it could not execute something: if that is "
    f"not listed, add it to policy.additional, {_OFF}",
}


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object in a frame."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise BadFrame("no JSON") from None
    if not isinstance(found, dict):
        raise BadFrame("no JSON object")
    return found


def number(answer: Mapping[str, Any], name: str) -> int:
    """Return a count; anything else raises BadFrame."""
    found = answer.get(name)
    if type(found) is not int or not 0 <= found < _BIGGEST:
        raise BadFrame(f"no number `{name}`")
    return found


def text(answer: Mapping[str, Any], name: str) -> str:
    found = answer.get(name)
    if not isinstance(found, str) or len(found) > _LONGEST_TEXT:
        raise BadFrame(f"no text `{name}`")
    if found.isascii():
        return found
    try:
        found.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # A lone surrogate could not be printed or stored.
        raise BadFrame(f"no text `{name}`") from None
    return found


def _latin(answer: Mapping[str, Any], name: str) -> bytes:
    """Return bytes, one per character."""
    try:
        return text(answer, name).encode("latin-1")
    except UnicodeEncodeError:
        raise BadFrame(f"no bytes `{name}`") from None


def _seconds(answer: Mapping[str, Any], name: str) -> float:
    found = answer.get(name)
    if isinstance(found, bool) or not isinstance(found, int | float) or not abs(found) < _BIGGEST:
        raise BadFrame(f"no time `{name}`")
    return float(found)


def _pair(answer: Mapping[str, Any], name: str) -> tuple[int, int]:
    found = answer.get(name)
    if not isinstance(found, list) or len(found) != 2:
        raise BadFrame(f"no pair `{name}`")
    first, second = ({"n": each} for each in found)
    return number(first, "n"), number(second, "n")


@dataclass(frozen=True, slots=True)
class Hello:
    """A runner's greeting. `landlock`: the Landlock version that confines commands; 0 is none."""

    shell: str
    uid: int
    cwd: str
    landlock: int = 0

    @classmethod
    def parse(cls, answer: Mapping[str, Any]) -> "Hello":
        if number(answer, "version") != 1:
            raise BadFrame("another version")
        landlock = number({"landlock": 0, **answer}, "landlock")
        return cls(text(answer, "shell"), number(answer, "uid"), text(answer, "cwd"), landlock)


def parse_failure(
    answer: Mapping[str, Any], path: str | None, job: str | None
) -> OSError | ConfigurationError:
    """Return the error of a system call in the sandbox, or that the job is unknown."""
    code = number(answer, "errno")
    if not 0 < code < 4096:
        raise BadFrame(f"an impossible error {code}")
    if code == errno.ESRCH:
        return ConfigurationError(
            f"there is no job {job!r} in the sandbox",
            hint="list the jobs; a finished one is forgotten after a while, and all of them where "
            "the sandbox was lost",
        )
    return OSError(code, text(answer, "error")[:500], path)


def check_id(answer: Mapping[str, Any], job: str) -> None:
    if answer.get("id") != job:
        raise BadFrame("an answer for another command")


def parse_result(
    answer: Mapping[str, Any],
    job: str,
    stdout: Capture | None = None,
    stderr: Capture | None = None,
) -> ExecutionResult:
    """Return the result of command `job`. Without captures, its output stays in the sandbox."""
    check_id(answer, job)
    kind, code = text(answer, "kind"), number(answer, "number")
    reason, exit_code, signal = _ending(kind, code)
    counts = _pair(answer, "bytes")
    captures = (stdout or Capture(0), stderr or Capture(0))
    if any(count < kept.total_bytes for count, kept in zip(counts, captures, strict=True)):
        raise BadFrame("fewer bytes than it has sent")
    never = reason is Reason.NEVER_STARTED
    error = f"{_NEVER_STARTED[kind]}: {text(answer, 'error')}" if never else ""
    error = "; ".join(filter(None, (error, _kept_out(answer))))
    if kind == "lost":
        error = "the command killed its keeper; everything it started was ended"
    if number(answer, "survivors"):
        reason, exit_code = Reason.SANDBOX_LOST, 125
        error = f"{number(answer, 'survivors')} processes of the command could not be ended"
    cwd = _directory(answer, "cwd")
    return ExecutionResult(
        exit_code=exit_code,
        stdout=captures[0].text(),
        stderr=captures[1].text(),
        duration_ms=number(answer, "duration_ms"),
        reason=reason,
        stdout_bytes=counts[0],
        stderr_bytes=counts[1],
        stdout_truncated=counts[0] > captures[0].total_bytes or captures[0].truncated,
        stderr_truncated=counts[1] > captures[1].total_bytes or captures[1].truncated,
        signal=signal,
        cwd=cwd or None,
        exports=parse_exports(_latin(answer, "exports")),
        cpu_ms=number(answer, "cpu_ms"),
        max_rss_bytes=number(answer, "max_rss_kib") * 1024,
        leftovers_ended=number(answer, "ended"),
        id=job,
        error=error,
        disk_full=_directory(answer, "disk_full"),
    )


def _kept_out(answer: Mapping[str, Any]) -> str:
    rule = text(answer, "kept_out")
    if rule not in _KEPT_OUT:
        raise BadFrame("an unknown rule of programs")
    return _KEPT_OUT[rule]


def _directory(answer: Mapping[str, Any], name: str) -> str:
    """Return an absolute path, or an empty text."""
    path = text(answer, name)
    if path and (not path.startswith("/") or "\0" in path):
        raise BadFrame("a directory that cannot be")
    return path


def lost_result(
    job: str, why: str, duration_ms: int, stdout: Capture, stderr: Capture
) -> ExecutionResult:
    """Return the result of a command whose runner is lost."""
    return ExecutionResult(
        exit_code=125,
        stdout=stdout.text(),
        stderr=stderr.text(),
        duration_ms=duration_ms,
        reason=Reason.SANDBOX_LOST,
        stdout_bytes=stdout.total_bytes,
        stderr_bytes=stderr.total_bytes,
        stdout_truncated=stdout.truncated,
        stderr_truncated=stderr.truncated,
        id=job,
        error=why,
    )


def _ending(kind: str, code: int) -> tuple[Reason, int, int | None]:
    """Return why a command ended, its exit code, and the signal if any."""
    match kind:
        case "exited" if code < 256:
            return Reason.EXITED, code, None
        case "signalled" if 0 < code < 128:
            return Reason.SIGNALLED, 128 + code, code
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
        case "no_program" if code == 2:  # ENOENT
            return Reason.NEVER_STARTED, 127, None
        case "no_cwd" | "no_program" | "no_start" | "no_keeper":
            return Reason.NEVER_STARTED, 126, None
    raise BadFrame(f"an unknown ending {kind[:20]!r} {code}")


def parse_jobs(answer: Mapping[str, Any]) -> list[JobInfo]:
    """Return the jobs of a sandbox."""
    jobs = []
    for each in _objects(answer, "jobs"):
        job, counts = text(each, "id"), _pair(each, "bytes")
        over = each.get("answer")
        if not isinstance(over, dict | None):
            raise BadFrame("no answer of a job")
        jobs.append(
            JobInfo(
                id=job,
                command=text(each, "command"),
                started_s_ago=_seconds(each, "age_s"),
                stdout_bytes=counts[0],
                stderr_bytes=counts[1],
                result=None if over is None else parse_result(over, job),
            )
        )
    return jobs


def parse_file(answer: Mapping[str, Any], path: str) -> FileInfo:
    """Return what the file at `path` is."""
    kinds: tuple[Literal["file", "directory", "link", "other"], ...]
    kinds = ("file", "directory", "link", "other")
    if answer.get("kind") not in kinds:
        raise BadFrame("an unknown kind of file")
    return FileInfo(
        name=_short_text(answer, "name", _LONGEST_NAME),
        kind=kinds[kinds.index(answer["kind"])],
        size=number(answer, "size"),
        mode=number(answer, "mode"),
        modified_s=_seconds(answer, "modified_s"),
        path=path,
        owner=_short_text(answer, "owner", _LONGEST_NAME),
        group=_short_text(answer, "group", _LONGEST_NAME),
        target=_short_text(answer, "target", _LONGEST_PATH),
    )


def _short_text(answer: Mapping[str, Any], name: str, longest: int) -> str:
    found = text(answer, name)
    if len(found) > longest:
        raise BadFrame(f"a `{name}` that is too long")
    return found


class ListingParser:
    """Collects the entries of a directory tree: in order, and nothing outside of the tree."""

    def __init__(self, path: str, depth: int, limit: int) -> None:
        self.files: list[FileInfo] = []
        self._depth = depth
        self._limit = limit
        # The directories from the listed one to the last entry, and the last name in each.
        self._folders = [path.rstrip("/") + "/"]
        self._last_names = [""]
        self._longest = len(path) + _LONGEST_PATH

    def feed(self, body: bytes) -> None:
        for entry in _parse_list(body):
            self._add(entry)

    def _add(self, entry: list[Any]) -> None:
        if len(entry) != len(_ENTRY):
            raise BadFrame("no entry of a directory")
        fields = dict(zip(_ENTRY, entry, strict=True))
        level, name = number(fields, "level"), text(fields, "name")
        if level >= len(self._folders) or len(self.files) >= self._limit:
            raise BadFrame("an entry that nobody asked for")
        del self._folders[level + 1 :], self._last_names[level + 1 :]
        if name <= self._last_names[level] or name in (".", "..") or _NOT_IN_NAMES & {*name}:
            raise BadFrame("a name that cannot be, or is not in order")
        path = self._folders[level] + name
        if len(path) > self._longest:
            raise BadFrame("a path that is too long")
        found = parse_file(fields, path)
        self.files.append(found)
        self._last_names[level] = name
        if found.kind == "directory" and level + 1 < self._depth:
            self._folders.append(path + "/")
            self._last_names.append("")


def parse_events(body: bytes, path: str) -> list[FileEvent]:
    """Return what happened at `path` or below it."""
    kinds: tuple[FileEventKind, ...]
    kinds = ("created", "written", "removed", "renamed", "mode_changed")
    events = []
    for entry in _parse_list(body):
        if len(entry) != 2 or entry[0] not in kinds:
            raise BadFrame("an unknown event")
        below = _short_text({"path": entry[1]}, "path", 2 * _LONGEST_PATH)
        names = below.split("/") if below else []
        if "\0" in below or any(name in ("", ".", "..") for name in names):
            raise BadFrame("an event elsewhere")
        where = path.rstrip("/") + "/" + below if below else path
        events.append(FileEvent(kinds[kinds.index(entry[0])], where))
    return events


def _parse_list(body: bytes) -> list[list[Any]]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        raise BadFrame("no JSON") from None
    if not isinstance(found, list) or not all(isinstance(each, list) for each in found):
        raise BadFrame("no list of lists")
    return found


def _objects(answer: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    found = answer.get(name)
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        raise BadFrame(f"no list `{name}`")
    return found
