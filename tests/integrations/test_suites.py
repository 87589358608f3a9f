"""Other people's suites for sandboxes, each on bubblewrap and on Docker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import has_bubblewrap, has_image, need
from tests.integrations.frameworks import IMAGE, SuiteRun, expected_failures, run_suite

SUITES = {
    "pydantic_ai": "pydantic-ai-slim",
    "inspect_ai": "inspect-ai",
    "deepagents": "langchain-tests",
}


@pytest.mark.parametrize("backend", ["bubblewrap", "docker"])
@pytest.mark.parametrize("suite", SUITES)
@pytest.mark.extended("the suite of a framework, in an environment that only `test-all` needs")
@pytest.mark.slow("a foreign suite has its own waits")
def test_the_suite_of_a_framework_passes(
    suite: str, backend: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    there = has_bubblewrap() if backend == "bubblewrap" else has_image(IMAGE)
    need(backend, is_there=there)
    run = run_suite(suite, SUITES[suite], backend, tmp_path)
    record_property("suite", (suite, run.version, backend, run.passed, len(run.outcomes)))
    expected = expected_failures(suite, backend)
    known = {name: why for name, why in expected.items() if name in run.outcomes}
    assert run.surprises(known) == [], run.output[-8000:]


def test_a_suite_is_held_against_the_list() -> None:
    run = SuiteRun("1.0", {"a": "passed", "b": "failed", "c": "skipped"}, "")
    assert run.surprises({"b": "why"}) == ["c: skipped"]
    assert run.surprises({}) == ["b: failed", "c: skipped"]
    assert run.surprises({"a": "why", "b": "why"}) == ["a: passed", "c: skipped"]
    assert SuiteRun("1.0", {}, "").surprises({}) == ["there are no tests"]
