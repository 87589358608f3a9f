"""One line of the audit log: its fields, and how it is encoded and decoded.

A line is a JSON object in ASCII. Its keys are always in the same order, and empty values are left
out. The last key is `hash`, the SHA-256 of the line without that key; the key before it is `prev`,
the hash of the previous record. So the hash covers every byte of the line and everything before
it. A line is a record only if it is byte for byte what `encode` would write for its fields.
"""

import json
from collections.abc import Callable, Mapping
from enum import StrEnum
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from kakoi._support.late import dataclass, pattern
from kakoi._support.sha256 import sha256
from kakoi.errors import ConfigurationError
from kakoi.policy.judging.decision import Decision
from kakoi.policy.rules import Verdict

if TYPE_CHECKING:
    from kakoi.results import ExecutionResult

# The `prev` of the very first record.
GENESIS: Final = "0" * 64
# No record is longer, however hostile its texts, so a reader never needs more memory.
LONGEST_LINE: Final = 256 * 1024

_LONGEST_COMMAND: Final = 8192
_LONGEST_TEXTS: Final = {"cwd": 4096, "reason": 1024, "error": 1024}
_LONGEST_LABEL: Final = 256
_LONGEST_RULE: Final = 64
_MOST_RULES: Final = 32
_ID: Final = pattern(r"[A-Za-z0-9_.-]{1,64}")
# Quotes inside a JSON string are escaped, so this can only match at the end of a record.
_END: Final = pattern(rb',"hash":"([0-9a-f]{64})"}\n?\Z')
_UNFINISHED_HASH: Final = pattern(rb'[0-9a-f]{0,64}|[0-9a-f]{64}"')


class Event(StrEnum):
    """What a record is about. The last three are written by the log itself.

    `judged`: kakoi returned a verdict and the caller decides whether to run the command.
    """

    JUDGED = "judged"
    REFUSED = "refused"
    ASKED = "asked"
    APPROVED = "approved"
    DECLINED = "declined"
    STARTED = "started"
    ENDED = "ended"
    CONNECTION = "connection"
    ROTATED = "rotated"
    RECOVERED = "recovered"
    CUT = "cut"


LOG_EVENTS: Final = frozenset((Event.ROTATED, Event.RECOVERED, Event.CUT))

