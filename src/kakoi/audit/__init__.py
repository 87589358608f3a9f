"""WHAT HAPPENED?  Append-only JSON lines, hash-chained, without secrets; never a command's output.

`AuditLog` writes, `read`, `tail`, `find` and `Follower` read, `verify` says whether the log is
what was written. `verifying.py` says what it can and cannot find.
"""

from kakoi.audit.log import AuditLog
from kakoi.audit.reading import Follower, find, read, tail
from kakoi.audit.records import AuditEntry, AuditRecord, Event, encode, ended, judged
from kakoi.audit.verifying import Finding, Verification, verify

__all__ = [
    "AuditEntry",
    "AuditLog",
    "AuditRecord",
    "Event",
    "Finding",
    "Follower",
    "Verification",
    "encode",
    "ended",
    "find",
    "judged",
    "read",
    "tail",
    "verify",
]
