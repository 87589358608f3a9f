"""The audit log from settings, and records of verdicts that need no sandbox."""

import os
import pwd
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kakoi._support.user_folders import state_folder
from kakoi.audit import AuditLog, decision_entry
from kakoi.policy.decide import Decision

if TYPE_CHECKING:
    from kakoi.settings.model import Settings


def record_verdict(decision: Decision, audit_file: str, *, cwd: str, session: str) -> None:
    """Record a decision about a command that another program runs or refuses."""
    entry = decision_entry(
        decision, id=os.urandom(8).hex(), cwd=cwd, session=session, user=user_name()
    )
    audit_log(Path(audit_file) if audit_file else None).append(entry)


def audit_log(file: Path | None) -> AuditLog:
    """Open the audit log: `file`, else the one named by KAKOI_AUDIT_FILE, else the default."""
    named = os.environ.get("KAKOI_AUDIT_FILE")
    path = file or (Path(named) if named else default_audit_file(os.environ))
    return AuditLog(path, clock=now)


def audit_file(settings: "Settings") -> Path:
    """Return the log file that the settings name, or the default."""
    return Path(settings.audit.file) if settings.audit.file else default_audit_file(os.environ)


def default_audit_file(environ: Mapping[str, str]) -> Path:
    """Return the default log file."""
    return state_folder(environ) / "audit.jsonl"


def now() -> datetime:
    """Return the current time in UTC."""
    return datetime.now(UTC)


def user_name() -> str:
    """Return the name of the current user."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