# Every key of a record except `hash`, in the order of the line, with its JSON type.
_KINDS: Final[Mapping[str, type]] = {
    "seq": int,
    "time": str,
    "event": str,
    "id": str,
    "command": str,
    "command_sha256": str,
    "kind": str,
    "cwd": str,
    "sandbox": str,
    "target": str,
    "verdict": str,
    "rules": list,
    "reason": str,
    "exit_code": int,
    "duration_ms": int,
    "stdout_bytes": int,
    "stderr_bytes": int,
    "truncated": bool,
    "error": str,
    "session": str,
    "task": str,
    "user": str,
    "oldest_seq": int,
    "torn_bytes": int,
    "torn_sha256": str,
    "lost_seq": int,
    "lost_hash": str,
    "prev": str,
}
_PYTHON_KINDS: Final[Mapping[str, type]] = {**_KINDS, "rules": tuple, "event": Event}
_EMPTY: Final = (None, "", ())
_encoder: Final = json.JSONEncoder(separators=(",", ":"))


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """An event to record. Wrong types raise ConfigurationError here, not when it is read.

    `id`: the id of the command, the same in all records about it.
    `kind`: `file access` if `command` describes one (`read /etc/hosts`); empty for a command.
    `target`: what a sandbox tried to reach; then `id` is the same for that whole sandbox.
    `verdict`, `rules`, `reason`: the policy's verdict and why. In an `ended` record, `reason` is
    the `results.Reason`, and `error` explains why a command never started or its sandbox was lost.
    `session`, `task`, `user`: labels of the caller.
    """

    event: Event
    id: str
    command: str = ""
    kind: str = ""
    cwd: str = ""
    sandbox: str = ""
    target: str = ""
    verdict: str = ""
    rules: tuple[str, ...] = ()
    reason: str = ""
    exit_code: int | None = None
    duration_ms: int | None = None
    stdout_bytes: int | None = None
    stderr_bytes: int | None = None
    truncated: bool | None = None
    error: str = ""
    session: str = ""
    task: str = ""
    user: str = ""

    def __post_init__(self) -> None:
        for (name, kind), value in zip(_ENTRY_KINDS, _values_of_entry(self), strict=True):
            if type(value) is kind or value in _EMPTY:
                continue
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise _wrong(name, type(value).__name__, f"of type {kind.__name__}")
        if not all(isinstance(rule, str) for rule in self.rules):
            raise _wrong("rules", "not all text", "a tuple of texts")
        if self.event not in LOG_EVENTS and not _ID.fullmatch(self.id):
            # Not shown: an invalid id can be anything, even a secret.
            raise _wrong("id", "something else", "1 to 64 of A-Z a-z 0-9 . _ -")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord(AuditEntry):
    """A line of the log: an entry without its secrets, and its place in the chain.

    `command_sha256`: of the whole redacted text, if `command` holds its head only.
    `oldest_seq`: the first record that is kept when the file that ends here is put away.
    `torn_bytes`, `torn_sha256`: the unfinished line before this one, left by a killed writer.
    `lost_seq`, `lost_hash`: the record that the writer had written and that was gone.
    """

    id: str = ""
    seq: int
    time: str
    command_sha256: str = ""
    oldest_seq: int | None = None
    torn_bytes: int | None = None
    torn_sha256: str = ""
    lost_seq: int | None = None
    lost_hash: str = ""
    prev: str
    hash: str

    def __post_init__(self) -> None:
        """Built from an entry or a line; both were checked before."""


_ENTRY_NAMES: Final = tuple(name for name in _KINDS if name in AuditEntry.__slots__)
_ENTRY_KINDS: Final = tuple((name, _PYTHON_KINDS[name]) for name in _ENTRY_NAMES)
_values_of_record: Final = attrgetter(*_KINDS)
_values_of_entry: Final = attrgetter(*_ENTRY_NAMES)


def decision_entry(
    decision: Decision,
    *,
    id: str,
    cwd: str,
    event: Event = Event.JUDGED,
    sandbox: str = "",
    session: str = "",
    task: str = "",
    user: str = "",
) -> AuditEntry:
    """Return the entry for a decision: `event`, or a refusal if that is what was decided."""
    return AuditEntry(
        event=Event.REFUSED if decision.verdict is Verdict.DENY else event,
        id=id,
        command=decision.command,
        kind="" if decision.kind == "command" else decision.kind,
        cwd=cwd,
        verdict=decision.verdict.value,
        rules=tuple(finding.rule for finding in decision.findings),
        reason=decision.findings[0].reason if decision.findings else "",
        sandbox=sandbox,
        session=session,
        task=task,
        user=user,
    )


def end_entry(started: AuditEntry, result: "ExecutionResult") -> AuditEntry:
    """Return the entry for the end of the command that the entry `started` describes."""
    return AuditEntry(
        event=Event.ENDED,
        id=started.id,
        cwd=started.cwd,  # So each record shows by itself which project it is about.
        sandbox=started.sandbox,
        reason=result.reason,
        exit_code=result.exit_code,
        duration_ms=result.duration_ms,
        stdout_bytes=result.stdout_bytes,
        stderr_bytes=result.stderr_bytes,
        truncated=result.truncated,
        error=result.error,
        session=started.session,
        task=started.task,
        user=started.user,
    )


# --- Encoding --------------------------------------------------------------------------------


