"""The site: it is built without a warning, its links lead somewhere, and it fetches nothing."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import ROOT, our_files

# What a browser fetches by itself, as opposed to where a reader may go.
FETCHED = {
    ("script", "src"),
    ("img", "src"),
    ("link", "href"),
    ("iframe", "src"),
    ("source", "src"),
}


@dataclass
class Html(HTMLParser):
    """The links, the anchors and the words of a page."""

    ids: set[str] = field(default_factory=set)
    links: list[str] = field(default_factory=list)
    fetched: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("id", "name") and value:
                self.ids.add(value)
            if (tag, name) in FETCHED:
                self.fetched.append(value or "")
            if name in ("href", "src"):
                self.links.append(value or "")


def read(path: Path) -> Html:
    html = Html()
    html.feed(path.read_text("utf-8"))
    html.close()
    return html


def dead(site: dict[Path, Html]) -> list[str]:
    """Links to files or parts of pages that are not there."""
    found = []
    for page, html in site.items():
        for link in html.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            path = Path(os.path.normpath(page.parent / unquote(parts.path))) if parts.path else page
            target = site.get(path)
            missing = (
                not path.is_file() if target is None else unquote(parts.fragment) not in target.ids
            )
            if missing and (target is None or parts.fragment):
                found.append(f"{page.name}: {link}")
    return found


def from_elsewhere(site: dict[Path, Html]) -> list[str]:
    """What a reader's browser would ask another server for."""
    return [
        f"{page.name}: {link}"
        for page, html in site.items()
        for link in html.fetched
        if urlsplit(link).netloc
    ]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("site") / "site"
    argv = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(place)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return place


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Html]:
    return {path: read(path) for path in site.rglob("*.html") if path.name != "404.html"}


def test_every_page_of_the_documents_is_in_the_site(pages: dict[Path, Html], site: Path) -> None:
    written = {
        path.relative_to(ROOT / "docs").with_suffix(".html")
        for path in our_files(".md")
        if path.is_relative_to(ROOT / "docs")
    }
    built = {path.relative_to(site) for path in pages}
    assert written - built == set()
    assert Path("project/SECURITY.html") in built


def test_every_link_of_the_site_leads_to_a_page_and_a_part_of_it(pages: dict[Path, Html]) -> None:
    assert dead(pages) == []


def test_a_browser_fetches_nothing_from_elsewhere(pages: dict[Path, Html], site: Path) -> None:
    assert from_elsewhere(pages) == []
    styles = {path.name: path.read_text("utf-8") for path in site.rglob("*.css")}
    assert styles
    outside = re.compile(r"(?:@import|url\()\s*[\"']?(?:https?:)?//")
    assert [name for name, text in styles.items() if outside.search(text)] == []


def test_a_dead_link_and_a_foreign_script_are_noticed(tmp_path: Path) -> None:
    page, other = tmp_path / "a.html", tmp_path / "b.html"
    page.write_text(
        '<h1 id="here"></h1><a href="#here"><a href="b.html#there"><a href="b.html"><a href="c.html">'
        '<a href="https://example.org/"><script src="//example.org/x.js"></script><a href="#gone">'
    )
    other.write_text("<p>")
    site = {path: read(path) for path in (page, other)}
    assert dead(site) == ["a.html: b.html#there", "a.html: c.html", "a.html: #gone"]
    assert from_elsewhere(site) == ["a.html: //example.org/x.js"]
