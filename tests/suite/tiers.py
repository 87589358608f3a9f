"""Which tests run: `make test` runs the default tier, `make test-all` also runs what is `extended`.

    @pytest.mark.extended("toolchain: cargo and maven download for a minute")
    @pytest.mark.slow("waits for the kernel to kill 200 processes")

An extended test proves something again, or at a size, that the default tier proves in a smaller way.
`slow` is not about selection: it explains why a test takes more than five seconds, so that nobody
has to find out; tests/suite/test_profile.py fails where the explanation is missing.
"""

import pytest

_WITH_ALL_PARAMETERS = "host"
# Many at once, or much of it, by shells alone: seconds for what takes a runner milliseconds.
_MUCH = {
    "test_fifty_jobs_at_once",
    "test_many_are_really_at_once",
    "test_many_at_once_each_get_their_own",
    "test_many_cancelled_commands_leave_a_sandbox_that_works",
    "test_many_floods_leave_no_memory_behind",
    "test_a_command_that_fills_its_limits_is_told_in_a_small_result",
    "test_a_flood_that_is_read_as_it_comes",
    "test_no_descriptor_and_no_child_is_left",
}
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
    if tier == "all":
        return
    wanted = tier == "extended"
    left_out = [item for item in items if _is_extended(item) is not wanted]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if _is_extended(item) is wanted]


def _extend_repetitions(items: list[pytest.Item]) -> None:
    """Mark the conformance tests that prove on one sandbox what another one has proved already.

    The same runner is in every sandbox with a Python, so all parameters of a test are tried on the
    host, and the first ones everywhere else. A container for each command takes most
    of a second, and has the walls of one that stays: of each module the first test is tried there.
    """
    seen: dict[tuple[str, str], list[str]] = {}
    for item in items:
        sandbox = _sandbox_of(item)
        if not isinstance(item, pytest.Function) or sandbox == _WITH_ALL_PARAMETERS:
            continue
        names = seen.setdefault((item.module.__name__, sandbox), [])
        is_repeated = item.originalname in names
        is_repeated |= bool(names) and sandbox.startswith("docker-per-command")
        is_repeated |= item.originalname in _MUCH and "busybox" in sandbox
        names.append(item.originalname)
        if is_repeated:
            item.add_marker(pytest.mark.extended("repetition: proved on another sandbox"))


def _sandbox_of(item: pytest.Item) -> str:
    """The sandbox that a conformance test is about."""
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("sandbox_name") if callspec else None
    return str(name or _WITH_ALL_PARAMETERS)


def _is_extended(item: pytest.Item) -> bool:
    return item.get_closest_marker("extended") is not None


def _require_reasons(item: pytest.Item) -> None:
    for name in ("slow", "extended"):
        for mark in item.iter_markers(name):
            if len(mark.args) != 1 or not str(mark.args[0]).strip() or mark.kwargs:
                raise pytest.UsageError(f"{item.nodeid}: `{name}` takes one reason, as a sentence")