def clean_fields(entry: AuditEntry, clean: Callable[[str], str]) -> dict[str, Any]:
    """Return the fields of an entry, each text redacted (by `clean`) and limited in length.

    Redact first: truncation could leave half of a secret, which redaction would not recognize.
    """
    fields = _filled(entry)
    for name, value in fields.items():
        if name == "command":
            continue
        if name == "rules":
            fields[name] = tuple(_cut(clean(rule), _LONGEST_RULE) for rule in value[:_MOST_RULES])
        elif name not in ("event", "id") and isinstance(value, str):
            fields[name] = _cut(clean(value), _LONGEST_TEXTS.get(name, _LONGEST_LABEL))
    if entry.command:
        fields |= _command(clean(entry.command))
    return fields


def seal(fields: Mapping[str, Any]) -> tuple[AuditRecord, bytes]:
    """Return the record of these fields (including `seq`, `time` and `prev`), and its line."""
    body = _body(fields)
    digest = sha256(body).hexdigest()
    return AuditRecord(**fields, hash=digest), _closed(body, digest)


def encode(record: AuditRecord) -> bytes:
    """Return the line of a record, with its newline."""
    return _closed(_body(_filled(record)), record.hash)


def _body(fields: Mapping[str, Any]) -> bytes:
    ordered = {name: fields[name] for name in _KINDS if name in fields}
    return _encoder.encode(ordered).encode("ascii")


def _closed(body: bytes, digest: str) -> bytes:
    return b'%b,"hash":"%b"}\n' % (body[:-1], digest.encode("ascii"))


def _filled(entry: AuditEntry) -> dict[str, Any]:
    """Return the non-empty fields by name; zero and False are not empty."""
    if isinstance(entry, AuditRecord):
        values = zip(_KINDS, _values_of_record(entry), strict=True)
    else:
        values = zip(_ENTRY_NAMES, _values_of_entry(entry), strict=True)
    return {name: value for name, value in values if value not in _EMPTY}


def _command(redacted: str) -> dict[str, str]:
    if len(redacted) <= _LONGEST_COMMAND:
        return {"command": redacted}
    kept = redacted[:_LONGEST_COMMAND]
    mark = f" [kakoi: command cut, {len(kept)} of {len(redacted)} characters kept]"
    whole = sha256(redacted.encode("utf-8", "surrogatepass")).hexdigest()
    return {"command": kept + mark, "command_sha256": whole}


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _wrong(name: str, value: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"`{name}` of an audit entry is {value}; it must be {wanted}")


# --- Decoding --------------------------------------------------------------------------------


def decode(line: bytes) -> AuditRecord | None:
    """Decode a line (newline optional); None if it is not a valid record. Never raises."""
    end = _END.search(line) if len(line) <= LONGEST_LINE else None
    if end is None:
        return None
    body = line[: end.start()] + b"}"
    if sha256(body).hexdigest().encode() != end[1]:
        return None
    try:
        fields = json.loads(body)
        if not _is_well_formed(fields) or _body(fields) != body:
            return None
        record = _record(fields, end[1].decode())
    except (ValueError, TypeError, RecursionError):
        return None
    return record


def _is_well_formed(fields: object) -> bool:
    """Whether names and types are what `encode` would write."""
    return (
        isinstance(fields, dict)
        and all(
            type(value) is _KINDS.get(name) and value not in ("", [])
            for name, value in fields.items()
        )
        and all(type(rule) is str for rule in fields.get("rules", ()))
    )


def _record(fields: dict[str, Any], digest: str) -> AuditRecord:
    event, rules = Event(fields.pop("event", "")), tuple(fields.pop("rules", ()))
    return AuditRecord(**fields, event=event, rules=rules, hash=digest)


def is_unfinished(line: bytes, seq: int) -> bool:
    """Whether the line (without a newline) can be the start of record `seq` of a killed writer.

    After a power cut, a file system may fill unwritten parts with zeros.
    """
    line = line.rstrip(b"\0")
    start = b'{"seq":%d,"time":"' % seq
    if len(line) > LONGEST_LINE or line[: len(start)] != start[: len(line)]:
        return False
    _, closing, digest = line.partition(b',"hash":"')
    return not closing or _UNFINISHED_HASH.fullmatch(digest) is not None
