"""Runs the suite of a framework, in the environment that has the framework, on one backend.

`scripts/integrations` makes that environment, and KAKOI_INTEGRATIONS names another one. The suites
subclass or import other people's tests (`suites/*_suite.py`). `expected_failures.toml` lists the
tests that fail, each with its reason and the code that it is about. Anything else must pass: a
skipped test is a failure as well.
"""

import os
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.cli.conftest import need

ROOT = Path(__file__).resolve().parents[2]
SUITES = Path(__file__).parent / "suites"
IMAGE = "kakoi-test:python"
PATIENCE_S = 1200


@dataclass(frozen=True)
class SuiteRun:
    """What became of each test of a suite."""

    version: str
    outcomes: Mapping[str, str]
    output: str

    @property
    def passed(self) -> int:
        return list(self.outcomes.values()).count("passed")

    def surprises(self, expected: Mapping[str, str]) -> list[str]:
        """Return where the outcomes are not as expected."""
        found = [
            f"{name}: {outcome}"
            for name, outcome in self.outcomes.items()
            if outcome != ("failed" if name in expected else "passed")
        ]
        return found or ([] if self.outcomes else ["there are no tests"])


def python() -> Path:
    """Return the interpreter that has the frameworks."""
    found = ROOT / os.environ.get("KAKOI_INTEGRATIONS", ".venv-integrations") / "bin" / "python"
    need("integrations", is_there=found.exists())
    return found


def version(distribution: str) -> str:
    code = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"
    done = subprocess.run(
        [python(), "-c", code, distribution], capture_output=True, text=True, timeout=60, check=True
    )
    return done.stdout.strip()


def run_suite(name: str, distribution: str, backend: str, folder: Path) -> SuiteRun:
    """Run `suites/NAME_suite.py` with a home of its own, and read its report."""
    report = folder / "report.xml"
    arguments = ["-q", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
    # Not with the options and fixtures of our own tests.
    arguments += [f"--confcutdir={SUITES}", "--import-mode=importlib", f"--junit-xml={report}"]
    image = {"KAKOI_SUITE_IMAGE": IMAGE} if backend == "docker" else {}
    done = subprocess.run(
        [python(), "-m", "pytest", *arguments, SUITES / f"{name}_suite.py"],
        cwd=folder,
        env={**os.environ, **image, "KAKOI_SUITE_BACKEND": backend, "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert report.exists(), done.stdout + done.stderr
    cases = ElementTree.parse(report).iter("testcase")  # noqa: S314  # our own pytest wrote it
    outcomes = {case.attrib["name"]: _outcome(case) for case in cases}
    return SuiteRun(version(distribution), outcomes, done.stdout)


def _outcome(case: ElementTree.Element) -> str:
    found = {child.tag for child in case}
    if "error" in found:
        return "error"
    return "failed" if "failure" in found else "skipped" if "skipped" in found else "passed"


def expected_failures(suite: str, backend: str) -> dict[str, str]:
    """Return the tests that must fail, and why."""
    listed = tomllib.loads((SUITES.parent / "expected_failures.toml").read_text("utf-8"))
    return {
        name: entry["reason"]
        for name, entry in listed.get(suite, {}).items()
        if backend in entry.get("backends", [backend])
    }
