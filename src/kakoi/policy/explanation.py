"""A decision as text: the verdict, the offending part underlined, the reason and a hint.

The CLI and the MCP server show this text.
"""

import unicodedata
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from kakoi._support.text import shown
from kakoi.policy.decide import Decision, Finding
from kakoi.policy.rules import Verdict

Paint = Callable[[str, Verdict], str]
_WIDTH: Final = 100
_MOST_FINDINGS: Final = 8


def format_decision(decision: Decision, paint: Paint = lambda text, _verdict: text) -> str:
    """Return the whole answer in the style of a compiler. `paint` colors text by its verdict."""
    if not decision.findings:
        return f"{paint('allow', Verdict.ALLOW)}: {shown(_first_line(decision.command))}"
    parts = [_finding(decision.command, f, paint) for f in decision.findings[:_MOST_FINDINGS]]
    left = len(decision.findings) - _MOST_FINDINGS
    if left > 0:
        parts.append(f"(and {left} more findings)")
    return "\n\n".join(parts)


def without_hints(decision: Decision) -> Decision:
    """Return the decision as a person is asked about it: hints are for the one who typed it."""
    return replace(decision, findings=tuple(replace(f, hint="") for f in decision.findings))


def _finding(text: str, finding: Finding, paint: Paint) -> str:
    verdict = paint(finding.verdict.value, finding.verdict)
    lines = [f"{verdict}[{finding.rule}]: {shown(finding.reason)}"]
    number, excerpt, start, end = _excerpt(text, finding)
    margin = " " * len(str(number))
    before = _columns(excerpt[:start])
    marks = "^" * max(1, _columns(excerpt[start:end]))
    lines += [
        f"{margin} |",
        f"{number} | {shown(excerpt)}",
        f"{margin} | {' ' * before}{paint(marks, finding.verdict)}",
    ]
    if finding.hint:
        lines.append(f"{margin} = help: {shown(finding.hint)}")
    return "\n".join(lines)


def _excerpt(text: str, finding: Finding) -> tuple[int, str, int, int]:
    """Return the line on which the finding begins, cut to the width around the finding."""
    number = text.count("\n", 0, finding.start) + 1
    first = text.rfind("\n", 0, finding.start) + 1
    last = text.find("\n", finding.start)
    line = text[first : last if last >= 0 else len(text)]
    start = finding.start - first
    end = min(finding.end - first, len(line))
    cut = max(0, min(start - _WIDTH // 3, len(line) - _WIDTH))
    excerpt = line[cut : cut + _WIDTH]
    start, end = start - cut, min(end - cut, len(excerpt))
    if cut:
        excerpt, start, end = "…" + excerpt, start + 1, end + 1
    if cut + _WIDTH < len(line):
        excerpt += "…"
    return number, excerpt, start, max(start, end)


def _columns(text: str) -> int:
    """Return how many terminal columns the text occupies as shown."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1
        for char in shown(text)
    )


def _first_line(text: str) -> str:
    line, newline, _ = text.strip().partition("\n")
    return line[:_WIDTH] + ("…" if newline or len(line) > _WIDTH else "")
