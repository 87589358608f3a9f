"""Is the log what was written? The chain walked from its first record to its last.

Found: a line that was changed, removed, added, moved or repeated; a file that was removed, also
the oldest one, unless a rotation said that it would be dropped; records that a writer had written
and missed afterwards. A line that a killed writer left unfinished is told apart: it must be the
beginning of the record that was due, and the next writer keeps its length and hash in the chain.

Not found, by any chain that its writer can extend: records cut off at the very end, which no
living writer misses, and a log that was rewritten as a whole. Whoever keeps a hash of the log
elsewhere finds both: give it as `last_hash`.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kakoi.audit.files import LogFile, snapshot
from kakoi.audit.records import GENESIS, LONGEST_LINE, AuditRecord, Event, decode, is_unfinished

# All are counted; that many are told.
_MOST_FINDINGS: Final = 100
# A writer that is killed leaves one unfinished line; one killed while recovering, a second.
_LONGEST_TEAR: Final = 2 * LONGEST_LINE

_Place = tuple[Path, int]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something about a line of a file; line 0 is the file as a whole."""

    file: Path
    line: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What the walk along the chain found.

    `problems` and `torn` name the first hundred of each; `problem_count` counts all.
    `first_seq` is above 1 if rotation has dropped the records before it. `anchor_seq` is the
    record whose hash was given as `last_hash`.
    """

    files: int
    records: int
    first_seq: int
    last_seq: int
    last_hash: str
    problems: tuple[Finding, ...]
    problem_count: int
    torn: tuple[Finding, ...]
    anchor_seq: int | None

    @property
    def ok(self) -> bool:
        """Is everything as it was written? An unfinished line is no harm."""
        return self.problem_count == 0


def verify(path: str | os.PathLike[str], *, last_hash: str | None = None) -> Verification:
    """Walk the log at `path`, all of its files; `last_hash` is a hash of it kept elsewhere."""
    name = Path(path)
    walk = _Walk(anchor=last_hash)
    with snapshot(name) as files:
        for file in files:
            walk.walk(file, is_newest=file.path == name)
    return walk.result(name, [file.path for file in files])


class _Strange:
    """Lines, one behind the other, that are no records."""

    def __init__(self) -> None:
        self.count = 0
        self.places: list[_Place] = []
        self._bytes = bytearray()

    def add(self, place: _Place, line: bytes) -> None:
        self.count += 1
        if len(self.places) < _MOST_FINDINGS:
            self.places.append(place)
        if len(self._bytes) <= _LONGEST_TEAR:
            self._bytes += line

    def is_torn_before(self, record: AuditRecord, due_seq: int) -> bool:
        """Did `record` find an unfinished line there, this one, and put a newline behind it?"""
        rest = bytes(self._bytes[:-1])
        return (
            self._bytes.endswith(b"\n")
            and record.torn_bytes == len(rest)
            and record.torn_sha256 == hashlib.sha256(rest).hexdigest()
            and _is_torn(rest, due_seq)
        )

    def is_torn_end(self, due_seq: int) -> bool:
        """Is it an unfinished line that no writer has found yet?"""
        return not self._bytes.endswith(b"\n") and _is_torn(bytes(self._bytes), due_seq)


def _is_torn(rest: bytes, due_seq: int) -> bool:
    short = len(rest) <= _LONGEST_TEAR
    return short and all(is_unfinished(line, due_seq) for line in rest.split(b"\n"))


class _Walk:
    """Where the walk along the chain stands, and what it has met."""

    def __init__(self, anchor: str | None) -> None:
        self._anchor = anchor
        self._anchor_seq: int | None = None
        self._first: AuditRecord | None = None
        self._first_place: _Place | None = None
        self._last: AuditRecord | None = None
        self._records = 0
        self._oldest_seq: int | None = None
        self._strange = _Strange()
        self._problems: list[Finding] = []
        self._problem_count = 0
        self._torn: list[Finding] = []

    def walk(self, file: LogFile, *, is_newest: bool) -> None:
        for number, line in file.lines():
            place = (file.path, number)
            if record := decode(line):
                self._take(record, place)
            else:
                self._strange.add(place, line)
        strange, self._strange = self._strange, _Strange()
        self._tell(strange, torn=is_newest and strange.is_torn_end(self._due_seq))

    def result(self, path: Path, files: list[Path]) -> Verification:
        if files and path not in files:
            why = "it is missing: a rotation was cut short, or the file was removed"
            self._torn.append(Finding(path, 0, why))
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

    def _take(self, record: AuditRecord, place: _Place) -> None:
        strange, self._strange = self._strange, _Strange()
        torn = strange.is_torn_before(record, self._due_seq)
        self._tell(strange, torn=torn)
        if record.torn_bytes is not None and not strange.count:
            self._problem(
                place, f"the unfinished line before it ({record.torn_bytes} bytes) is gone"
            )
        self._check_link(record, place, told=0 if torn else strange.count)
        if record.event is Event.CUT:
            what = f"record {record.lost_seq} with the hash {record.lost_hash}"
            self._problem(place, f"here a writer missed {what}, which it had written")
        if record.event is Event.ROTATED:
            self._oldest_seq = record.oldest_seq
        if record.hash == self._anchor:
            self._anchor_seq = record.seq
        if self._first is None:
            self._first, self._first_place = record, place
        self._last = record
        self._records += 1

    def _check_link(self, record: AuditRecord, place: _Place, *, told: int) -> None:
        """`told`: how many lines before it were just told as changed; they are not missing too."""
        due = self._due_seq
        missing = record.seq - due
        if self._last is None and missing > 0:
            return  # `_check_beginning` knows more.
        if missing > 0 and missing != told:
            self._problem(place, f"{_records(due, record.seq - 1)} missing before it")
        elif missing < 0:
            self._problem(place, f"record {record.seq} stands where record {due} was due")
        elif missing == 0 and record.prev != (self._last.hash if self._last else GENESIS):
            self._problem(place, "the record before it is not the one that was written")

    def _check_beginning(self) -> None:
        if self._first is None or self._first_place is None or self._first.seq <= 1:
            return
        begin = self._oldest_seq or 1
        if self._first.seq > begin:
            gone = _records(begin, self._first.seq - 1)
            self._problem(self._first_place, f"{gone} missing before it; no rotation dropped them")

    # --- Findings ----------------------------------------------------------------------------

    def _tell(self, strange: _Strange, *, torn: bool) -> None:
        for place in strange.places:
            if not torn:
                self._problem(place, "the line is no record as it was written")
            elif len(self._torn) < _MOST_FINDINGS:
                self._torn.append(Finding(*place, "the line is unfinished: its writer was killed"))
        self._problem_count += 0 if torn else strange.count - len(strange.places)

    def _problem(self, place: _Place, why: str) -> None:
        self._problem_count += 1
        if len(self._problems) < _MOST_FINDINGS:
            self._problems.append(Finding(*place, why))


def _records(first: int, last: int) -> str:
    return f"record {first} is" if first == last else f"records {first} to {last} are"
