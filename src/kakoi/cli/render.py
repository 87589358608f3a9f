"""A decision for people at a terminal, in color if it has any."""

from typing import Final

import click

from kakoi.policy.decide import Decision
from kakoi.policy.rules import Verdict
from kakoi.policy.wording import in_words

_COLORS: Final = {Verdict.ALLOW: "green", Verdict.ASK: "yellow", Verdict.DENY: "red"}


def render(decision: Decision, *, color: bool) -> str:
    """The whole answer, compiler style."""
    return in_words(decision, _paint) if color else in_words(decision)


def _paint(text: str, verdict: Verdict) -> str:
    return click.style(text, fg=_COLORS[verdict], bold=True)
