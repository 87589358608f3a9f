"""The documents are true: links lead somewhere, and nothing of one machine is in them.

Whether examples do what is shown, and whether the site can be read: tests/docs.
"""

import re
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from types import FrameType

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kakoi.policy.decide import decide
from kakoi.policy.profiles import load_policy
from kakoi.settings.model import settings_table
from tests.docs.pages import PAGES, ROOT, our_files, shown

# --- Links -----------------------------------------------------------------------------------


def dead_links(path: Path, text: str) -> list[str]:
    """Relative link targets that do not exist. Code is not searched: brackets mean other things."""
    prose = re.sub(r"^```.*?^```$|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)
    targets = re.findall(r"\]\(([^)\s]+)\)", prose)
    files = [target.partition("#")[0] for target in targets if not re.match(r"\w+:|#", target)]
    return [target for target in files if not (path.parent / target).exists()]


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    assert dead_links(path, path.read_text(encoding="utf-8")) == []


def test_a_dead_link_is_noticed() -> None:
    text = "[a](README.md) [b](gone.md#part) [c](https://example.org/x) `[d](gone2.md)`"
    assert dead_links(ROOT / "x.md", text) == ["gone.md"]


def test_the_reference_is_what_the_code_says() -> None:
    argv = [sys.executable, str(ROOT / "scripts" / "reference"), "--check"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# --- What is named is there ------------------------------------------------------------------

SOURCE = ROOT / "src/kakoi"
OUR_FOLDERS = "bench docs examples infra requirements scripts src tests"
NO_SETTINGS = ("sandbox.typ", "audit.jsonl")  # A mistake that is shown, and a file.


def missing(text: str) -> list[str]:
    """Settings and files of the repository that a page names and nobody has."""
    sections = "|".join({path.partition(".")[0] for path in settings_table()})
    settings = re.findall(rf"`((?:{sections})(?:\.[a-z_]+)+)[:`]", text)
    known = {name for path, setting in settings_table().items() for name in (path, *setting.also)}
    groups = {name.rpartition(".")[0] for name in known}
    folders = OUR_FOLDERS.replace(" ", "|")
    files = re.findall(rf"`(?:python )?((?:{folders})/[\w./*-]+)[` :]", text)
    return [
        *(name for name in settings if name not in known | groups | {*NO_SETTINGS}),
        *(name for name in files if not any(ROOT.glob(name.rstrip("/")))),
    ]


@pytest.mark.parametrize("path", PAGES, ids=shown)
def test_settings_and_files_that_a_page_names_are_there(path: Path) -> None:
    assert missing(path.read_text(encoding="utf-8")) == []


def test_a_setting_and_a_file_that_nobody_has_are_noticed() -> None:
    text = "`sandbox.type: docker` `sandbox.tipe` `tasks.sources.labels` `bench/*.py` `src/x.py`"
    assert missing(text) == ["sandbox.tipe", "src/x.py"]


# --- The journeys ----------------------------------------------------------------------------

# How many files a reader of each journey has to open, at most.
MOST_FILES = {"judged": 20, "`kakoi run`": 30, "MCP": 16, "`ShellExecutor.exec`": 10, "A task": 40}


def stops(journey: str) -> list[str]:
    """The modules that a journey names; a bare name is in the folder of the one before it."""
    folder, found = "", []
    for name in re.findall(r"`([a-z_/]+)`", journey):
        above, _, module = name.rpartition("/")
        folder = above or folder
        found.append(f"{folder}/{module}".lstrip("/"))
    return found


def test_the_journeys_pass_files_that_are_there_and_few_of_them() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    section = text.partition("## Five journeys")[2].partition("\n## ")[0]
    journeys = re.findall(r"^- \*\*(.*?)\*\*(.*?)(?=^- |\Z)", section, re.MULTILINE | re.DOTALL)
    for (title, way), (name, most) in zip(journeys, MOST_FILES.items(), strict=True):
        assert name in title
        assert len(stops(way.partition("**")[0])) <= most
        assert [each for each in stops(way) if not (SOURCE / f"{each}.py").exists()] == []


# How often whoever steps through the judgement of a command changes files, at most.
MOST_SWITCHES = 49


def file_switches(work: Callable[[], object]) -> int:
    """How often a call goes to another file of the package than the call before it."""
    files: list[str] = []

    def note(frame: FrameType, event: str, _argument: object) -> None:
        code = frame.f_code
        if event == "call" and not code.co_name.startswith("<"):
            files.append(code.co_filename)

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    ours = [file for file in files if file.startswith(str(SOURCE))]
    return sum(one != other for one, other in pairwise(ours))


def test_judging_a_command_changes_files_seldom() -> None:
    policy = load_policy("coding-agent")
    # What is loaded once, when it is first needed, is no part of the journey.
    assert decide(policy, "git pull --force").verdict
    assert decide(policy, "git push").verdict
    # No other test judges here, so the answer is not cached.
    switches = file_switches(lambda: decide(policy, "git push --force", cwd="/journey"))
    assert 1 < switches <= MOST_SWITCHES


# --- Nothing of one machine ------------------------------------------------------------------

# Put together from pieces, so that this file does not hold what it looks for.
WORK, DOT = "/" + "work" + "/", "."
MACHINE_PATHS = tuple(WORK + folder for folder in ("main", "shared", "steering", "in/"))
REGISTRIES = tuple(
    DOT.join(parts)
    for parts in (
        ("pypi", "org"),
        ("files", "pythonhosted", "org"),
        ("deb", "debian", "org"),
        ("security", "debian", "org"),
        ("registry", "npmjs", "org"),
        ("proxy", "golang", "org"),
    )
)


def machine_traces(text: str) -> list[str]:
    return [needle for needle in (*MACHINE_PATHS, *REGISTRIES) if needle in text]


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    texts = {shown(path): path.read_text("utf-8", errors="replace") for path in our_files()}
    traces = {path: machine_traces(text) for path, text in texts.items()}
    assert {path: found for path, found in traces.items() if found} == {}


def test_a_registry_is_noticed() -> None:
    assert machine_traces("--index-url https://" + REGISTRIES[0]) == [REGISTRIES[0]]


def test_the_pinned_requirements_hold_no_index_options() -> None:
    options = re.compile(r"^\s*(-i|-f|--(extra-)?index-url|--find-links|--trusted-host)\b", re.M)
    files = sorted((ROOT / "requirements").glob("*.txt"))
    assert files
    assert [shown(path) for path in files if options.search(path.read_text("utf-8"))] == []


@pytest.mark.parametrize("python", ["3.11.0", "3.11.2", "3.11.9", "3.12.4", "3.13.1", "3.14.0"])
def test_what_a_pinned_package_needs_on_some_python_is_pinned_too(python: str) -> None:
    """pip stops at a requirement without a hash, so a newcomer with that Python could not begin."""
    text = (ROOT / "requirements" / "dev.txt").read_text("utf-8")
    pins = [Requirement(line) for line in re.findall(r"^[\w.-]+==[^\\\n]+", text, re.M)]
    minor = python.rpartition(".")[0]
    there = {"python_full_version": python, "python_version": minor, "extra": ""}
    pinned = {
        canonicalize_name(each.name)
        for each in pins
        if not each.marker or each.marker.evaluate(there)
    }
    needed = {
        canonicalize_name(requirement.name): name
        for name in pinned
        for requirement in needs_of(name)
        if not requirement.marker or requirement.marker.evaluate(there)
    }
    assert len(pinned) > 20
    assert {name: by for name, by in needed.items() if name not in pinned} == {}


def needs_of(package: str) -> list[Requirement]:
    try:
        return [Requirement(text) for text in metadata.requires(package) or ()]
    except metadata.PackageNotFoundError:  # Pinned for another Python than this one.
        return []
