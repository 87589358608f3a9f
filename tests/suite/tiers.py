"""Selects tests: `make test` runs the default tier, `make test-all` also the `extended` tests.

    @pytest.mark.extended("toolchain: cargo and maven download for a minute")
    @pytest.mark.slow("waits for the kernel to kill 200 processes")

An extended test proves again, or on a larger scale, what the default tier proves in a smaller way.
`slow` does not affect the selection. It gives the reason why a test takes more than five seconds.
tests/suite/test_profile.py fails if the reason is missing.
"""

import os
from itertools import groupby, zip_longest

import pytest

_WITH_ALL_PARAMETERS = "host"
# Many commands or large output. Shells alone take seconds where a runner takes milliseconds.
MUCH = {
    "test_fifty_jobs_at_once",
    "test_many_are_really_at_once",
    "test_many_at_once_each_get_their_own",
    "test_many_cancelled_commands_leave_a_sandbox_that_works",
    "test_many_floods_leave_no_memory_behind",
    "test_a_command_that_fills_its_limits_has_a_small_result",
    "test_a_flood_that_is_read_as_it_comes",
    "test_no_descriptor_and_no_child_is_left",
    "test_every_exit_code_is_reported_as_it_is",
    "test_every_exit_code_is_reported_as_it_is_at_once",
    "test_a_reader_that_does_not_read_holds_the_command_back",
    "test_many_floods_at_once_are_each_complete",
    "test_what_was_spilled_can_be_read_at_any_place",
    "test_a_flood_of_input",
}
# The modules about what the walls of a sandbox hold.
WALLS = {"test_files", "test_hostile", "test_isolation", "test_leftovers", "test_sandbox"}
# Fixtures of sandboxes that many tests use one after the other.
_SHARED = {"sandbox_name", "place_name", "attacked"}
TIERS = ("default", "extended", "all")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--tier",
        choices=TIERS,
        default="all",
        help="default: what `make test` runs; extended: only what it leaves out; all: both",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow(reason): why this test takes more than five seconds")
    config.addinivalue_line(
        "markers", "extended(reason): why this test is run by `make test-all` only"
    )


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        _require_reasons(item)
    _extend_repetitions(items)
    tier: str = config.getoption("tier")
    wanted = tier == "extended"
    left_out = [item for item in items if tier != "all" and _is_extended(item) is not wanted]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _is_extended(item) is wanted]
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if workers > 1:
        items[:] = slow_early(items, workers)


def slow_early(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Return the tests in an order in which no worker is left with slow ones at the end of a run.

    xdist gives each worker a contiguous part of the tests, and later moves tests from the busiest
    worker to those without any. So each part gets its share of the slow tests, one before each
    file: they wait for most of their time, in which the other workers need the processors.
    """
    slow = [each for each in items if each.get_closest_marker("slow") and not _shares(each)]
    moved = set(slow)
    others = [each for each in items if each not in moved]
    ordered: list[pytest.Item] = []
    for number in range(workers):
        part = others[len(others) * number // workers : len(others) * (number + 1) // workers]
        files = [list(tests) for _, tests in groupby(part, key=lambda each: each.path)]
        share = slow[number::workers]
        beyond = max(0, len(share) - len(files))
        ordered += share[:beyond]
        for one, tests in zip_longest(share[beyond:], files, fillvalue=None):
            ordered += [*([one] if one else []), *(tests or [])]
    return ordered


def _shares(item: pytest.Item) -> bool:
    """Return whether this test uses a sandbox that other tests use, too."""
    return not _SHARED.isdisjoint(getattr(item, "fixturenames", ()))


def _extend_repetitions(items: list[pytest.Item]) -> None:
    """Mark the conformance tests that repeat on one sandbox what another one proves.

    Every sandbox with a Python has the same runner, so the host runs a test with all parameters,
    and the others run it with the first ones. A container per command takes most of a second and
    isolates like a container that stays, and so do one that ends with its client and one of Podman:
    they run the first test of each module. The confined host has the processes of the host, so it
    runs the first one, too, and all about its walls. A container without Python is created and
    removed like one with Python, so it runs all tests that share a container, and from each module
    the first test with its own.
    """
    seen: dict[tuple[str, str], list[pytest.Function]] = {}
    for item in items:
        sandbox = _sandbox_of(item)
        if not isinstance(item, pytest.Function) or sandbox == _WITH_ALL_PARAMETERS:
            continue
        earlier = seen.setdefault((item.module.__name__, sandbox), [])
        is_repeated = item.originalname in [each.originalname for each in earlier]
        is_repeated |= bool(earlier) and sandbox.startswith(("docker-", "podman"))
        if sandbox == "confined-host":
            is_repeated |= bool(earlier) and item.path.stem not in WALLS
        if "busybox" in sandbox:
            is_repeated |= item.originalname in MUCH
            is_repeated |= _has_its_own(item) and any(map(_has_its_own, earlier))
        earlier.append(item)
        if is_repeated:
            item.add_marker(pytest.mark.extended("repetition: proved on another sandbox"))


def _sandbox_of(item: pytest.Item) -> str:
    """Return the name of the sandbox that a conformance test uses."""
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("sandbox_name") if callspec else None
    return str(name or _WITH_ALL_PARAMETERS)


def _has_its_own(item: pytest.Function) -> bool:
    """Return whether this conformance test creates its own sandbox."""
    return "fresh" in item.fixturenames


def _is_extended(item: pytest.Item) -> bool:
    return item.get_closest_marker("extended") is not None


def _require_reasons(item: pytest.Item) -> None:
    for name in ("slow", "extended"):
        for mark in item.iter_markers(name):
            if len(mark.args) != 1 or not str(mark.args[0]).strip() or mark.kwargs:
                raise pytest.UsageError(f"{item.nodeid}: `{name}` takes one reason, as a sentence")
