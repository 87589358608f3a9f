"""A command loads what imports.toml lists for it: the start is fast because that is little."""

import tomllib
from pathlib import Path

import pytest

from tests.suite.imports import LIST, STARTS, loaded, warm_folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return warm_folder(tmp_path_factory.mktemp("home"))


@pytest.mark.parametrize("name", STARTS)
def test_a_command_loads_the_modules_that_are_listed_for_it(name: str, home: Path) -> None:
    listed = set(tomllib.loads(LIST.read_text("utf-8"))[name])
    found = set(loaded(STARTS[name], home))
    more, fewer = sorted(found - listed), sorted(listed - found)
    advice = "if that is right, run `.venv/bin/python tests/suite/imports.py`"
    assert not more, f"`kakoi {name}` now loads {', '.join(more)}; {advice}"
    assert not fewer, f"`kakoi {name}` no longer loads {', '.join(fewer)}; {advice}"
