"""Where the time goes is on record, and what takes long says why."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.suite.profile import KEPT, NEWEST, ROOT, SLOW_S, Profile
from tests.suite.tiers import MUCH


def unexplained(profiles: list[Profile], explained: Mapping[str, set[str]]) -> list[str]:
    """Tests that never took less than five seconds, and are not marked `slow`.

    The shortest time on record counts: a busy machine makes no test slow.
    """
    best: dict[str, float] = {}
    for profile in profiles:
        for name, seconds in profile.tests.items():
            best[name] = min(seconds, best.get(name, seconds))
    # What a profile does not name took less than it names.
    for profile in profiles:
        for name in set(best) - set(profile.tests):
            if name.partition("::")[0] in profile.files:
                best[name] = 0.0
    return sorted(
        name
        for name, seconds in best.items()
        if seconds > SLOW_S and _function(name) not in explained.get(name.partition("::")[0], set())
    )


def _function(nodeid: str) -> str:
    return nodeid.rpartition("::")[2].partition("[")[0]


def explained_in(root: Path, paths: set[str]) -> dict[str, set[str]]:
    """Path → the tests in it that are marked `slow`, each by itself or all by `pytestmark`."""
    files = [root / path for path in paths]
    return {str(file.relative_to(root)): set(_marked(file)) for file in files if file.exists()}


def _marked(file: Path) -> Iterator[str]:
    tree = ast.parse(file.read_text("utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(
            map(_is_slow, node.decorator_list)
        ):
            yield node.name


def _is_slow(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.mark.slow"


def test_a_test_of_more_than_five_seconds_says_why() -> None:
    profiles = [Profile.read(KEPT)]
    if NEWEST.exists():
        profiles.append(Profile.read(NEWEST))
    assert profiles[0].files, "there is no tests/profile.json: `scripts/test --save-profile`"
    files = {name.partition("::")[0] for each in profiles for name in each.tests}
    found = unexplained(profiles, explained_in(ROOT, files))
    # A profile from before a move names files that are gone.
    assert [name for name in found if (ROOT / name.partition("::")[0]).exists()] == []


def test_the_shortest_time_on_record_counts() -> None:
    loaded = Profile({"a.py::test_x": 9.0, "a.py::test_y[1]": 9.0}, {"a.py": 18.0})
    quiet = Profile({"a.py::test_x": 2.0, "a.py::test_y[1]": 6.0}, {"a.py": 8.0})
    assert unexplained([loaded, quiet], {}) == ["a.py::test_y[1]"]
    assert unexplained([loaded, quiet], {"a.py": {"test_y"}}) == []
    unnamed = Profile({}, {"a.py": 1.5})
    assert unexplained([loaded, unnamed], {}) == []


def test_a_new_slow_test_is_noticed_at_the_next_run() -> None:
    kept = Profile({}, {"a.py": 1.0})
    newest = Profile({"b.py::test_new": 7.0}, {"a.py": 1.0, "b.py": 7.0})
    assert unexplained([kept, newest], {}) == ["b.py::test_new"]


def test_marks_are_read_from_the_source(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    file.write_text(
        "@pytest.mark.slow('kills 200')\nasync def test_a(): ...\n\ndef test_b(): ...\n"
    )
    assert explained_in(tmp_path, {"test_it.py", "gone.py"}) == {"test_it.py": {"test_a"}}


def test_the_tiers_name_tests_that_exist() -> None:
    folder = ROOT / "src" / "kakoi" / "conformance"
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("test_*.py")]
    assert [name for name in MUCH if not any(f"def {name}(" in text for text in texts)] == []
