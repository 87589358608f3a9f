"""A transcript: everything that happened in a loop, one event per line of a file.

    {"kakoi_transcript": 1, "task": "…", "began": "2026-01-31T12:00:00+00:00"}
    {"event": "ToolCalled", "at": 1.25, "step": 1, "tool": "execute_command", …}

Secrets are redacted before a line is written. Reading is strict: a file can come from anywhere.
"""

import dataclasses
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final, get_args, get_origin, get_type_hints

from kakoi._support.late import dataclass
from kakoi._support.redact import is_secret_name, redact
from kakoi.agents.conversation import (
    ModelAnswer,
    TokenUsage,
    ToolReplies,
    ToolReply,
    ToolRequest,
    Turn,
    UserMessage,
)
from kakoi.agents.events import (
    AgentEvent,
    LoopStarted,
    ModelReminded,
    ModelReplied,
    Outcome,
    ToolAnswered,
    ToolCalled,
)
from kakoi.errors import AuditError, ConfigurationError

VERSION: Final = 1
_HEAD: Final = "kakoi_transcript"
_LONGEST_TEXT: Final = 128 * 1024
_LONGEST_SECRET: Final = 16 * 1024
_LONGEST_LINE: Final = 4 * 1024 * 1024
_MOST_EVENTS: Final = 200_000
_DEEPEST: Final = 32
_KINDS: Final[Mapping[str, type]] = {kind.__name__: kind for kind in get_args(AgentEvent)}
_GIVEN_UP: Final = "cancelled: the task was paused while this ran"


# --- Writing ---------------------------------------------------------------------------------


class TranscriptFile:
    """A listener that writes events. Creates the file for its owner alone; never overwrites one.

    `clock`: returns the time. `secrets`: values that must not appear in the file.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], datetime],
        task: str = "",
        secrets: Iterable[str] = (),
    ) -> None:
        self.path = path
        self._clock = clock
        self._began = clock()
        self._secrets = tuple(secret for secret in secrets if secret)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            os.makedirs(path.parent, mode=0o700, exist_ok=True)
            self._fd = os.open(path, flags, 0o600)
        except OSError as error:
            raise _unwritable(path, error) from error
        try:
            head = {_HEAD: VERSION, "task": self._safe(task), "began": self._began.isoformat()}
            self._write(head)
        except BaseException:
            os.close(self._fd)
            raise

    def __call__(self, event: AgentEvent) -> None:
        """Write one event. Raises AuditError if it cannot be recorded."""
        at = round((self._clock() - self._began).total_seconds(), 3)
        fields = self._safe(dataclasses.asdict(event))
        self._write({"event": type(event).__name__, "at": max(at, 0.0), **fields})

    def __enter__(self) -> "TranscriptFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.close(self._fd)

    def _write(self, record: Mapping[str, object]) -> None:
        line = json.dumps(record).encode("ascii")
        if len(line) > _LONGEST_LINE:
            kept = {name: record[name] for name in ("event", "at", "step") if name in record}
            line = json.dumps({**kept, "left_out": len(line)}).encode("ascii")
        view = memoryview(line + b"\n")
        try:
            while view:
                view = view[os.write(self._fd, view) :]
        except OSError as error:
            raise _unwritable(self.path, error) from error

    def _safe(self, value: Any, name: str = "", depth: int = 0) -> Any:
        """Return the value without secrets, with very long texts cut."""
        if depth > _DEEPEST:
            return "…"
        if isinstance(value, str):
            if name and is_secret_name(name):
                return "[redacted]"
            # Cut before redacting, which is slow; but with a margin, so no secret is split.
            text = redact(value[: _LONGEST_TEXT + _LONGEST_SECRET], self._secrets)[:_LONGEST_TEXT]
            extra = len(value) - _LONGEST_TEXT
            return text if extra <= 0 else f"{text}[… {extra} characters omitted]"
        if isinstance(value, Mapping):
            return {
                redact(str(key), self._secrets): self._safe(each, str(key), depth + 1)
                for key, each in value.items()
            }
        if isinstance(value, list | tuple):
            return [self._safe(each, "", depth + 1) for each in value]
        return value


def _unwritable(path: Path, error: OSError) -> AuditError:
    exists = isinstance(error, FileExistsError)
    return AuditError(
        f"the transcript {path} cannot be written: {error.strerror}",
        hint="use another file"
        if exists
        else "free some disk space and make it writable for this user",
    )


# --- Reading ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Transcript:
    """The content of a file. `events`: each with its seconds since the beginning.

    `is_cut`: the last line is incomplete, as after a crash.
    """

    task: str
    began: str
    events: tuple[tuple[float, AgentEvent], ...] = ()
    is_cut: bool = False


def read_transcript(path: Path) -> Transcript:
    """Read a transcript. ConfigurationError says why a file is not a transcript."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise ConfigurationError(f"{path} is not a regular file")
    with open(fd, "rb") as file:
        lines = iter(lambda: file.readline(_LONGEST_LINE + 2), b"")
        head = _head(next(lines, b""), path)
        events: list[tuple[float, AgentEvent]] = []
        for number, line in enumerate(lines, 2):
            if not line.endswith(b"\n") and len(line) <= _LONGEST_LINE:
                return replace(head, events=tuple(events), is_cut=True)
            if len(events) >= _MOST_EVENTS or len(line) > _LONGEST_LINE + 1:
                raise ConfigurationError(f"{path}:{number}: too long for a transcript")
            found = _event(_object(line, f"{path}:{number}"), f"{path}:{number}")
            if found is not None:
                events.append(found)
    return replace(head, events=tuple(events))


