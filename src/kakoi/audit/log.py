"""AuditLog: appends records one after another, with many writers, even if some are killed."""

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi._support.redact import redact
from kakoi._support.sha256 import sha256
from kakoi.audit.files import (
    LOCK_TIMEOUT_S,
    open_for_append,
    open_if_free,
    open_log_file,
    read_end,
    rotated_numbers,
    rotated_path,
    unlock_and_close,
    wrap_os_errors,
)
from kakoi.audit.records import (
    GENESIS,
    LOG_EVENTS,
    AuditEntry,
    AuditRecord,
    Event,
    clean_fields,
    seal,
)
from kakoi.errors import ConfigurationError

DEFAULT_MAX_BYTES: Final = 16 * 1024 * 1024
DEFAULT_KEEP: Final = 8

# Texts that recur (directory, labels) are redacted once. Longer ones are not cached.
_REMEMBERED_TEXTS: Final = 256
_LONGEST_REMEMBERED: Final = 256

# What `append_now` leaves to `append`: longer texts, which take time to redact, and the next
# records after one that took this long, because the disk is slow.
_LONGEST_NOW: Final = 1024
_SLOW_S: Final = 0.02
_RECORDS_AFTER_SLOW: Final = 100
_texts_of: Final = attrgetter(
    "command", "cwd", "sandbox", "target", "reason", "error", "session", "task", "user"
)


