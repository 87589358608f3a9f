"""Sections of files, read strictly: what is wrong is named with its place."""

from collections.abc import Callable

import pytest

from kakoi._support.parsing import Section, nearest
from kakoi._support.text import short_repr
from kakoi.errors import ConfigurationError

KNOWN = "name flag times list"
BIG = 10**5000  # Too long a number to be written down.


def test_keys_may_be_written_in_other_ways_and_only_once() -> None:
    section = Section({"max-size": "a", "maxAge": "b"}, "here", "max_size max_age")
    assert (section.text("max_size"), section.text("max_age")) == ("a", "b")
    with pytest.raises(ConfigurationError, match="here: `max_size` is given twice"):
        Section({"max-size": 1, "maxSize": 1}, "here", "max_size")


def test_what_is_not_set_has_the_default() -> None:
    section = Section({"name": None}, "here", KNOWN)
    assert not section.has("name")
    assert section.text("name", "x") == "x"
    assert section.flag("flag", True) is True
    assert section.seconds("times", 1.5) == 1.5
    assert section.texts("list") is None
    assert Section(None, "here", KNOWN).raw("name") is None


WRONG: dict[str, tuple[Callable[[Section], object], list[object]]] = {
    "name": (lambda section: section.text("name"), [1, b"x", ["x"], "a\0b", BIG]),
    "flag": (lambda section: section.flag("flag", True), [0, 1, "true", []]),
    "times": (
        lambda section: section.seconds("times", 1),
        [0, -1, True, "1", float("nan"), float("inf"), BIG],
    ),
    "list": (
        lambda section: section.texts("list"),
        ["a", [1], [""], [" "], ["a\0"], ("a",), {"a": 1}],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_named_with_its_place(name: str) -> None:
    read, values = WRONG[name]
    for value in values:
        section = Section({name: value}, "here", KNOWN)
        with pytest.raises(
            ConfigurationError, match=rf"^here\.{name} is .*; it must be "
        ) as caught:
            read(section)
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize("data", ["x", 1, ["a"], [("name", "x")]])
def test_what_is_not_a_section_is_refused(data: object) -> None:
    with pytest.raises(ConfigurationError, match="it must be a section of keys and values"):
        Section(data, "here", KNOWN)


@pytest.mark.parametrize(
    "key", ["nam", 1, None, pytest.param(BIG, id="big"), pytest.param("x" * 100_000, id="long")]
)
def test_an_unknown_key_is_refused_and_shown_in_short(key: object) -> None:
    with pytest.raises(ConfigurationError, match="here: unknown key ") as caught:
        Section({key: 1}, "here", KNOWN)
    assert len(str(caught.value)) < 200
    assert caught.value.hint == "known keys: name, flag, times, list"


def test_a_close_name_is_suggested_and_no_other() -> None:
    assert nearest("nmae", ["name", "flag"]) == "; did you mean `name`?"
    for given in ("zzz", "", None, BIG, ["name"]):
        assert nearest(given, ["name", "flag"]) == ""


def test_whatever_a_value_is_it_can_be_shown() -> None:
    class Broken:
        def __repr__(self) -> str:
            raise RuntimeError("no")

    assert "Broken" in short_repr(Broken())
    assert short_repr(BIG) == "a int"
    assert short_repr("\ud800") == "'\\ud800'"
    assert len(short_repr("x" * 10**6)) <= 80
    assert len(short_repr([["x"] * 1000] * 1000)) <= 80