def _head(line: bytes, path: Path) -> Transcript:
    head = _object(line, f"{path}:1") if line.startswith(b"{") else {}
    version = head.get(_HEAD)
    if version is None:
        raise ConfigurationError(
            f"{path} is not a transcript",
            hint="`kakoi agent run` writes transcripts, and prints where",
        )
    if version != VERSION or isinstance(version, bool):
        raise ConfigurationError(
            f"{path} is a transcript of version {str(version)[:20]}; this kakoi reads {VERSION}",
            hint="read it with the kakoi that wrote it, or a newer one",
        )
    task, began = head.get("task", ""), head.get("began", "")
    if not isinstance(task, str) or not isinstance(began, str):
        raise ConfigurationError(f"{path}:1: `task` and `began` must be text")
    return Transcript(task=task, began=began)


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{where}: not valid JSON") from None
    if not isinstance(found, dict):
        raise ConfigurationError(f"{where}: not a JSON object")
    return found


def _event(found: dict[str, Any], where: str) -> tuple[float, AgentEvent] | None:
    """Return an event and its time; None for one that was too long to keep."""
    name, at = found.pop("event", None), found.pop("at", None)
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ConfigurationError(f"{where}: unknown event {str(name)[:40]!r}")
    if not _is(at, float):
        raise ConfigurationError(f"{where}: `at` must be a number")
    if "left_out" in found:
        return None
    event: AgentEvent = _built(kind, found, where)
    return float(at), event


@cache
def _types(kind: type) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _built(kind: type, found: Mapping[str, Any], where: str) -> Any:
    wanted = _types(kind)
    for name in found:
        if name not in wanted:
            raise ConfigurationError(f"{where}: {kind.__name__} has no `{name[:40]}`")
    values = {}
    for name, value in found.items():
        hint = wanted[name]
        if hint is TokenUsage and isinstance(value, dict):
            value = _built(TokenUsage, value, where)
        elif hint is Outcome and value in set(Outcome):
            value = Outcome(value)
        elif get_origin(hint) is tuple and isinstance(value, list):
            value = tuple(value)
        if not _is(value, hint):
            raise ConfigurationError(f"{where}: `{name}` has the wrong type")
        values[name] = value
    try:
        return kind(**values)
    except TypeError:
        raise ConfigurationError(f"{where}: {kind.__name__} is incomplete") from None


def _is(value: object, hint: Any) -> bool:
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(isinstance(each, str) for each in value)
    if get_origin(hint) is not None and issubclass(get_origin(hint) or object, Mapping):
        return isinstance(value, dict)
    if isinstance(value, bool):
        return hint is bool
    if hint is float:
        return isinstance(value, int | float) and abs(value) < 1e15
    if isinstance(hint, type):
        return isinstance(value, hint)
    return any(value is None if each is type(None) else _is(value, each) for each in get_args(hint))


# --- Resuming --------------------------------------------------------------------------------


def turns_from_events(events: Iterable[AgentEvent]) -> tuple[Turn, ...]:
    """Return the turns after the prompt, to resume a loop from there (`AgentLoop.run`)."""
    turns: list[Turn] = []
    for step in _steps(events):
        reply = next((each for each in step if isinstance(each, ModelReplied)), None)
        if reply is not None:
            turns += _step_turns(reply, step)
        turns += [UserMessage(text=each.text) for each in step if isinstance(each, ModelReminded)]
    return tuple(turns)


def _steps(events: Iterable[AgentEvent]) -> Iterator[list[AgentEvent]]:
    steps: dict[int, list[AgentEvent]] = {}
    for event in events:
        if isinstance(event, LoopStarted):
            yield from steps.values()
            steps = {}
        elif (number := getattr(event, "step", None)) is not None:
            steps.setdefault(number, []).append(event)
    yield from steps.values()


def _step_turns(reply: ModelReplied, step: Sequence[AgentEvent]) -> list[Turn]:
    requests = tuple(
        ToolRequest(id=each.id, tool=each.tool, arguments=each.arguments, fault=each.fault)
        for each in step
        if isinstance(each, ToolCalled)
    )
    answers = {each.id: each for each in step if isinstance(each, ToolAnswered)}
    turns: list[Turn] = [ModelAnswer(text=reply.text, requests=requests)]
    if requests:
        turns.append(
            ToolReplies(replies=tuple(_reply(each, answers.get(each.id)) for each in requests))
        )
    return turns


def _reply(request: ToolRequest, answered: ToolAnswered | None) -> ToolReply:
    if answered is None:
        return ToolReply(request=request, text=_GIVEN_UP, is_error=True)
    # Jobs of an earlier sandbox cannot be read anymore, so `meta` is dropped.
    return ToolReply(request=request, text=answered.text, is_error=answered.is_error)
