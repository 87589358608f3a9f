"""Settings → the record: where it is, whose it is, and verdicts on what others run. No sandbox."""

import os
import pwd
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kakoi.audit import AuditLog, judged
from kakoi.homes import state_folder
from kakoi.policy.decide import Decision

if TYPE_CHECKING:
    from kakoi.config.settings import Settings


def record_verdict(decision: Decision, audit_file: Path | None, *, cwd: str, session: str) -> None:
    """Record a decision about a command that somebody else runs, or does not."""
    entry = judged(decision, id=secrets.token_hex(8), cwd=cwd, session=session, user=user_name())
    audit_log(audit_file).append(entry)


def audit_log(file: Path | None) -> AuditLog:
    """The log: the file that is named, by the settings or the environment, or the usual one."""
    named = os.environ.get("KAKOI_AUDIT_FILE")
    path = file or (Path(named) if named else default_audit_file(os.environ))
    return AuditLog(path, clock=now)


def audit_file(settings: "Settings") -> Path:
    """Where the log is, as the settings say."""
    return Path(settings.audit.file) if settings.audit.file else default_audit_file(os.environ)


def default_audit_file(environ: Mapping[str, str]) -> Path:
    """Where the log is if nobody says otherwise."""
    return state_folder(environ) / "audit.jsonl"


def now() -> datetime:
    """The time of day."""
    return datetime.now(UTC)


def user_name() -> str:
    """Who we are."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
