"""Whatever commands do: applied, the project is what it was inside; discarded, what it was."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.backends.boxes import GROUP, SOME_KINDS, USER, Kind, require_bubblewrap
from tests.overlay.driving import Project, a_project
from tests.overlay.snapshots import SNAPSHOT, exactly, snapshot

# One edit after the other; those that are not possible are not done.
EDIT = """
import contextlib, json, os, shutil, stat, sys
def opener(path, flags):  # A pipe has nobody at its other end, who would be waited for.
    return os.open(path, flags | os.O_NONBLOCK, 0o666)
def rmtree(path):  # Of a pipe, shutil's would wait for somebody at its other end.
    if stat.S_ISDIR(os.lstat(path).st_mode): shutil.rmtree(path)
def move(path, other):  # Into itself by way of a link, shutil's would go on for ever.
    if not (os.path.realpath(other) + "/").startswith(os.path.realpath(path) + "/"):
        shutil.move(path, other)
def edit(steps):
    for name, path, other, mode in steps:
        with contextlib.suppress(OSError, shutil.Error):
            if name == "write":
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
                with open(path, "w", opener=opener) as file: file.write(other * mode)
            if name == "append":
                with open(path, "a", opener=opener) as file: file.write(other)
            if name == "mkdir": os.makedirs(path)
            if name == "remove": os.remove(path)
            if name == "rmtree": rmtree(path)
            if name == "again": rmtree(path); os.mkdir(path)
            if name == "move": move(path, other)
            if name == "rename": os.rename(path, other)
            if name == "link": os.link(path, other, follow_symlinks=False)
            if name == "symlink": os.symlink(other, path)
            if name == "mkfifo": os.mkfifo(path)
            if name == "chmod": os.chmod(path, (0o500 if os.path.isdir(path) else 0o400) | mode)
            if name == "sparse": os.truncate(path, mode * 4096)
            if name == "touch": os.utime(path, follow_symlinks=False)
            if name == "open": open(path, "r+", opener=opener).close()
"""
NAMES = ("a", "b", "d", "d/a", "d/b", "d/d", "d/d/a", "e", "e/a", "e\nf", "d/-x\x1b[m")
ACTIONS = """write write append mkdir remove rmtree again move rename link symlink mkfifo chmod sparse
    touch open""".split()
MODES = (0o644, 0o755, 0o600, 0o444, 0o700)
STEPS = st.lists(
    st.tuples(
        st.sampled_from(ACTIONS),
        st.sampled_from(NAMES),
        st.sampled_from(NAMES),
        st.sampled_from(MODES),
    ),
    max_size=25,
)
INSIDE = f"{EDIT}\n{SNAPSHOT}\nedit(json.loads(sys.argv[1])); print(json.dumps(snapshot('.')))"
Steps = list[tuple[str, str, str, int]]


@pytest.fixture(scope="module", autouse=True)
def bubblewrap() -> None:
    require_bubblewrap()


def begin(path: Path, steps: Steps, *, owned: bool) -> None:
    """Fill the project itself, here and now."""
    space: dict[str, Any] = {}
    home = os.getcwd()
    os.chdir(path)
    try:
        exec(EDIT, space)  # noqa: S102 - our own text, which has to run inside, too
        space["edit"](steps)
    finally:
        os.chdir(home)
    if owned and os.geteuid() == 0:
        for each in path.rglob("*"):
            os.chown(each, USER, GROUP, follow_symlinks=False)


def clear(path: Path) -> None:
    """Empty the project for the next example."""
    for above, _, _ in os.walk(path):
        os.chmod(above, 0o700)
    for each in path.iterdir():
        if each.is_dir() and not each.is_symlink():
            shutil.rmtree(each)
        else:
            each.unlink()


def without_links(found: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Which names are one file has tests of its own: the kernel's numbers differ between mounts."""
    return {path: what[:4] for path, what in found.items()}


def check(project: Project, first: Steps, then: Steps, dropped: Steps, last: Steps) -> None:
    clear(project.path)
    begin(project.path, first, owned=project.box.kind != "root's workspace")
    before = exactly(project.path)

    def inside(steps: Steps) -> tuple[str, list[str]]:
        return "run", ["python3", "-c", INSIDE, json.dumps(steps)]

    said = project.do(
        inside(then),
        ("checkpoint", "here"),
        inside(dropped),
        ("rollback", "here"),
        inside([]),
        inside(last),
    )
    assert exactly(project.path) == before
    looks = [without_links(json.loads(said[at][1])) for at in (0, 4, 5)]
    assert looks[0] == looks[1]
    applied, changes = project.do(("apply",), ("changes",))
    assert applied["refused"] == []
    assert changes == []
    assert without_links(snapshot(project.path)) == looks[2]
    gone = project.do(inside(dropped), ("discard",), ("changes",))
    assert gone[2] == []
    assert without_links(snapshot(project.path)) == looks[2]


@pytest.mark.slow("each example takes a second: sandboxes are opened and closed")
@pytest.mark.parametrize(
    "examples", [3, pytest.param(30, marks=pytest.mark.extended("long fuzz: more examples"))]
)
@pytest.mark.parametrize("kind", SOME_KINDS)
def test_what_is_applied_is_what_was_inside(kind: Kind, examples: int) -> None:
    # One that fails is not made smaller: each try takes a second.
    @settings(
        max_examples=examples,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )
    @given(first=STEPS, then=STEPS, dropped=STEPS, last=STEPS)
    def whatever_is_done(first: Steps, then: Steps, dropped: Steps, last: Steps) -> None:
        check(project, first, then, dropped, last)

    with a_project(kind) as project:
        whatever_is_done()
