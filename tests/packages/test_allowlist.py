"""What may be installed: lists and requests as values."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.packages.allowlist import (
    ECOSYSTEMS,
    AllowlistConfig,
    Ecosystem,
    InstallRequest,
    ListedPackage,
    check,
    parse,
)
from kakoi.packages.installer import SHIPPED, read_lists
from tests.packages.names import _ARCHIVE, ALLOWED, HOSTILE, LISTS, NAMES, REFUSED

CONFIG = AllowlistConfig(**{each: parse(each, LISTS[each]) for each in ECOSYSTEMS})


def named(kind: Ecosystem, text: str) -> set[str]:
    return {entry.name for entry in parse(kind, text).entries}


@pytest.mark.requirement("E-020", "E-021")
@pytest.mark.parametrize(("kind", "package", "wanted"), ALLOWED)
def test_a_version_may_have_the_form_that_the_list_gives(
    kind: Ecosystem, package: str, wanted: str
) -> None:
    answer = check(InstallRequest(kind, package), CONFIG)
    assert answer.wanted == wanted, answer.reason


@pytest.mark.requirement("E-020", "E-022")
@pytest.mark.parametrize(("kind", "package"), REFUSED)
def test_what_is_not_listed_is_refused_with_a_reason(kind: Ecosystem, package: str) -> None:
    answer = check(InstallRequest(kind, package), CONFIG)
    assert not answer
    assert answer.reason


def test_a_refusal_says_which_version_is_listed() -> None:
    answer = check(InstallRequest("pip", "flask-login==1"), CONFIG)
    assert answer.reason == "the list has only flask-login==0.6.3"
    answer = check(InstallRequest("pip", "requests==0"), CONFIG)
    assert answer.reason == "the list has only requests"


@pytest.mark.requirement("E-019")
@given(st.sampled_from(ECOSYSTEMS), HOSTILE)
def test_whatever_is_asked_only_a_listed_name_passes(kind: Ecosystem, package: str) -> None:
    answer = check(InstallRequest(kind, package), CONFIG)
    if answer:
        assert answer.wanted.startswith(package)
        assert package.isascii()
        assert not re.search(r"[\s;@/]" if kind == "pip" else r"[\s;:]", package.replace("=1:", ""))
        name = re.split(r"(?<!^)[@\[=~!<>]", package)[0]
        spelt = re.sub(r"[-_.]+", "-", name).lower() if kind == "pip" else name
        assert spelt in named(kind, LISTS[kind])


@pytest.mark.requirement("E-021", "E-024")
@given(st.data(), st.sampled_from(ECOSYSTEMS))
def test_every_line_of_a_list_may_be_asked_for(data: st.DataObject, kind: Ecosystem) -> None:
    names = data.draw(st.lists(NAMES[kind].filter(lambda name: not re.search(_ARCHIVE, name))))
    noise = st.sampled_from(["", "#", "# no", "  # no", "\t", " \r"])
    ends = st.sampled_from(["\n", "\r\n", " \n", "\t\r\n"])
    text = "".join(
        data.draw(noise) + data.draw(ends) + "  " + name + data.draw(ends) for name in names
    )
    listed = parse(kind, text)
    assert len(listed.entries) == len(names)
    assert listed.invalid == ()
    for name in names:
        assert check(InstallRequest(kind, name), AllowlistConfig(**{kind: listed})).wanted == name


@pytest.mark.requirement("E-024")
@pytest.mark.parametrize("line", ["two names", "requests # why", "-r x", "requests>=2", "\ufeffrequests", "a.zip", "x" * 300, "a\x00b"])  # fmt: skip
def test_a_line_that_is_not_a_package_allows_nothing(line: str) -> None:
    found = parse("pip", f"pytest\n{line}\n")
    assert found.entries == (ListedPackage("pytest"),)
    assert found.invalid == (line,)


def test_the_first_line_that_fits_decides() -> None:
    lists = AllowlistConfig(pip=parse("pip", "a==1\na==2\nb==1\nb==*\n"))
    wanted = [
        check(InstallRequest("pip", name), lists).wanted
        for name in "a a==1 a==2 a==3 b b==9".split()
    ]
    assert wanted == ["a==1", "a==1", "a==2", "", "b==1", "b==9"]


@pytest.mark.requirement("E-025")
def test_the_lists_that_are_shipped_are_those_of_the_spec() -> None:
    lists = read_lists(SHIPPED)
    assert [
        sorted(e.name for e in found.entries)
        for found in (lists.apt, lists.pip, lists.npm)
        if found
    ] == [
        ["curl", "git", "jq", "vim"],
        ["black", "flake8", "pytest", "requests"],
        ["eslint", "prettier", "typescript", "vitest"],
    ]
    assert all(found and found.invalid == () for found in (lists.apt, lists.pip, lists.npm))


def test_a_long_text_is_refused_at_once() -> None:
    assert not check(InstallRequest("pip", "a" * 10_000_000), CONFIG)
