"""The pytest plugin of the suite, which defines `--sandbox`.

It is an entry point, because pytest reads the conftest.py of a `--pyargs` package too late for
options. So every pytest run loads it where kakoi is installed, and it must import little.
Everything else is in conftest.py.
"""

import os
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from kakoi.conformance import KNOWN

if TYPE_CHECKING:
    from kakoi.backends.adapter import Availability

# The property of each report that names its sandbox.
PROPERTY = "kakoi_sandbox"
LEFT_OUT = pytest.StashKey[Counter[tuple[str, str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("kakoi").addoption(
        "--sandbox",
        action="append",
        default=[],
        metavar="NAME",
        help=f"sandbox for kakoi.conformance: {', '.join(KNOWN)}, docker:IMAGE, kubernetes:IMAGE,"
        " module:factory;"
        " may be given again",
    )
    parser.addini(
        "kakoi_sandboxes",
        "sandboxes for kakoi.conformance where no --sandbox is given; one that this machine lacks"
        " is skipped, or fails if KAKOI_REQUIRE (a list with commas) names its kind",
        type="linelist",
        # Never use a cluster just because the user is logged in to it.
        default=[name for name in KNOWN if name != "kubernetes"],
    )


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "needs(trait, ...): only for sandboxes that claim this (kakoi.conformance)",
        "slow(reason): why this test takes more than five seconds",
        "extended(reason): proves again, or at a size, what a quicker test proves",
    ):
        config.addinivalue_line("markers", line)


def sandbox_names(config: pytest.Config) -> list[str]:
    """Return the sandboxes to test: those on the command line, else those in the configuration."""
    names: list[str] = config.getoption("sandbox") or config.getini("kakoi_sandboxes")
    return names


def is_required(config: pytest.Config, name: str) -> bool:
    """Must the tests fail if the sandbox is not available on this machine?"""
    kind = name.partition(":")[0]
    required = os.environ.get("KAKOI_REQUIRE", "").split(",")
    # `docker` also requires `docker-client` and `docker-per-command`.
    return name in config.getoption("sandbox") or any(
        kind == word or kind.startswith(word + "-") for word in required if word
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Report an unavailable sandbox of `--sandbox` as one error, not one for each test."""
    if hasattr(session.config, "workerinput") or not session.config.getoption("sandbox"):
        return
    import asyncio

    from kakoi.errors import ConfigurationError

    for name in session.config.getoption("sandbox"):
        try:
            available = asyncio.run(_availability(name))
        except ConfigurationError as error:
            raise pytest.UsageError(f"--sandbox {name}: {error}. {error.hint}") from None
        if not available:
            raise pytest.UsageError(
                f"--sandbox {name}: not available here: {available.reason}. {available.fix}"
            )


async def _availability(name: str) -> "Availability":
    import tempfile
    from pathlib import Path

    from kakoi.conformance.subjects import subject_named

    with tempfile.TemporaryDirectory() as folder:
        adapter = subject_named(name).make(Path(folder))
        try:
            return await adapter.availability()
        finally:
            await adapter.cleanup()


def pytest_terminal_summary(
    terminalreporter: "pytest.TerminalReporter", config: pytest.Config
) -> None:
    """Print the traits that were not tested because a sandbox does not claim them.

    The tested sandboxes are taken from the reports.
    """
    reports = [report for group in terminalreporter.stats.values() for report in group]
    pairs = [pair for report in reports for pair in getattr(report, "user_properties", ())]
    counts = config.stash.get(LEFT_OUT, Counter())
    names = sorted({name for key, name in pairs if key == PROPERTY})
    if not names:
        return
    from kakoi.conformance.subjects import subject_named

    for name in names:
        for trait in subject_named(name).traits.unclaimed():
            # With xdist, the workers collect the tests, and only they know the number.
            count = f": {number} tests left out" if (number := counts[name, trait]) else ""
            terminalreporter.write_line(f"{name} does not claim `{trait}`{count}")
