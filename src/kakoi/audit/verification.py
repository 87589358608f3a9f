"""Checks that the log was not changed, by walking the hash chain from first to last record.

Detected: a line that was changed, removed, added, moved or repeated; a file that was removed, even
the oldest, unless a rotation announced that it would be dropped; records that a writer wrote and
later found missing. A line that a killed writer left unfinished is reported separately: it must be
the start of the expected record, and the next writer records its length and hash in the chain.

Not detected, as with any chain that its writer can extend: records truncated at the very end while
no writer is running, and a log that was rewritten as a whole. If you keep a hash of the log
elsewhere, pass it as `last_hash`: then both are detected.
"""

import hashlib
import os
from pathlib import Path
from typing import Final

from kakoi._support.late import dataclass
from kakoi.audit.files import LogFile, snapshot
from kakoi.audit.records import GENESIS, LONGEST_LINE, AuditRecord, Event, decode, is_unfinished

# All findings are counted; this many are reported.
_MOST_FINDINGS: Final = 100
# A killed writer leaves one unfinished line; one killed during recovery leaves a second.
_LONGEST_TEAR: Final = 2 * LONGEST_LINE

_Location = tuple[Path, int]


@dataclass(frozen=True, slots=True)
class LogFinding:
    """A finding about a line of a file; line 0 means the whole file."""

    file: Path
    line: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """The result of a verification.

    `problems` and `torn` hold the first hundred of each; `problem_count` counts all.
    `first_seq` is above 1 if rotation dropped the records before it. `anchor_seq` is the record
    whose hash was passed as `last_hash`.
    """

    files: int
    records: int
    first_seq: int
    last_seq: int
    last_hash: str
    problems: tuple[LogFinding, ...]
    problem_count: int
    torn: tuple[LogFinding, ...]
    anchor_seq: int | None

    @property
    def ok(self) -> bool:
        """Whether the log is unchanged. Unfinished lines are not a problem."""
        return self.problem_count == 0


def verify(path: str | os.PathLike[str], *, last_hash: str | None = None) -> Verification:
    """Verify all files of the log at `path`. `last_hash` is a hash of it kept elsewhere."""
    name = Path(path)
    walk = _Walk(anchor=last_hash)
    with snapshot(name) as files:
        for file in files:
            walk.walk(file, is_newest=file.path == name)
    return walk.result(name, [file.path for file in files])


class _InvalidLines:
    """Consecutive lines that are not records."""

    def __init__(self) -> None:
        self.count = 0
        self.locations: list[_Location] = []
        self._bytes = bytearray()

    def add(self, location: _Location, line: bytes) -> None:
        self.count += 1
        if len(self.locations) < _MOST_FINDINGS:
            self.locations.append(location)
        if len(self._bytes) <= _LONGEST_TEAR:
            self._bytes += line

    def is_torn_before(self, record: AuditRecord, due_seq: int) -> bool:
        """Whether these are the unfinished line that `record` found and ended with a newline."""
        rest = bytes(self._bytes[:-1])
        return (
            self._bytes.endswith(b"\n")
            and record.torn_bytes == len(rest)
            and record.torn_sha256 == hashlib.sha256(rest).hexdigest()
            and _is_torn(rest, due_seq)
        )

    def is_torn_end(self, due_seq: int) -> bool:
        """Whether this is an unfinished line that no writer has found yet."""
        return not self._bytes.endswith(b"\n") and _is_torn(bytes(self._bytes), due_seq)


def _is_torn(rest: bytes, due_seq: int) -> bool:
    short = len(rest) <= _LONGEST_TEAR
    return short and all(is_unfinished(line, due_seq) for line in rest.split(b"\n"))


