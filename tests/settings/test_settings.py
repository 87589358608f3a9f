"""The model of settings: every key of the specs with its default, and values of every kind."""

import re

import pytest

from kakoi._support.fields import (
    COUNT,
    FLAG,
    NUMBER,
    PATH,
    RULES,
    SIZE,
    TEXT,
    TEXTS,
    ValueKind,
    choice,
)
from kakoi.errors import ConfigurationError
from kakoi.network.domains import DOMAINS
from kakoi.policy.profiles import PROFILES, load_policy
from kakoi.settings.model import Settings, build, defaults, section_docs, settings_table, value_at


def test_every_setting_says_what_it_is_in_a_sentence() -> None:
    for path, setting in settings_table().items():
        assert re.fullmatch(r"[A-Z].*[.?]", setting.doc), path
    for path, doc in section_docs().items():
        assert re.fullmatch(r"[A-Z][^\n]*\.", doc), path


def test_no_two_settings_share_a_name_or_a_variable() -> None:
    names = [name for path, setting in settings_table().items() for name in (path, *setting.also)]
    assert len(names) == len(set(names))
    given = [name for setting in settings_table().values() for name in setting.env]
    assert len(given) == len(set(given))


@pytest.mark.parametrize("profile", PROFILES)
def test_a_setting_that_a_rule_advises_to_change_is_one(profile: str) -> None:
    said = [text for rule in load_policy(profile).rules for text in (rule.reason, rule.hint)]
    named = re.findall(r"`([a-z_]+(?:\.[a-z_]+)+)`", "\n".join(said))
    assert "policy.additional" in named or profile == "open"
    assert [name for name in named if name not in settings_table()] == []


def test_settings_are_built_from_values_by_path() -> None:
    built = build({"sandbox.docker.image": "x", "execution.concurrency": 3})
    assert built.sandbox.docker.image == "x"
    assert value_at(built, "execution.concurrency") == 3
    assert build({}) == Settings()
    assert defaults()["sandbox.type"] == "auto"


def test_a_path_may_begin_at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/h")
    for read in (PATH.read, PATH.read_text):
        assert [read(each, "here") for each in ("~/a", "~", "./~", "a/~b", "/x", "")] == [
            *("/h/a", "/h", "./~", "a/~b", "/x", ""),
        ]


BIG = int("f" * 5000, 16)


@pytest.mark.parametrize(
    ("kind", "given", "read"),
    [
        (SIZE, 1, 1),
        (SIZE, "4g", 4 * 1024**3),
        (SIZE, "512 MiB", 512 * 1024**2),
        (SIZE, "1.5k", 1536),
        (SIZE, "10Gi", 10 * 1024**3),
        (NUMBER, 0.5, 0.5),
        (NUMBER, 2, 2),
        (COUNT, 3, 3),
        (FLAG, False, False),
        (TEXT, "", ""),
        (TEXTS, ["a b"], ("a b",)),
        (TEXTS, [], ()),
        (DOMAINS, ["A.org", "*.b.org:1"], ("A.org", "*.b.org:1")),
        (RULES, [{"id": "x"}], ({"id": "x"},)),
        (choice("a", "b"), "b", "b"),
    ],
)
def test_a_right_value_is_read(kind: ValueKind, given: object, read: object) -> None:
    assert kind.read(given, "here") == read


WRONG: dict[str, tuple[ValueKind, list[object]]] = {
    "size": (SIZE, [0, -1, True, 1.5, "", "4x", "g", "-4g", "0", "9" * 400 + "g", "1 GB", "1kb", BIG, 2**63, [], None]),
    "number": (NUMBER, [0, -1, True, "1", float("nan"), float("inf"), BIG, 10**400, [], None]),
    "count": (COUNT, [0, -1, 1.5, True, "1", BIG, [], None]),
    "flag": (FLAG, [0, 1, "true", [], None]),
    "text": (TEXT, [0, True, [], "a\0b", None]),
    "path": (PATH, [0, [], "a\0b", "~no-such-user-of-kakoi/x", None]),
    "texts": (TEXTS, ["a", [1], [""], [" "], ["a\0"], [["a"]], {"a": 1}, [BIG], None]),
    "rules": (RULES, ["a", ["a"], {"id": "x"}, None]),
    "choice": (choice("a", "b"), ["c", "", 1, ["a"], None]),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_refused_with_its_place_and_what_is_wanted(name: str) -> None:
    kind, values = WRONG[name]
    for value in values:
        with pytest.raises(ConfigurationError, match=r"^here is .*; it must be ") as caught:
            kind.read(value, "here")
        assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("kind", "given", "read"),
    [
        (FLAG, "true", True),
        (FLAG, "YES", True),
        (FLAG, "0", False),
        (FLAG, "on", True),
        (FLAG, "Off", False),
        (NUMBER, "2", 2),
        (NUMBER, "0.5", 0.5),
        (COUNT, "7", 7),
        (COUNT, " 7 ", 7),
        (SIZE, "4g", 4 * 1024**3),
        (SIZE, "1024", 1024),
        (TEXTS, "a, b c,", ("a", "b c")),
        (DOMAINS, "a.org, b.org:*", ("a.org", "b.org:*")),
        (TEXT, "x", "x"),
    ],
)
def test_a_text_of_the_environment_is_read(kind: ValueKind, given: str, read: object) -> None:
    assert kind.read_text(given, "NAME") == read


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (FLAG, "maybe"),
        (NUMBER, "nan"),
        (NUMBER, "inf"),
        (NUMBER, "1" * 400),
        (COUNT, "1.5"),
        (SIZE, "1e3"),
        (SIZE, "much"),
        (DOMAINS, "a.org, https://b.org"),
        (RULES, "[]"),
    ],
)
def test_a_wrong_text_of_the_environment_names_the_variable(kind: ValueKind, given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^NAME\b"):
        kind.read_text(given, "NAME")