@dataclass(frozen=True, slots=True)
class _LogEnd:
    """Where the next record goes, and which record it follows.

    `rest`: bytes after the last record that are not a record. `lost`: a record that we wrote and
    that is no longer there.
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

    Any number of threads and processes can append to one file: each append opens it, locks it,
    finds the actual last record and chains onto it. When `append` returns, the record is in the
    file and survives the death of this process. It is not flushed to disk, so a power cut can
    lose the last seconds. If an append fails, it raises AuditError, and the command that it was
    to record must not run.

    A file that reaches `max_bytes` is renamed to `.1` (and `.1` to `.2`, …); `keep` of those are
    kept. `clock` returns the time, `stopwatch` seconds to tell whether the disk is slow.
    `secrets` are removed in addition to what `redact` finds.
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
        stopwatch: Callable[[], float] = time.monotonic,
    ) -> None:
        if max_bytes < 1 or keep < 1:
            raise ConfigurationError("`max_bytes` and `keep` of an audit log must be positive")
        self.path = Path(os.path.abspath(path))
        self._clock = clock
        self._stopwatch = stopwatch
        self._max_bytes = max_bytes
        self._keep = keep
        self._lock_timeout_s = lock_timeout_s
        known = (secrets,) if isinstance(secrets, str) else tuple(secrets)
        self._redact = partial(redact, secrets=known)
        self._redact_again = lru_cache(_REMEMBERED_TEXTS)(self._redact)
        self._last: _LogEnd | None = None
        self._left_to_append = 0

    def append(self, entry: AuditEntry) -> AuditRecord:
        """Record the entry without its secrets, and return the record as written."""
        fields = self._fields(entry)
        with wrap_os_errors(self.path, "written"):
            while True:
                with open_for_append(self.path, lock_timeout_s=self._lock_timeout_s) as fd:
                    end = self._end(fd)
                    if end.size < self._max_bytes or end.rest:
                        return self._write(fd, end, fields)
                    self._rotate(fd, end)

    def append_now(self, entry: AuditEntry) -> AuditRecord | None:
        """Like `append`, but return None, with nothing written, if that could take long.

        For an event loop: this takes less time than handing `append` to a thread. It gives up if
        the texts are long, if another writer has the lock or has written since our last record,
        if it is time to rotate, if the disk was slow lately, or if anything fails.
        """
        if _text_size(entry) > _LONGEST_NOW:
            return None
        if self._left_to_append > 0:
            self._left_to_append -= 1
            return None
        began = self._stopwatch()
        fields = self._fields(entry)
        opened = open_if_free(self.path)
        if opened is None:
            return None
        fd, size = opened
        record = None
        try:
            last = self._last
            if last and size == last.size < self._max_bytes and _is_in(fd, last):
                record = self._write(fd, last, fields)
        except OSError:
            pass
        finally:
            unlock_and_close(fd)
        if self._stopwatch() - began > _SLOW_S:
            self._left_to_append = _RECORDS_AFTER_SLOW
        return record

    def _fields(self, entry: AuditEntry) -> dict[str, Any]:
        if entry.event in LOG_EVENTS:
            raise ConfigurationError(f"only the log itself can record `{entry.event}`")
        return clean_fields(entry, self._clean)

    def _clean(self, text: str) -> str:
        again = len(text) <= _LONGEST_REMEMBERED
        return self._redact_again(text) if again else self._redact(text)

    # --- The end of the log ------------------------------------------------------------------

    def _end(self, fd: int) -> _LogEnd:
        """Return what the next record follows. Reads the file only if it has changed."""
        size = os.fstat(fd).st_size
        last = self._last
        if last and size >= last.size and _is_in(fd, last):
            return last if size == last.size else self._read_end(fd, size)
        end = self._read_end(fd, size)
        # Our last record is not where it was. If the file was rotated, others have continued
        # from it; if not, the log was truncated.
        if last and (end.seq, end.hash) != (last.seq, last.hash) and end.seq <= last.seq:
            return replace(end, lost=last.record)
        return end

    def _read_end(self, fd: int, size: int) -> _LogEnd:
        found = read_end(fd, size, self.path)
        record = found.record or self._last_rotated_record()
        return _LogEnd(size, record, found.rest, found.terminated)

    def _last_rotated_record(self) -> AuditRecord | None:
        """Return the last record of the newest rotated file."""
        for number in rotated_numbers(self.path)[:1]:
            with open_log_file(self.path, number) as file:
                return read_end(file.stream.fileno(), file.size, file.path).record
        return None

    # --- Writing -----------------------------------------------------------------------------

    def _write(self, fd: int, end: _LogEnd, fields: dict[str, Any]) -> AuditRecord:
        """Append in one write: a newline if needed, records about the log itself, the fields."""
        data = b"" if end.terminated else b"\n"
        seq, prev = end.seq, end.hash
        now = self._clock().astimezone(UTC).isoformat(timespec="milliseconds")
        now = now.replace("+00:00", "Z")
        for each in (*_about(end), fields):
            seq += 1
            position = {"seq": seq, "time": now, "prev": prev}
            record, line = seal(each | position)
            prev = record.hash
            data += line
        self._put(fd, end.size, data)
        self._last = _LogEnd(end.size + len(data), record)
        return record

    @staticmethod
    def _put(fd: int, size: int, data: bytes) -> None:
        try:
            if os.write(fd, data) < len(data):
                raise OSError(errno.ENOSPC, "only part of the record fits")
        except OSError:
            # Leave no partial line. If even that fails, the next writer deals with it.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, size)
            raise

    # --- Rotation ----------------------------------------------------------------------------

    def _rotate(self, fd: int, end: _LogEnd) -> None:
        """Rotate. Before any file is dropped, the last record says what will be kept.

        If killed in the middle, this leaves a gap in the numbers, or no current file. The next
        writer continues from there.
        """
        present = rotated_numbers(self.path)
        # Files up to the first free number move up by one. If none is free, the oldest is dropped.
        free = next((n for n in range(1, self._keep) if n not in present), self._keep)
        kept = [n for n in present if n <= self._keep and n != free]
        oldest = self._first_seq(kept[-1] if kept else 0)
        last = end.record
        if last is None or last.event is not Event.ROTATED or last.oldest_seq != oldest:
            closing = {"event": Event.ROTATED} | ({"oldest_seq": oldest} if oldest else {})
            self._write(fd, end, closing)
        for number in reversed(present):
            if number > self._keep:
                os.unlink(rotated_path(self.path, number))
        for number in range(free, 0, -1):
            os.rename(rotated_path(self.path, number - 1), rotated_path(self.path, number))

    def _first_seq(self, number: int) -> int | None:
        with open_log_file(self.path, number) as file:
            record = file.first_record()
        return record.seq if record else None


def _text_size(entry: AuditEntry) -> int:
    return sum(map(len, (*_texts_of(entry), *entry.rules)))


def _is_in(fd: int, last: _LogEnd) -> bool:
    """Whether the record that ended the log is still where it was."""
    mark = b'%b"}\n' % last.hash.encode("ascii")
    return os.pread(fd, len(mark), last.size - len(mark)) == mark


def _about(end: _LogEnd) -> list[dict[str, Any]]:
    """Return the records about the log itself that come before the next one."""
    records: list[dict[str, Any]] = []
    if end.rest:
        digest = sha256(end.rest).hexdigest()
        torn = {"torn_bytes": len(end.rest), "torn_sha256": digest}
        records.append({"event": Event.RECOVERED} | torn)
    if end.lost:
        lost = {"lost_seq": end.lost.seq, "lost_hash": end.lost.hash}
        records.append({"event": Event.CUT} | lost)
    return records
