"""Reads records from the files of a log. Invalid lines are skipped; `verify` reports them."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from kakoi.audit.files import LogFile, snapshot
from kakoi.audit.records import AuditRecord, decode

# More than the size of most records. `tail` first reads this far back.
_BYTES_A_RECORD: Final = 1024
# How many times further back it reads if that was not enough.
_FURTHER: Final = 8
RecordFilter = Callable[[AuditRecord], bool]


def read(path: str | os.PathLike[str]) -> Iterator[AuditRecord]:
    """Yield every record written so far, oldest first, across all files of the log."""
    with snapshot(Path(path)) as files:
        for file in files:
            yield from _records(file)


def tail(
    path: str | os.PathLike[str], count: int, wanted: RecordFilter | None = None
) -> list[AuditRecord]:
    """Return the last `count` records (for which `wanted` is true), oldest first."""
    with snapshot(Path(path)) as files:
        return _last_records(files, count, wanted)


def find(path: str | os.PathLike[str], id_prefix: str) -> Iterator[AuditRecord]:
    """Yield the records of every command whose id starts with `id_prefix`, oldest first."""
    sign = f',"id":"{id_prefix}'.encode("utf-8", "replace")
    with snapshot(Path(path)) as files:
        for file in files:
            for _, line in file.lines():
                if sign in line and (record := decode(line)):
                    yield record


def recent(path: str | os.PathLike[str], most_bytes: int) -> Iterator[AuditRecord]:
    """Yield the records in the last `most_bytes` of the log, oldest first."""
    with snapshot(Path(path)) as files:
        left, starts = most_bytes, []
        for file in reversed(files):
            if left > 0:
                starts.append((file, max(0, file.size - left)))
                left -= file.size
        for file, start in reversed(starts):
            yield from _records(file, start)


class Follower:
    """Returns the last `count` records on the first poll, and new records on later polls."""

    def __init__(self, path: str | os.PathLike[str], count: int) -> None:
        self._path = Path(path)
        self._count = count
        self._seq = self._inode = self._offset = 0
        self._was_asked = False

    def poll(self) -> Iterator[AuditRecord]:
        """Yield new records, even across rotations; nothing while there is no log."""
        is_first, self._was_asked = not self._was_asked, True
        with snapshot(self._path) as files:
            if not files:
                return
            newest = files[-1]
            inode = os.fstat(newest.stream.fileno()).st_ino
            if is_first:
                last = _last_records(files, max(1, self._count))
                self._seq = last[-1].seq if last else 0
                yield from last[-self._count :] if self._count else ()
            elif inode == self._inode and newest.size >= self._offset:
                yield from self._new(newest, self._offset)
            else:
                for file in self._unread(files):
                    yield from self._new(file)
            self._inode, self._offset = inode, newest.size

    def _unread(self, files: Sequence[LogFile]) -> Sequence[LogFile]:
        """Return the files from where we stopped on; all of them if the log was replaced."""
        last = _last_records(files, 1)
        if last and last[0].seq < self._seq:
            self._seq = 0
        for number in reversed(range(len(files))):
            first = files[number].first_record()
            if first and first.seq <= self._seq + 1:
                return files[number:]
        return files

    def _new(self, file: LogFile, start: int = 0) -> Iterator[AuditRecord]:
        for record in _records(file, start):
            if record.seq > self._seq:
                self._seq = record.seq
                yield record


def _last_records(
    files: Sequence[LogFile], count: int, wanted: RecordFilter | None = None
) -> list[AuditRecord]:
    found: deque[AuditRecord] = deque()
    for file in reversed(files):
        if len(found) < count:
            found.extendleft(reversed(_last_of(file, count - len(found), wanted)))
    return list(found)


def _last_of(file: LogFile, count: int, wanted: RecordFilter | None) -> deque[AuditRecord]:
    size = (count + 1) * _BYTES_A_RECORD
    while True:
        start = max(0, file.size - size)
        found = deque(filter(wanted or _every, _records(file, start)), maxlen=count)
        if len(found) == count or start == 0:
            return found
        size *= _FURTHER


def _every(_record: AuditRecord) -> bool:
    return True


def _records(file: LogFile, start: int = 0) -> Iterator[AuditRecord]:
    for _, line in file.lines(start):
        if record := decode(line):
            yield record
