"""Replies of tools: results and errors as text and as data for programs.

The text is complete, because some clients show nothing else. Its last line says how the command
ended.
"""

import codecs
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import Any, Final

from kakoi._support.late import dataclass
from kakoi._support.text import shown
from kakoi.errors import KakoiError, SecurityError, UserCancelledError
from kakoi.policy.decide import Decision
from kakoi.policy.explanation import format_decision
from kakoi.results import ExecutionResult, Reason

_MOST_BLOCKED: Final = 5
_STDERR: Final = "[stderr]\n"
_MOST_NAMED: Final = 8
# Not the command's own exit code: the command is not to blame.
_SANDBOX_FAILURES: Final = frozenset((Reason.SANDBOX_LOST, Reason.NEVER_STARTED))


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """What a tool returns. `meta`: data for programs (`job_id`, `verdict`, …)."""

    text: str
    meta: Mapping[str, Any] = field(default_factory=dict)
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class ReplyOutput:
    """The first part of a command's output. `ended`: this is all of it."""

    data: bytes = b""
    ended: bool = True

    @property
    def text(self) -> str:
        """The output as text, without an incomplete character at the cut."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(self.data, final=self.ended)


def with_trailer(text: str, *parts: str) -> str:
    """Append one last line in brackets to the text."""
    return f"{text}{_break(text)}[{' | '.join(part for part in parts if part)}]"


def join_streams(stdout: str, stderr: str) -> tuple[str, dict[str, Any]]:
    """Join two streams into one text; also return which characters belong to which."""
    if not stderr:
        return stdout, {"stdout": [0, len(stdout)], "stderr": [len(stdout), len(stdout)]}
    head = f"{stdout}{_break(stdout)}{_STDERR}"
    text = head + stderr
    return text, {"stdout": [0, len(stdout)], "stderr": [len(head), len(text)]}


def _break(text: str) -> str:
    return "" if not text or text.endswith("\n") else "\n"


# --- Commands --------------------------------------------------------------------------------


def result_reply(
    job: str,
    result: ExecutionResult,
    stdout: ReplyOutput,
    stderr: ReplyOutput,
    left: Mapping[str, str] | None = None,
    unenforced: Sequence[str] = (),
    *,
    session: str = "",
) -> ToolResult:
    """Return the reply for a command that has ended. A non-zero exit is not a tool error.

    `left`: exported variables that the next command will not get, and why.
    `session`: the name that the client must present to continue from there.
    """
    text, spans = join_streams(stdout.text, stderr.text)
    cut = [
        f"{name} cut: {len(output.data)} of {total} bytes, read_output returns the rest"
        for name, output, total in (
            ("stdout", stdout, result.stdout_bytes),
            ("stderr", stderr, result.stderr_bytes),
        )
        if len(output.data) < total
    ]
    text = with_trailer(
        text + format_blocked(result, text),
        *format_ending(result),
        *cut,
        format_not_kept(left or {}),
        f"job {job}",
        session_note(session),
    )
    meta = result_meta(job, result, left, unenforced) | {"spans": spans, "truncated": bool(cut)}
    meta |= {"session": session} if session else {}
    return ToolResult(text=text, meta=meta, is_error=result.reason in _SANDBOX_FAILURES)


def format_blocked(result: ExecutionResult, text: str) -> str:
    """Return one line per refused connection, with the line to add to the list."""
    lines = [
        f"[{shown(str(each))}{f'; ask your user to add {each.line}' if each.line else ''}]\n"
        for each in result.blocked_connections[:_MOST_BLOCKED]
    ]
    if (more := len(result.blocked_connections) - _MOST_BLOCKED) > 0:
        lines.append(f"[{more} more connections were refused]\n")
    return f"{_break(text)}{''.join(lines)}" if lines else ""


def format_ending(result: ExecutionResult) -> list[str]:
    """Return how the command ended, for the last line."""
    parts = [f"exit code {result.exit_code}", f"{result.duration_ms} ms", str(result.reason)]
    if result.error:
        parts.append(shown(result.error)[:500])
    if result.disk_full:
        parts.append(f"the disk of {shown(result.disk_full)} is full")
    if result.leftovers_ended:
        parts.append(f"killed {result.leftovers_ended} or more leftover processes")
    return parts


def format_not_kept(left: Mapping[str, str]) -> str:
    """Return which variables the next command will not get, for the last line; else empty."""
    named = [f"{shown(name)[:64]} ({shown(why)[:200]})" for name, why in left.items()]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return f"not kept for the next command: {', '.join(named[:_MOST_NAMED])}{more}" if named else ""


def result_meta(
    job: str,
    result: ExecutionResult,
    left: Mapping[str, str] | None = None,
    unenforced: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the result of a command for programs. `unenforced`: limits that were not enforced."""
    return {
        "job_id": job,
        "running": False,
        "exit_code": result.exit_code,
        "duration_ms": result.duration_ms,
        "reason": str(result.reason),
        "signal": result.signal,
        "stdout_bytes": result.stdout_bytes,
        "stderr_bytes": result.stderr_bytes,
        "cwd": shown(result.cwd) if result.cwd else None,
        "cpu_ms": result.cpu_ms,
        "max_rss_bytes": result.max_rss_bytes,
        "error": shown(result.error),
        "blocked_connections": [asdict(each) for each in result.blocked_connections],
        "not_kept": sorted(shown(name)[:64] for name in left or ())[:_MOST_NAMED],
        "disk_full": shown(result.disk_full),
        "limits_unenforced": list(unenforced),
    }


