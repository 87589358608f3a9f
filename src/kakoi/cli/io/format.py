"""Decisions, sizes and ages as text for people."""

from typing import Final

from kakoi.policy import explanation
from kakoi.policy.decide import Decision
from kakoi.policy.rules import Verdict

EXIT_STATUS: Final = {Verdict.ALLOW: 0, Verdict.ASK: 3, Verdict.DENY: 126}
# Green, yellow and red, each in bold.
_COLORS: Final = {Verdict.ALLOW: 32, Verdict.ASK: 33, Verdict.DENY: 31}
# Seconds per unit, smallest first.
TIME_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def format_decision(decision: Decision, *, color: bool) -> str:
    """The whole decision, in the style of a compiler error."""
    if color:
        return explanation.format_decision(decision, _paint)
    return explanation.format_decision(decision)


def _paint(text: str, verdict: Verdict) -> str:
    return f"\x1b[{_COLORS[verdict]}m\x1b[1m{text}\x1b[0m"


def format_age(seconds: float) -> str:
    """A duration in its biggest unit: `3h`."""
    for unit, length in reversed(TIME_UNITS.items()):
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return "0s"


def format_size(count: float) -> str:
    """A number of bytes: `12 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"
