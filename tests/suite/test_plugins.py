"""What the plugins promise, tried on a small suite of their own in a process of its own."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.suite.profile import ROOT

NAMES = ("tiers", "hangs", "cancellation", "profile")
PLUGINS = [word for name in NAMES for word in ("-p", f"tests.suite.{name}")]


def outcome(folder: Path, source: str, *options: str, workers: int = 1) -> tuple[int, str]:
    (folder / "test_it.py").write_text(source)
    (folder / "pytest.ini").write_text("[pytest]\n")
    argv = [sys.executable, "-m", "pytest", *PLUGINS, "-p", "no:cacheprovider", *options]
    done = subprocess.run(
        [*argv, str(folder)],
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PYTEST_XDIST_WORKER_COUNT": str(workers)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stdout + done.stderr


TIERS = """
import pytest
def test_quick(): pass
@pytest.mark.extended("a toolchain")
def test_long(): pass
"""


@pytest.mark.parametrize(
    ("tier", "ran"), [("default", {"quick"}), ("extended", {"long"}), ("all", {"quick", "long"})]
)
def test_a_tier_runs_its_tests_and_no_others(tmp_path: Path, tier: str, ran: set[str]) -> None:
    status, said = outcome(tmp_path, TIERS, "-v", "--tier", tier)
    assert status == 0
    assert {name for name in ("quick", "long") if f"test_{name} PASSED" in said} == ran


@pytest.mark.parametrize("mark", ["slow", "slow()", "slow('')", "extended(1, 2)"])
def test_a_mark_without_a_reason_is_an_error(tmp_path: Path, mark: str) -> None:
    source = f"import pytest\n@pytest.mark.{mark}\ndef test_x(): pass\n"
    status, said = outcome(tmp_path, source)
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "takes one reason" in said


ORDER = """
import pytest
def test_first(): pass
def test_second(): pass
def test_third(): pass
def test_fourth(): pass
@pytest.mark.slow("waits")
def test_slow(): pass
@pytest.mark.slow("waits longer")
def test_slower(): pass
"""


def test_each_worker_has_its_share_of_slow_tests_early(tmp_path: Path) -> None:
    status, said = outcome(tmp_path, ORDER, "-v", workers=2)
    assert status == 0, said
    order = [line.split("::")[1].split(" ")[0] for line in said.splitlines() if "PASSED" in line]
    names = ("slow", "first", "second", "slower", "third", "fourth")
    assert order == [f"test_{name}" for name in names]
    _, said = outcome(tmp_path, ORDER, "-v")
    assert said.index("test_fourth") < said.index("test_slow")


HUNG = """
import asyncio, threading
def test_hung():
    threading.Thread(target=threading.Event().wait, name="the other one", daemon=True).start()
    async def waits_for_ever():
        await asyncio.Event().wait()
    asyncio.run(waits_for_ever())
def test_after(): pass
"""


def test_a_hung_test_fails_with_all_that_was_going_on_and_the_rest_runs(tmp_path: Path) -> None:
    status, said = outcome(tmp_path, HUNG, "--hang-limit", "1")
    assert status == 1
    assert "1 failed, 1 passed" in said
    assert "call took more than 1.0 s" in said
    assert "--- thread the other one" in said
    assert "--- thread MainThread" in said
    assert "--- task Task-" in said
    assert "in waits_for_ever" in said


TIMED = """
import time, pytest
@pytest.fixture(scope="module")
def shared(): time.sleep(0.5)
@pytest.mark.parametrize("n", range(25))
def test_many(shared, n): pass
def test_sleeps(): time.sleep(0.3)
"""


def test_the_time_of_a_run_is_reported_by_folder_and_by_test(tmp_path: Path) -> None:
    status, said = outcome(tmp_path, TIMED)
    assert status == 0
    assert "(26 tests)" in said
    slowest = said.partition("slowest tests:")[2].splitlines()[1]
    # What others share is not the test's own.
    assert slowest.endswith("test_it.py::test_sleeps")


CANCELLED = """
import asyncio, pytest
@pytest.fixture
def anyio_backend(): return "asyncio"
@pytest.fixture
async def shared(): yield
@pytest.mark.anyio
async def test_is_cancelled(shared):
    asyncio.current_task().cancel()
    await asyncio.sleep(0)
@pytest.mark.anyio
async def test_hides_it(shared):
    asyncio.current_task().cancel()
    try:
        await asyncio.sleep(0)
    except asyncio.CancelledError:
        pass
@pytest.mark.anyio
async def test_next(shared):
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await asyncio.sleep(10)
"""


def test_a_test_that_leaves_a_cancellation_fails_and_no_other(tmp_path: Path) -> None:
    status, said = outcome(tmp_path, CANCELLED, "-v")
    assert status == 1
    assert "test_is_cancelled FAILED" in said
    assert "the test ended with a cancellation" in said
    assert "test_hides_it FAILED" in said
    assert "left 1 cancellation(s)" in said
    assert "test_next PASSED" in said
