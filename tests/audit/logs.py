"""Shared by the tests of the audit log: a clock, entries, and writers in separate processes."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from pathlib import Path

from kakoi.audit import AuditEntry, AuditLog, Event

PATIENCE_S = 120
# The fields of an entry that can contain untrusted text.
TEXTS = [each.name for each in fields(AuditEntry) if each.type is str and each.name != "id"]
ROOT = Path(__file__).resolve().parent.parent.parent


class Clock:
    """Advances by a millisecond on each call."""

    def __init__(self) -> None:
        self._now = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

    def __call__(self) -> datetime:
        self._now += timedelta(milliseconds=1)
        return self._now


class Stopwatch:
    """Stands still, so that a busy machine is not taken for a slow disk, unless it is moved."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def log_at(
    path: Path,
    *,
    max_bytes: int = 1_000_000,
    keep: int = 5,
    secrets: Sequence[str] = (),
    clock: Callable[[], datetime] | None = None,
    stopwatch: Callable[[], float] | None = None,
) -> AuditLog:
    return AuditLog(
        path,
        clock=clock or Clock(),
        max_bytes=max_bytes,
        keep=keep,
        secrets=secrets,
        lock_timeout_s=60,
        stopwatch=stopwatch or Stopwatch(),
    )


def started(number: int = 1, command: str = "ls") -> AuditEntry:
    return AuditEntry(event=Event.STARTED, id=f"{number:04x}", command=command, cwd="/srv/app")


def filled(path: Path, count: int) -> AuditLog:
    """Return a log with `count` records."""
    log = log_at(path)
    for number in range(1, count + 1):
        log.append(started(number, f"echo {number}"))
    return log


# Appends COUNT records to PATH and reports each on stdout.
WRITER = """
import sys
from datetime import UTC, datetime
from kakoi.audit import AuditEntry, AuditLog, Event
path, count, max_bytes, keep, name = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
log = AuditLog(path, clock=lambda: datetime.now(UTC), max_bytes=max_bytes, keep=keep, lock_timeout_s=60)
for number in range(count):
    entry = AuditEntry(event=Event.STARTED, id=f"{name}-{number:x}", command="x" * (number % 97))
    record = log.append_now(entry) or log.append(entry)
    print(record.id, flush=True)
"""


def start_writer(
    path: Path, count: int, *, name: str, max_bytes: int = 1_000_000, keep: int = 5
) -> subprocess.Popen[str]:
    arguments = [str(path), str(count), str(max_bytes), str(keep), name]
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, *arguments], stdout=subprocess.PIPE, text=True
    )


def run_python(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
