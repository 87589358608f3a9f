"""One line of the audit log: what it holds, and how it becomes bytes and is read back.

A line is a JSON object in ASCII whose keys always stand in the same order and which leaves out
what is empty. Its last key is `hash`, the SHA-256 of the line as it would be without that key;
the key before is `prev`, the hash of the record before it. So every byte of a line is covered,
and so is everything before the line. A line is a record only if it is, to the byte, what `encode`
makes of what it says.
"""

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from kakoi.errors import ConfigurationError
from kakoi.policy.judging.decision import Decision
from kakoi.policy.rules import Verdict
from kakoi.results import ExecutionResult

# What the first record of all has for `prev`.
GENESIS: Final = "0" * 64
# No record is longer, however hostile its texts: a reader need not take more into memory.
LONGEST_LINE: Final = 256 * 1024

_LONGEST_COMMAND: Final = 8192
_LONGEST_TEXTS: Final = {"cwd": 4096, "reason": 1024, "error": 1024}
_LONGEST_LABEL: Final = 256
_LONGEST_RULE: Final = 64
_MOST_RULES: Final = 32
_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# Quotes inside of a JSON text are escaped, so this can stand at the end of a record only.
_END: Final = re.compile(rb',"hash":"([0-9a-f]{64})"}\n?\Z')
_UNFINISHED_HASH: Final = re.compile(rb'[0-9a-f]{0,64}|[0-9a-f]{64}"')


class Event(StrEnum):
    """What a record is about. The last three are written by the log itself.

    `judged`: a verdict was given to somebody who runs the command without us, or does not.
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


OF_THE_LOG: Final = frozenset((Event.ROTATED, Event.RECOVERED, Event.CUT))

# Every key of a record but `hash`, in the order of the line, with the type it has in JSON.
_KINDS: Final[Mapping[str, type]] = {
    "seq": int,
    "time": str,
    "event": str,
    "id": str,
    "command": str,
    "command_sha256": str,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """What there is to record. Wrong types raise ConfigurationError here, not when it is read.

    `id`: of the command, the same for all that happens to it.
    `target`: what a sandbox wanted to reach; then `id` is the same for all of that sandbox.
    `verdict`, `rules`, `reason`: of the policy, and why; an ending has its `results.Reason`,
    and in `error` the words for a command that never started or a sandbox that was lost.
    `session`, `task`, `user`: labels of the caller.
    """

    event: Event
    id: str
    command: str = ""
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
        for name, value in _filled(self).items():
            kind = {"rules": tuple, "event": Event}.get(name, _KINDS[name])
            if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
                raise _wrong(name, type(value).__name__, f"of type {kind.__name__}")
        if not all(isinstance(rule, str) for rule in self.rules):
            raise _wrong("rules", "not all text", "a tuple of texts")
        if self.event not in OF_THE_LOG and not _ID.fullmatch(self.id):
            # Not shown: what is no id may be anything, a secret too.
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
        """Made of an entry or of a line, both checked before."""


def judged(
    decision: Decision, *, id: str, cwd: str, session: str = "", task: str = "", user: str = ""
) -> AuditEntry:
    """What to record of a decision, if nothing else happens to its command."""
    return AuditEntry(
        event=Event.REFUSED if decision.verdict is Verdict.DENY else Event.JUDGED,
        id=id,
        command=decision.command,
        cwd=cwd,
        verdict=decision.verdict.value,
        rules=tuple(finding.rule for finding in decision.findings),
        reason=decision.findings[0].reason if decision.findings else "",
        session=session,
        task=task,
        user=user,
    )


def ended(started: AuditEntry, result: ExecutionResult) -> AuditEntry:
    """What to record when the command of the entry `started` has come to `result`."""
    return AuditEntry(
        event=Event.ENDED,
        id=started.id,
        cwd=started.cwd,  # So that each record says by itself which project it is about.
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


# --- Into bytes ------------------------------------------------------------------------------


def cleaned(entry: AuditEntry, clean: Callable[[str], str]) -> dict[str, Any]:
    """The fields of an entry, each text without secrets (by `clean`) and of bounded length.

    Secrets go first: a cut could leave half of one, which nobody would know again.
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
    """The record of these fields (`seq`, `time` and `prev` among them), and its line."""
    body = _body(fields)
    digest = hashlib.sha256(body).hexdigest()
    return AuditRecord(**fields, hash=digest), _closed(body, digest)


def encode(record: AuditRecord) -> bytes:
    """The line of a record, with its newline."""
    return _closed(_body(_filled(record)), record.hash)


def _body(fields: Mapping[str, Any]) -> bytes:
    ordered = {name: fields[name] for name in _KINDS if name in fields}
    return json.dumps(ordered, separators=(",", ":")).encode("ascii")


def _closed(body: bytes, digest: str) -> bytes:
    return b'%b,"hash":"%b"}\n' % (body[:-1], digest.encode("ascii"))


def _filled(entry: AuditEntry) -> dict[str, Any]:
    """The fields that say something, by name; zero and False do."""
    values = ((name, getattr(entry, name, None)) for name in _KINDS)
    return {name: value for name, value in values if value not in (None, "", ())}


def _command(redacted: str) -> dict[str, str]:
    if len(redacted) <= _LONGEST_COMMAND:
        return {"command": redacted}
    kept = redacted[:_LONGEST_COMMAND]
    mark = f" [kakoi: command cut, {len(kept)} of {len(redacted)} characters kept]"
    whole = hashlib.sha256(redacted.encode("utf-8", "surrogatepass")).hexdigest()
    return {"command": kept + mark, "command_sha256": whole}


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _wrong(name: str, value: str, wanted: str) -> ConfigurationError:
    return ConfigurationError(f"`{name}` of an audit entry is {value}; it must be {wanted}")


# --- Out of bytes ----------------------------------------------------------------------------


def decode(line: bytes) -> AuditRecord | None:
    """The record of a line (its newline may be missing), or None if it is none; never raises."""
    end = _END.search(line) if len(line) <= LONGEST_LINE else None
    if end is None:
        return None
    body = line[: end.start()] + b"}"
    if hashlib.sha256(body).hexdigest().encode() != end[1]:
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
    """Is it what `encode` would write, as far as names and types go?"""
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
    """Can the line (without a newline) be the beginning of record `seq`, whose writer was killed?

    After a power cut, a file system may fill up with zeros what it had not yet written.
    """
    line = line.rstrip(b"\0")
    start = b'{"seq":%d,"time":"' % seq
    if len(line) > LONGEST_LINE or line[: len(start)] != start[: len(line)]:
        return False
    _, closing, digest = line.partition(b',"hash":"')
    return not closing or _UNFINISHED_HASH.fullmatch(digest) is not None
