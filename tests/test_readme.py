"""The README holds no second truth: its figures, its table and its Japanese edition are as said."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, blocks

EDITIONS = ("README.md", "README.ja.md")
ENGLISH, JAPANESE = ((ROOT / name).read_text("utf-8") for name in EDITIONS)


def code(text: str) -> list[tuple[str, str]]:
    """Blocks without what is said in a comment, which is translated."""
    return [(each.language, re.sub(r" +# .*", "", each.text)) for each in blocks(text)]


def links(text: str) -> list[str]:
    return re.findall(r"\]\(([^)\s]+)\)", text)


def rows(text: str) -> list[list[str]]:
    """The cells of every table, line by line, as they are."""
    lines = re.findall(r"^\|(.*)\|$", text, re.MULTILINE)
    return [[cell.strip() for cell in line.split("|")] for line in lines]


def figures(text: str) -> str:
    found = re.search(r"<!-- bench/others\.py -->\n(.*?)<!-- end -->", text, re.DOTALL)
    assert found is not None
    return found[1]


def saved() -> list[list[str]]:
    """The rows of the newest results, without their head; nothing if none were saved."""
    results = sorted(Path(ROOT, "bench", "results").glob("*-others.txt"))
    return rows(results[-1].read_text("utf-8"))[2:] if results else []


def test_both_editions_show_the_same_code() -> None:
    assert code(ENGLISH) == code(JAPANESE)
    assert len(code(ENGLISH)) > 3


def test_both_editions_lead_to_the_same_places_in_the_same_order() -> None:
    english, japanese = links(ENGLISH), links(JAPANESE)
    assert english[0] == "README.ja.md"
    assert japanese[0] == "README.md"
    assert english[1:] == japanese[1:]


def test_both_editions_have_the_same_parts() -> None:
    shapes = [
        [line.split(" ")[0] for line in re.findall(r"^#+ .*$", text, re.M)]
        for text in (ENGLISH, JAPANESE)
    ]
    assert shapes[0] == shapes[1]
    assert [len(row) for row in rows(ENGLISH)] == [len(row) for row in rows(JAPANESE)]


def test_what_is_isolated_is_what_the_security_page_says() -> None:
    text = (ROOT / "SECURITY.md").read_text("utf-8").replace(" (below)", "")
    isolated = ENGLISH.partition("## What is isolated")[2].partition("\n## ")[0]
    assert len(rows(isolated)) > 5
    assert [row for row in rows(isolated) if row not in rows(text)] == []


@pytest.mark.parametrize("edition", EDITIONS)
def test_figures_are_those_that_were_saved(edition: str) -> None:
    """`bench/others.py --save` writes them; by hand nothing is changed."""
    assert rows(figures((ROOT / edition).read_text("utf-8")))[2:] == saved()
