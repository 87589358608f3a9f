"""A profile of a run, printed at its end and saved for `make check` and `make test-changed`.

The time of a test excludes the setup of shared fixtures (an image, a sandbox), which is counted for
the folder as `shared`. The newest figures of a whole run on this machine are in `.pytest_cache`.
`--save-profile` writes the figures in the repository, tests/profile.json.
"""

import gc
import json
import time
from collections import defaultdict
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
KEPT = ROOT / "tests" / "profile.json"
NEWEST = ROOT / ".pytest_cache" / "kakoi-profile.json"
SLOW_S = 5.0
_SHOWN = 25
_SHARED = "kakoi_shared_s"
_WORTH_NAMING_S = 1.0


@dataclass
class Profile:
    """Seconds by test, and by file for its tests and their shared fixtures."""

    tests: dict[str, float] = field(default_factory=dict)
    files: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> "Profile":
        if not path.exists():
            return cls()
        found = json.loads(path.read_text("utf-8"))
        return cls(found["tests"], found["files"])

    def write(self, path: Path) -> None:
        tests = {name: _rounded(s) for name, s in self.tests.items() if s >= _WORTH_NAMING_S}
        files = {name: _rounded(s) for name, s in self.files.items()}
        path.parent.mkdir(exist_ok=True)
        text = json.dumps({"files": files, "tests": tests}, indent=1, sort_keys=True)
        path.write_text(text + "\n", "utf-8")


def _rounded(seconds: float) -> float:
    return round(seconds, 2 if seconds < 1 else 1)


class _Collector:
    """Adds up the reports of all workers."""

    def __init__(self) -> None:
        self.own: dict[str, float] = defaultdict(float)
        self.shared: dict[str, float] = defaultdict(float)
        self.slow_marked: set[str] = set()
        self.failed = False
        self._began = time.monotonic()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.own[report.nodeid] += report.duration
        # The properties accumulate over the test and are in all three reports, so count one.
        if report.when == "setup":
            self.shared[report.nodeid] = _shared(report.user_properties)
            self.own[report.nodeid] -= self.shared[report.nodeid]
        self.failed |= report.failed
        if "slow" in report.keywords:
            self.slow_marked.add(report.nodeid)

    def profile(self) -> Profile:
        files: dict[str, float] = defaultdict(float)
        for name in self.own:
            files[name.partition("::")[0]] += self.own[name] + self.shared[name]
        return Profile(dict(self.own), dict(files))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        config = session.config
        if not self.own or config.getoption("collectonly"):
            return
        if config.getoption("save_profile"):
            self.profile().write(KEPT)
        if not self.failed and _is_whole(config):
            self.profile().write(NEWEST)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if len(self.own) < _SHOWN:
            return
        line = terminalreporter.write_line
        terminalreporter.section("where the time went")
        took = time.monotonic() - self._began
        line(f"{took:.0f} s from beginning to end; in seconds of one worker, by folder:")
        own: dict[str, list[float]] = defaultdict(list)
        shared: dict[str, float] = defaultdict(float)
        for name in self.own:
            own[_folder(name)].append(self.own[name])
            shared[_folder(name)] += self.shared[name]
        total = {folder: sum(own[folder]) + shared[folder] for folder in own}
        for folder in sorted(total, key=lambda each: -total[each]):
            apart = f", {shared[folder]:.0f} s of it shared" if shared[folder] >= 1 else ""
            line(f"{total[folder]:8.1f}  {folder} ({len(own[folder])} tests{apart})")
        line(f"the {_SHOWN} slowest tests:")
        for name in sorted(self.own, key=lambda each: -self.own[each])[:_SHOWN]:
            seconds = self.own[name]
            over = seconds > SLOW_S and name not in self.slow_marked
            line(f"{seconds:8.1f}  {name}{'  (over 5 s, and not marked slow)' if over else ''}")


def _is_whole(config: pytest.Config) -> bool:
    chosen = config.getoption("keyword") or config.getoption("markexpr")
    return config.args_source is pytest.Config.ArgsSource.TESTPATHS and not chosen


def _folder(nodeid: str) -> str:
    return str(Path(nodeid.partition("::")[0]).parent)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--save-profile", action="store_true", help=f"write {KEPT.relative_to(ROOT)}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Collector(), "kakoi-profile")


def pytest_collection() -> None:
    """Disable garbage collection: the tests are thousands of objects that are never freed, and
    searching them takes a third of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Exclude the tests from garbage collection: `gc.collect()` would take a second, and tests that
    look for leaks call it twice."""
    gc.freeze()
    gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Also exclude what a file leaves behind: reports, caches and modules add up to tenths of a
    second for each `gc.collect()`."""
    if nextitem is not None and nextitem.path != item.path:
        gc.collect()
        gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: "pytest.FixtureDef[object]", request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Measure the setup of shared fixtures. One shared fixture can set up another."""
    if fixturedef.scope == "function":
        return (yield)
    item = _current(request)
    began = time.monotonic()
    before = _shared(item.user_properties) if item else 0.0
    try:
        return (yield)
    finally:
        if item is not None:
            within = _shared(item.user_properties) - before
            item.user_properties.append((_SHARED, time.monotonic() - began - within))


def _current(request: pytest.FixtureRequest) -> pytest.Item | None:
    return getattr(request, "_pyfuncitem", None)


def _shared(properties: list[tuple[str, object]]) -> float:
    return sum(float(str(value)) for name, value in properties if name == _SHARED)
