"""Which tests run: `make test` runs the default tier, `make test-all` also runs what is `extended`.

    @pytest.mark.extended("toolchain: cargo and maven download for a minute")
    @pytest.mark.slow("waits for the kernel to kill 200 processes")

An extended test proves something again, or at a size, that the default tier proves in a smaller way.
`slow` is not about selection: it explains why a test takes more than five seconds, so that nobody
has to find out; tests/suite/test_profile.py fails where the explanation is missing.
"""

import pytest

_PER_COMMAND = 3
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
    """A container for each command takes most of a second, and inside there is the same runner as in
    one that stays. So of each conformance module only the first tests are in the default tier there.
    """
    seen: dict[str, set[str]] = {}
    for item in items:
        if isinstance(item, pytest.Function) and _is_per_command(item):
            first = seen.setdefault(item.module.__name__, set())
            if len(first) < _PER_COMMAND and item.originalname not in first:
                first.add(item.originalname)
            else:
                reason = "repetition: on a container that stays"
                item.add_marker(pytest.mark.extended(reason))


def _is_per_command(item: pytest.Function) -> bool:
    callspec = getattr(item, "callspec", None)
    name = callspec.params.get("sandbox_name", "") if callspec else ""
    return str(name).startswith("docker-per-command")


def _is_extended(item: pytest.Item) -> bool:
    return item.get_closest_marker("extended") is not None


def _require_reasons(item: pytest.Item) -> None:
    for name in ("slow", "extended"):
        for mark in item.iter_markers(name):
            if len(mark.args) != 1 or not str(mark.args[0]).strip() or mark.kwargs:
                raise pytest.UsageError(f"{item.nodeid}: `{name}` takes one reason, as a sentence")
