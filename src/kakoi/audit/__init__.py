"""WHAT HAPPENED?  Append-only JSON lines, hash-chained, without secrets; never a command's output.

`AuditLog` writes; `read`, `recent`, `tail`, `find` and `Follower` read; `verify` checks that the
log was not changed. `verification.py` documents what it can and cannot detect.
"""

from kakoi.audit.log import AuditLog
from kakoi.audit.reader import Follower, find, read, recent, tail
from kakoi.audit.records import AuditEntry, AuditRecord, Event, decision_entry, encode, end_entry

# Type checkers take this name for true; few commands verify the log.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from kakoi.audit.verification import LogFinding, Verification, verify

__all__ = [
    "AuditEntry",
    "AuditLog",
    "AuditRecord",
    "Event",
    "Follower",
    "LogFinding",
    "Verification",
    "decision_entry",
    "encode",
    "end_entry",
    "find",
    "read",
    "recent",
    "tail",
    "verify",
]


def __getattr__(name: str) -> object:
    if name not in ("LogFinding", "Verification", "verify"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from kakoi.audit import verification

    return getattr(verification, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
