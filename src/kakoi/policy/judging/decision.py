"""Decision: the verdict on a command, and the findings that led to it."""

from dataclasses import dataclass

from kakoi.errors import (
    BlockedPatternError,
    CommandNotAllowedError,
    EmptyCommandError,
    SecurityError,
)
from kakoi.policy.rules import Verdict


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that stands against the command: where it is, which rule, why, and the way out."""

    rule: str
    verdict: Verdict
    start: int
    end: int
    subject: str
    reason: str
    hint: str = ""

    def as_dict(self) -> dict[str, object]:
        """For programs."""
        return {
            "rule": self.rule,
            "verdict": self.verdict.value,
            "start": self.start,
            "end": self.end,
            "reason": self.reason,
            "hint": self.hint,
        }


@dataclass(frozen=True, slots=True)
class Decision:
    """May `command` run? The findings are in the order of severity, then of the text."""

    command: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether it may run without anybody being asked."""
        return self.verdict is Verdict.ALLOW

    def error(self) -> SecurityError:
        """The exception that says what the decision says; its message names the first finding."""
        worst = self.findings[0]
        kinds: dict[str, tuple[type[SecurityError], str]] = {
            "empty-command": (EmptyCommandError, "Empty command"),
            "blocked-pattern": (BlockedPatternError, f"Blocked pattern: {worst.subject}"),
            "not-listed": (CommandNotAllowedError, f"Command not allowed: {worst.subject}"),
        }
        kind, fact = kinds.get(worst.rule, (SecurityError, f"Blocked command: {worst.subject}"))
        message = fact if worst.rule == "empty-command" else f"{fact}: {worst.reason}"
        details = {"rule": worst.rule, "command": self.command}
        return kind(message, decision=self, details=details, hint=worst.hint)


def _order(finding: Finding) -> tuple[int, int, str, int, str]:
    """Worst first, then by place; the rest only makes the order the same every time."""
    return (-finding.verdict.severity, finding.start, finding.rule, finding.end, finding.reason)


def decision_from(command: str, findings: list[Finding]) -> Decision:
    """Join findings: the most severe verdict wins, and each fact is told once."""
    ordered = sorted(set(findings), key=_order)
    verdict = ordered[0].verdict if ordered else Verdict.ALLOW
    return Decision(command, verdict, tuple(ordered))
