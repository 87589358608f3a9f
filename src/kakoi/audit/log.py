"""AuditLog: one record after the other, whoever writes, whoever is killed."""

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

from kakoi.audit.files import (
    LOCK_TIMEOUT_S,
    end_of,
    naming_errors,
    numbered,
    numbers,
    opened,
    writing,
)
from kakoi.audit.records import (
    GENESIS,
    OF_THE_LOG,
    AuditEntry,
    AuditRecord,
    Event,
    cleaned,
    seal,
)
from kakoi.errors import ConfigurationError
from kakoi.redact import redact

DEFAULT_MAX_BYTES: Final = 16 * 1024 * 1024
DEFAULT_KEEP: Final = 8

# Texts that come again and again (directory, labels) are cleaned once. Longer ones are not kept.
_REMEMBERED_TEXTS: Final = 256
_LONGEST_REMEMBERED: Final = 256


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the next record goes, and what it follows.

    `rest` is what stands behind the last record and is none; `lost`, what we once wrote and
    cannot find any more.
    """

    size: int
    record: AuditRecord | None
    rest: bytes = b""
    terminated: bool = True
    lost: AuditRecord | None = None

    @property
    def seq(self) -> int:
        return self.record.seq if self.record else 0

    @property
    def hash(self) -> str:
        return self.record.hash if self.record else GENESIS


class AuditLog:
    """Appends records to the file `path`, each chained to the one before it.

    Any number of threads and processes may append to one file: each append opens it, locks it,
    finds the true last record and chains onto that. What is appended is in the file when
    `append` returns and survives the death of this process; it is not flushed to the disk, so
    a power cut may take the last seconds. An append that cannot be done raises AuditError, and
    then nothing must run that it was to record.

    A file that has reached `max_bytes` is renamed to `.1` (and `.1` to `.2`, …), and of those
    `keep` are kept. `clock` gives the time; `secrets` are removed besides what `redact` knows.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        clock: Callable[[], datetime],
        max_bytes: int = DEFAULT_MAX_BYTES,
        keep: int = DEFAULT_KEEP,
        secrets: Iterable[str] = (),
        lock_timeout_s: float = LOCK_TIMEOUT_S,
    ) -> None:
        if max_bytes < 1 or keep < 1:
            raise ConfigurationError("an audit log needs `max_bytes` and `keep` above zero")
        self.path = Path(os.path.abspath(path))
        self._clock = clock
        self._max_bytes = max_bytes
        self._keep = keep
        self._lock_timeout_s = lock_timeout_s
        known = (secrets,) if isinstance(secrets, str) else tuple(secrets)
        self._redact = partial(redact, secrets=known)
        self._redact_again = lru_cache(_REMEMBERED_TEXTS)(self._redact)
        self._last: _Place | None = None

    def append(self, entry: AuditEntry) -> AuditRecord:
        """Record the entry, without its secrets, and return it as it stands in the log."""
        if entry.event in OF_THE_LOG:
            raise ConfigurationError(f"`{entry.event}` is recorded by the log itself")
        fields = cleaned(entry, self._clean)
        with naming_errors(self.path, "written"):
            while True:
                with writing(self.path, lock_timeout_s=self._lock_timeout_s) as fd:
                    end = self._end(fd)
                    if end.size < self._max_bytes or end.rest:
                        return self._write(fd, end, fields)
                    self._rotate(fd, end)

    def _clean(self, text: str) -> str:
        again = len(text) <= _LONGEST_REMEMBERED
        return self._redact_again(text) if again else self._redact(text)

    # --- The end of the log ------------------------------------------------------------------

    def _end(self, fd: int) -> _Place:
        """What the next record follows. Read again only if the file is not as we left it."""
        size = os.fstat(fd).st_size
        last = self._last
        if last and size >= last.size:
            mark = b'%b"}\n' % last.hash.encode("ascii")
            if os.pread(fd, len(mark), last.size - len(mark)) == mark:
                return last if size == last.size else self._read_end(fd, size)
        place = self._read_end(fd, size)
        # What we wrote is not where it was. If the file was put away, others have gone on from
        # there; if not, somebody cut the log.
        if last and (place.seq, place.hash) != (last.seq, last.hash) and place.seq <= last.seq:
            return replace(place, lost=last.record)
        return place

    def _read_end(self, fd: int, size: int) -> _Place:
        found = end_of(fd, size, self.path)
        record = found.record or self._last_put_away()
        return _Place(size, record, found.rest, found.terminated)

    def _last_put_away(self) -> AuditRecord | None:
        """The last record of the newest file that was put away."""
        for number in numbers(self.path)[:1]:
            with opened(self.path, number) as file:
                return end_of(file.stream.fileno(), file.size, file.path).record
        return None

    # --- Writing -----------------------------------------------------------------------------

    def _write(self, fd: int, end: _Place, fields: dict[str, Any]) -> AuditRecord:
        """Append, in one write: a fresh line, what is to be said about the log, the fields."""
        data = b"" if end.terminated else b"\n"
        seq, prev = end.seq, end.hash
        now = self._clock().astimezone(UTC).isoformat(timespec="milliseconds")
        now = now.replace("+00:00", "Z")
        for each in [*_about(end), fields]:
            seq += 1
            place = {"seq": seq, "time": now, "prev": prev}
            record, line = seal(each | place)
            prev = record.hash
            data += line
        self._put(fd, end.size, data)
        self._last = _Place(end.size + len(data), record)
        return record

    @staticmethod
    def _put(fd: int, size: int, data: bytes) -> None:
        try:
            if os.write(fd, data) < len(data):
                raise OSError(errno.ENOSPC, "only a part of a record fits")
        except OSError:
            # Leave no half of a line. If even that fails, the next writer deals with it.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)
            raise

    # --- Rotation ----------------------------------------------------------------------------

    def _rotate(self, fd: int, end: _Place) -> None:
        """Put the file away. Its last record says, before any is dropped, what will be kept.

        Killed in the middle, this leaves a gap in the numbers, or no file to write to: the next
        writer goes on from there.
        """
        present = numbers(self.path)
        # Each file up to the first free number moves up by one. If there is none, the last is lost.
        free = next((n for n in range(1, self._keep) if n not in present), self._keep)
        kept = [n for n in present if n <= self._keep and n != free]
        oldest = self._first_seq(kept[-1] if kept else 0)
        said = end.record
        if said is None or said.event is not Event.ROTATED or said.oldest_seq != oldest:
            closing = {"event": Event.ROTATED} | ({"oldest_seq": oldest} if oldest else {})
            self._write(fd, end, closing)
        for number in reversed(present):
            if number > self._keep:
                os.unlink(numbered(self.path, number))
        for number in range(free, 0, -1):
            os.rename(numbered(self.path, number - 1), numbered(self.path, number))

    def _first_seq(self, number: int) -> int | None:
        with opened(self.path, number) as file:
            record = file.first_record()
        return record.seq if record else None


def _about(end: _Place) -> list[dict[str, Any]]:
    """What the log itself has to say before it goes on."""
    said: list[dict[str, Any]] = []
    if end.rest:
        digest = hashlib.sha256(end.rest).hexdigest()
        torn = {"torn_bytes": len(end.rest), "torn_sha256": digest}
        said.append({"event": Event.RECOVERED} | torn)
    if end.lost:
        lost = {"lost_seq": end.lost.seq, "lost_hash": end.lost.hash}
        said.append({"event": Event.CUT} | lost)
    return said
