"""Rules that were hit, as findings that point into the text."""

from collections.abc import Iterator
from contextlib import contextmanager

from kakoi.policy.judging.decision import Finding
from kakoi.policy.programs import Invocation
from kakoi.policy.rules import Policy, Rule, Verdict
from kakoi.policy.words import Word


class Report:
    """Collects findings. Within `pointing_at`, they all point at the word that holds the text."""

    def __init__(self, policy: Policy, text: str) -> None:
        self.policy = policy
        self.text = text
        self.findings: list[Finding] = []
        self.span: tuple[int, int] | None = None

    @contextmanager
    def pointing_at(self, word: Word) -> Iterator[None]:
        """Judge a text inside `word`: its own positions mean nothing outside."""
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

    def rule(self, rule: Rule, word: Word, subject: str) -> None:
        """Add the finding of a rule, with its subject filled in."""
        reason, hint = (text.replace("{subject}", subject) for text in (rule.reason, rule.hint))
        self.find(rule.id, rule.verdict, word, subject, reason, hint)

    def source(self, word: Word) -> str:
        """What the user wrote there; nothing inside a nested text, where positions mean another."""
        return "" if self.span else self.text[word.start : word.end]

    def hit(
        self, kind: str, word: Word, invocation: Invocation | None = None, subject: str = ""
    ) -> None:
        """Hold an effect against the rules."""
        if not subject and word.text is None:
            # What the user wrote says more than a word with its expansions left out.
            subject = self.source(word)
        for rule in self.policy.rules_by_effect.get(kind, ()):
            if rule.catches(kind, invocation):
                self.rule(rule, word, subject or word.shown)