class _Walk:
    """The position in the chain, and the findings so far."""

    def __init__(self, anchor: str | None) -> None:
        self._anchor = anchor
        self._anchor_seq: int | None = None
        self._first: AuditRecord | None = None
        self._first_at: _Location | None = None
        self._last: AuditRecord | None = None
        self._records = 0
        self._oldest_seq: int | None = None
        self._invalid = _InvalidLines()
        self._problems: list[LogFinding] = []
        self._problem_count = 0
        self._torn: list[LogFinding] = []

    def walk(self, file: LogFile, *, is_newest: bool) -> None:
        for number, line in file.lines():
            location = (file.path, number)
            if record := decode(line):
                self._take(record, location)
            else:
                self._invalid.add(location, line)
        invalid, self._invalid = self._invalid, _InvalidLines()
        self._report(invalid, torn=is_newest and invalid.is_torn_end(self._due_seq))

    def result(self, path: Path, files: list[Path]) -> Verification:
        if files and path not in files:
            why = "the file is missing: a rotation was interrupted, or the file was removed"
            self._torn.append(LogFinding(path, 0, why))
        self._check_beginning()
        if self._anchor is not None and self._anchor_seq is None:
            self._problem((path, 0), f"no record has the hash {self._anchor}")
        last = self._last
        return Verification(
            files=len(files),
            records=self._records,
            first_seq=self._first.seq if self._first else 0,
            last_seq=last.seq if last else 0,
            last_hash=last.hash if last else GENESIS,
            problems=tuple(self._problems),
            problem_count=self._problem_count,
            torn=tuple(self._torn),
            anchor_seq=self._anchor_seq,
        )

    @property
    def _due_seq(self) -> int:
        return self._last.seq + 1 if self._last else 1

    # --- Records -----------------------------------------------------------------------------

    def _take(self, record: AuditRecord, location: _Location) -> None:
        invalid, self._invalid = self._invalid, _InvalidLines()
        torn = invalid.is_torn_before(record, self._due_seq)
        self._report(invalid, torn=torn)
        if record.torn_bytes is not None and not invalid.count:
            self._problem(
                location, f"the unfinished line before it ({record.torn_bytes} bytes) is gone"
            )
        self._check_link(record, location, reported=0 if torn else invalid.count)
        if record.event is Event.CUT:
            what = f"record {record.lost_seq} with the hash {record.lost_hash}"
            self._problem(location, f"a writer found {what} missing here, which it had written")
        if record.event is Event.ROTATED:
            self._oldest_seq = record.oldest_seq
        if record.hash == self._anchor:
            self._anchor_seq = record.seq
        if self._first is None:
            self._first, self._first_at = record, location
        self._last = record
        self._records += 1

    def _check_link(self, record: AuditRecord, location: _Location, *, reported: int) -> None:
        """`reported`: how many lines before it were reported as changed; those are not missing."""
        due = self._due_seq
        missing = record.seq - due
        if self._last is None and missing > 0:
            return  # `_check_beginning` handles this.
        if missing > 0 and missing != reported:
            self._problem(location, f"{_records(due, record.seq - 1)} missing before it")
        elif missing < 0:
            self._problem(location, f"found record {record.seq} where record {due} was expected")
        elif missing == 0 and record.prev != (self._last.hash if self._last else GENESIS):
            self._problem(location, "the previous record is not the one that was written")

    def _check_beginning(self) -> None:
        if self._first is None or self._first_at is None or self._first.seq <= 1:
            return
        begin = self._oldest_seq or 1
        if self._first.seq > begin:
            gone = _records(begin, self._first.seq - 1)
            self._problem(self._first_at, f"{gone} missing before it; no rotation dropped them")

    # --- Findings ----------------------------------------------------------------------------

    def _report(self, invalid: _InvalidLines, *, torn: bool) -> None:
        for location in invalid.locations:
            if not torn:
                self._problem(location, "the line is not a valid record")
            elif len(self._torn) < _MOST_FINDINGS:
                self._torn.append(
                    LogFinding(*location, "the line is unfinished: its writer was killed")
                )
        self._problem_count += 0 if torn else invalid.count - len(invalid.locations)

    def _problem(self, location: _Location, why: str) -> None:
        self._problem_count += 1
        if len(self._problems) < _MOST_FINDINGS:
            self._problems.append(LogFinding(*location, why))


def _records(first: int, last: int) -> str:
    return f"record {first} is" if first == last else f"records {first} to {last} are"
