"""Results and errors as the content of a tool's answer.

The text is complete, because some clients show nothing else; its last line says how it ended. What
programs want to know is in `_meta`, under `kakoi`.
"""

import codecs
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from mcp_types import CallToolResult, TextContent

from kakoi.errors import KakoiError, SecurityError, UserCancelledError
from kakoi.policy.decide import Decision
from kakoi.policy.wording import in_words
from kakoi.printable import shown
from kakoi.results import ExecutionResult, Reason

META: Final = "kakoi"
_MOST_BLOCKED: Final = 5
_STDERR: Final = "[stderr]\n"
_MOST_NAMED: Final = 8
# No exit code of the command's own: it is not to blame.
_OURS: Final = frozenset((Reason.SANDBOX_LOST, Reason.NEVER_STARTED))


@dataclass(frozen=True, slots=True)
class Output:
    """The head of what a command wrote. `ended`: that is all of it."""

    data: bytes = b""
    ended: bool = True

    @property
    def text(self) -> str:
        """As text, without a character that the cut would break."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        return decoder.decode(self.data, final=self.ended)


def said(
    text: str, meta: Mapping[str, Any] | None = None, *, is_error: bool = False
) -> CallToolResult:
    """An answer of one text."""
    return CallToolResult(
        content=[TextContent(text=text)],
        is_error=is_error,
        _meta={META: dict(meta)} if meta else None,
    )


def with_trailer(text: str, *parts: str) -> str:
    """The text, and one last line about it."""
    return f"{text}{_break(text)}[{' | '.join(part for part in parts if part)}]"


def both(stdout: str, stderr: str) -> tuple[str, dict[str, Any]]:
    """Two streams in one text, and which characters of it are which."""
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
    stdout: Output,
    stderr: Output,
    left: Mapping[str, str] | None = None,
    unkept: Sequence[str] = (),
    *,
    session: str = "",
) -> CallToolResult:
    """A command that has ended. A non-zero exit is an answer, too.

    `left`: the variables that it exported and the next command will not have, and why.
    `session`: what the client has to present to go on from there.
    """
    text, spans = both(stdout.text, stderr.text)
    cut = [
        f"{name} cut: {len(output.data)} of {total} bytes, read_output has the rest"
        for name, output, total in (
            ("stdout", stdout, result.stdout_bytes),
            ("stderr", stderr, result.stderr_bytes),
        )
        if len(output.data) < total
    ]
    told = with_trailer(
        text + blocked_lines(result, text),
        *ending(result),
        *cut,
        not_kept(left or {}),
        f"job {job}",
        how_to_go_on(session),
    )
    meta = result_meta(job, result, left, unkept) | {"spans": spans, "truncated": bool(cut)}
    meta |= {"session": session} if session else {}
    return said(told, meta, is_error=result.reason in _OURS)


def blocked_lines(result: ExecutionResult, text: str) -> str:
    """What the command could not reach, one in a line after its output, and who can change that."""
    lines = [
        f"[{shown(str(each))}{f'; ask your user to add {each.line}' if each.line else ''}]\n"
        for each in result.blocked_connections[:_MOST_BLOCKED]
    ]
    if (more := len(result.blocked_connections) - _MOST_BLOCKED) > 0:
        lines.append(f"[{more} more connections were refused]\n")
    return f"{_break(text)}{''.join(lines)}" if lines else ""


def ending(result: ExecutionResult) -> list[str]:
    """How it ended, for a trailer."""
    parts = [f"exit code {result.exit_code}", f"{result.duration_ms} ms", str(result.reason)]
    if result.error:
        parts.append(shown(result.error)[:500])
    if result.disk_full:
        parts.append(f"no room is left on the disk of {shown(result.disk_full)}")
    if result.leftovers_ended:
        parts.append(f"ended {result.leftovers_ended} or more processes that it left behind")
    return parts


def not_kept(left: Mapping[str, str]) -> str:
    """Which variables the next command will not have, for a trailer; empty if it has them all."""
    named = [f"{shown(name)[:64]} ({shown(why)[:200]})" for name, why in left.items()]
    more = f" and {len(named) - _MOST_NAMED} more" if len(named) > _MOST_NAMED else ""
    return f"not kept for the next command: {', '.join(named[:_MOST_NAMED])}{more}" if named else ""


def result_meta(
    job: str,
    result: ExecutionResult,
    left: Mapping[str, str] | None = None,
    unkept: Sequence[str] = (),
) -> dict[str, Any]:
    """What came of a command, for programs. `unkept`: the limits that did not hold."""
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
        "limits_not_kept": list(unkept),
    }


def how_to_go_on(session: str) -> str:
    """What to present with the next command, for a trailer; empty if that is nothing."""
    return f'session="{session}" goes on from here' if session else ""


def running_reply(
    job: str, elapsed_ms: int, stdout: Output, stderr: Output, *, session: str = ""
) -> CallToolResult:
    """A command that goes on. `session`: as in `result_reply`."""
    text, spans = both(stdout.text, stderr.text)
    more = f'read_output(job_id="{job}", offset={len(stdout.data)}, wait_ms=30000) goes on'
    told = with_trailer(
        text, "still running", f"{elapsed_ms} ms", f"job {job}", more, how_to_go_on(session)
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
    return said(told, meta)


# --- Decisions and errors --------------------------------------------------------------------


def decision_reply(decision: Decision) -> CallToolResult:
    """What the policy says about a command that was not run."""
    return said(in_words(decision), decision_meta(decision))


def decision_meta(decision: Decision) -> dict[str, Any]:
    """A decision, for programs."""
    return {
        "verdict": decision.verdict.value,
        "findings": [
            {**finding.as_dict(), "reason": shown(finding.reason), "hint": shown(finding.hint)}
            for finding in decision.findings[:32]
        ],
    }


def error_reply(error: KakoiError | OSError, decision: Decision | None = None) -> CallToolResult:
    """Why nothing came of it: the reason, and the way out. `decision`: what was asked about."""
    if isinstance(error, OSError) and not isinstance(error, KakoiError):
        told = error.strerror or os.strerror(error.errno or 0)
        path = f"{shown(str(error.filename))}: " if error.filename else ""
        return said(f"{path}{told}", {"code": "OS_ERROR", "errno": error.errno}, is_error=True)
    meta: dict[str, Any] = {
        "code": error.code,
        "error": shown(str(error)),
        "hint": shown(error.hint),
    }
    found = error.decision if isinstance(error, SecurityError) else decision
    if isinstance(found, Decision):
        text = in_words(found)  # To the letter what `kakoi check` says.
        if isinstance(error, UserCancelledError):
            text = f"{text}\n\n{shown(str(error))}"
        return said(text, meta | decision_meta(found), is_error=True)
    hint = f"\n  hint: {shown(error.hint)}" if error.hint else ""
    return said(f"{shown(str(error))}{hint}", meta, is_error=True)