def session_note(session: str) -> str:
    """Return how to continue the session, for the last line; empty if nothing is needed."""
    return f'session="{session}" continues from here' if session else ""


def running_reply(
    job: str, elapsed_ms: int, stdout: ReplyOutput, stderr: ReplyOutput, *, session: str = ""
) -> ToolResult:
    """Return the reply for a command that is still running. `session`: see `result_reply`."""
    text, spans = join_streams(stdout.text, stderr.text)
    more = f'read_output(job_id="{job}", offset={len(stdout.data)}, wait_ms=30000) continues'
    text = with_trailer(
        text, "still running", f"{elapsed_ms} ms", f"job {job}", more, session_note(session)
    )
    meta = {
        "job_id": job,
        "running": True,
        "elapsed_ms": elapsed_ms,
        "stdout_offset": len(stdout.data),
        "stderr_offset": len(stderr.data),
        "spans": spans,
    }
    meta |= {"session": session} if session else {}
    return ToolResult(text=text, meta=meta)


# --- Decisions and errors --------------------------------------------------------------------


def decision_reply(decision: Decision) -> ToolResult:
    """Return the reply with the decision about a command that was not run."""
    return ToolResult(text=format_decision(decision), meta=decision_meta(decision))


def decision_meta(decision: Decision) -> dict[str, Any]:
    """Return a decision for programs."""
    return {
        "verdict": decision.verdict.value,
        "findings": [
            {**finding.as_dict(), "reason": shown(finding.reason), "hint": shown(finding.hint)}
            for finding in decision.findings[:32]
        ],
    }


def error_reply(error: KakoiError | OSError) -> ToolResult:
    """Return the reply for an error, with its hint."""
    if isinstance(error, OSError) and not isinstance(error, KakoiError):
        reason = error.strerror or os.strerror(error.errno or 0)
        path = f"{shown(str(error.filename))}: " if error.filename else ""
        meta = {"code": "OS_ERROR", "errno": error.errno}
        return ToolResult(text=f"{path}{reason}", meta=meta, is_error=True)
    meta = {
        "code": error.code,
        "error": shown(str(error)),
        "hint": shown(error.hint),
    }
    found = error.decision if isinstance(error, SecurityError | UserCancelledError) else None
    if isinstance(found, Decision):
        text = format_decision(found)  # Exactly what `kakoi check` prints.
        if isinstance(error, UserCancelledError):
            text = f"{text}\n\n{shown(str(error))}"
        return ToolResult(text=text, meta=meta | decision_meta(found), is_error=True)
    hint = f"\n  hint: {shown(error.hint)}" if error.hint else ""
    return ToolResult(text=f"{shown(str(error))}{hint}", meta=meta, is_error=True)
