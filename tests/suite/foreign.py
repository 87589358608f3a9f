"""Prints the table of the suites of frameworks (tests/integrations) at the end of a run."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest

BACKENDS = ("bubblewrap", "docker")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print a line for each suite: its version, and passed/total for each backend."""
    rows: dict[tuple[str, str], dict[str, str]] = defaultdict(dict)
    for suite, version, backend, passed, total in _recorded(terminalreporter.stats):
        rows[suite, version][backend] = f"{passed}/{total}"
    if not rows:
        return
    terminalreporter.section("suites of frameworks")
    for line in table(rows):
        terminalreporter.line(line)


def table(rows: dict[tuple[str, str], dict[str, str]]) -> Iterator[str]:
    """Return the lines of the table, as in README.md."""
    yield f"| suite | version | {' | '.join(BACKENDS)} |"
    yield "|---|---|" + "---|" * len(BACKENDS)
    for (suite, version), found in sorted(rows.items()):
        yield f"| {suite} | {version} | {' | '.join(found.get(each, '–') for each in BACKENDS)} |"


def _recorded(stats: dict[str, list[Any]]) -> Iterator[tuple[str, str, str, int, int]]:
    for reports in stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport) and report.when == "call":
                for name, value in report.user_properties:
                    if name == "suite" and isinstance(value, list | tuple):
                        yield value  # type: ignore[misc]  # What test_suites.py recorded.
