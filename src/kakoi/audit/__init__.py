"""WHAT HAPPENED?  Append-only JSON lines, hash-chained, without secrets; never a command's output.

`AuditLog` writes; `read`, `recent`, `tail`, `find` and `Follower` read; `verify` checks that the
log was not changed. `verification.py` documents what it can and cannot detect.
"""

from kakoi.audit.log import AuditLog
from kakoi.audit.reader import Follower, find, read, recent, tail
from kakoi.audit.records import AuditEntry, AuditRecord, Event, decision_entry, encode, end_entry
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
