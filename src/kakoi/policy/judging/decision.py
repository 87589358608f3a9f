"""Decision: the verdict on a command, and the findings that led to it; Report collects them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from kakoi._support.late import dataclass
from kakoi.errors import (
    BlockedPatternError,
    CommandNotAllowedError,
    EmptyCommandError,
    SecurityError,
)
from kakoi.policy.effects.programs import Invocation
from kakoi.policy.parsing.words import Word
from kakoi.policy.rules import Policy, Rule, Verdict

DecisionKind = Literal["command", "file access"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One objection to the command: where it is, which rule, the reason, and what to do instead."""

    rule: str
    verdict: Verdict
    start: int
    end: int
    subject: str
    reason: str
    hint: str = ""

    def as_dict(self) -> dict[str, object]:
        """Return the finding as data for JSON."""
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
    """May `command` run? The findings are ordered by severity, then by position in the text.

    `kind`: for a file access, `command` is a text that describes it.
    `cwd`: where the command would start.
    """

    command: str
    verdict: Verdict
    findings: tuple[Finding, ...] = ()
    kind: DecisionKind = "command"
    cwd: str = ""

    @property
    def allowed(self) -> bool:
        """Whether it may run without asking."""
        return self.verdict is Verdict.ALLOW

    def error(self) -> SecurityError:
        """Return the exception for this decision; its message names the first finding."""
        worst = self.findings[0]
        kinds: dict[str, tuple[type[SecurityError], str]] = {
            "empty-command": (EmptyCommandError, "Empty command"),
            "blocked-pattern": (BlockedPatternError, f"Blocked pattern: {worst.subject}"),
            "not-listed": (CommandNotAllowedError, f"Command not allowed: {worst.subject}"),
        }
        kind, fact = kinds.get(worst.rule, (SecurityError, f"Blocked {self.kind}: {worst.subject}"))
        message = fact if worst.rule == "empty-command" else f"{fact}: {worst.reason}"
        details = {"rule": worst.rule, "command": self.command}
        return kind(message, decision=self, details=details, hint=worst.hint)


def _order(finding: Finding) -> tuple[int, int, str, int, str]:
    """Worst first, then by position; the rest only makes the order deterministic."""
    return (-finding.verdict.severity, finding.start, finding.rule, finding.end, finding.reason)


def decision_from(
    command: str, findings: list[Finding], kind: DecisionKind = "command", *, cwd: str = ""
) -> Decision:
    """Join findings: the most severe verdict wins, and duplicates are dropped."""
    ordered = sorted(set(findings), key=_order)
    verdict = ordered[0].verdict if ordered else Verdict.ALLOW
    return Decision(command, verdict, tuple(ordered), kind, cwd)


class Report:
    """Collects findings. Inside `pointing_at`, all of them point at the word with the text.

    `confined`: a sandbox stands behind the command.
    """

    def __init__(self, policy: Policy, text: str, *, confined: bool = False) -> None:
        self.policy = policy
        self.text = text
        self.confined = confined
        self.findings: list[Finding] = []
        self.span: tuple[int, int] | None = None

    @contextmanager
    def pointing_at(self, word: Word) -> Iterator[None]:
        """Judge a text inside `word`: positions in that text mean nothing outside it."""
        before = self.span
        self.span = before or (word.start, word.end)
        yield
        self.span = before

    def find(
        self, rule: str, verdict: Verdict, word: Word, subject: str, reason: str, hint: str
    ) -> None:
        """Add a finding at `word`."""
        start, end = self.span or (word.start, word.end)
        self.findings.append(Finding(rule, verdict, start, end, subject, reason, hint))

    def rule(self, rule: Rule, word: Word, subject: str) -> Verdict:
        """Add the finding of a rule, with its subject filled in, and return its verdict."""
        reason, hint = (text.replace("{subject}", subject) for text in (rule.reason, rule.hint))
        verdict = rule.verdict_where(confined=self.confined)
        self.find(rule.id, verdict, word, subject, reason, "" if verdict is Verdict.ALLOW else hint)
        return verdict

    def unreadable(self, word: Word, reason: str) -> None:
        """Add that a text inside the command cannot be read."""
        verdict = self.policy.unreadable
        hint = "Write the inner command in plain shell, or run it without the wrapper."
        hint = hint if verdict is Verdict.DENY else ""
        reason = f"inside it, {reason}"
        self.find("unreadable", verdict, word, word.shown[:40], reason, hint)

    def source(self, word: Word) -> str:
        """Return the source text of `word`; empty inside a nested text: its positions differ."""
        return "" if self.span else self.text[word.start : word.end]

    def hit(
        self, kind: str, word: Word, invocation: Invocation | None = None, subject: str = ""
    ) -> None:
        """Check an effect against the rules."""
        if not subject and word.text is None:
            # The source text says more than a word without its expansions.
            subject = self.source(word)
        for rule in self.policy.rules_by_effect.get(kind, ()):
            if rule.catches(kind, invocation):
                self.rule(rule, word, subject or word.shown)
