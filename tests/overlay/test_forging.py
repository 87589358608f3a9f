"""Marks that an overlay reads, made by commands: nothing is deleted, hidden or led away by them."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.boxes import IS_ROOT, SOME_KINDS, require_bubblewrap
from tests.overlay.driving import Project, a_project
from tests.overlay.layers import a_desk, white_out, write
from tests.overlay.snapshots import exactly, snapshot

MARKS = {
    "opaque": b"y",
    "redirect": b"/../../../../etc",
    "metacopy": b"",
    "origin": b"\0\xfb\x1d\0",
    "whiteout": b"",
    "impure": b"y",
    "nlink": b"U-5",
    "overlay.opaque": b"y",
}
FORGE = f"""
import contextlib, ctypes, errno, json, os
said = {{}}
os.mkdir("made")
open("made/file", "w").close()
for path in ("keep", "keep/file", "made", "made/file"):
    for space in ("user", "trusted"):
        for name, value in {MARKS!r}.items():
            with contextlib.suppress(OSError):
                os.setxattr(path, f"{{space}}.overlay.{{name}}", value)
                with contextlib.suppress(OSError):
                    os.removexattr(path, f"{{space}}.overlay.origin")
                os.setxattr(path, f"{{space}}.overlay.{{name}}", value)
def tried(name, work):
    try: work()
    except OSError as error: said[name] = errno.errorcode[error.errno]
    else: said[name] = "done"
def rename_leaving_a_whiteout():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, b"keep/other", -100, b"keep/moved", 4) < 0:
        raise OSError(ctypes.get_errno(), "")
tried("mknod", lambda: os.mknod("keep/other2", 0o020000, 0))
tried("renameat2", rename_leaving_a_whiteout)
print(json.dumps(said))
"""


@pytest.fixture(params=SOME_KINDS)
def project(request: pytest.FixtureRequest) -> Iterator[Project]:
    require_bubblewrap()
    with a_project(request.param) as project:
        yield project


def test_marks_made_by_a_command_mean_nothing(project: Project) -> None:
    for name in ("keep/file", "keep/other", "keep/deep/er"):
        project.write(name, name)
    before = exactly(project.path)
    ran, changes, again, applied = project.do(
        ("run", ["python3", "-c", FORGE]),
        ("changes",),
        ("run", "find . -type f | sort"),
        ("apply",),
    )
    assert ran[0] == 0, ran
    # The kernel refuses to make what would read as a deletion.
    assert json.loads(ran[1]) == {"mknod": "EPERM", "renameat2": "EINVAL"}
    assert {each["path"]: each["kind"] for each in changes} == {
        "made": "added",
        "made/file": "added",
    }
    there = ["./keep/deep/er", "./keep/file", "./keep/other", "./made/file"]
    assert again[1].split() == there
    assert applied == {"done": ["made", "made/file"], "refused": []}
    after = exactly(project.path)
    assert {path: after[path] for path in before if path != str(project.path)} == {
        path: what for path, what in before.items() if path != str(project.path)
    }
    assert os.listxattr(project.path / "made") == os.listxattr(project.path / "made/file") == []


def test_marks_in_the_project_itself_lead_nowhere(project: Project) -> None:
    """A command without an overlay may have made them, for one with an overlay."""
    secret = write(project.path.parent / "secret/file", "secret")
    for name in ("a/file", "b/file", "c/file"):
        project.write(name, "mine")
    for folder in ("a", "b"):
        os.setxattr(project.path / folder, "user.overlay.redirect", b"/" + b"../" * 9 + b"etc")
    os.setxattr(project.path / "b", "user.overlay.opaque", b"y")
    before = exactly(project.path)
    ran, changes, _ = project.do(
        ("run", "cat a/file b/file c/file; ls a b; echo new > a/new; echo new > b/new"),
        ("changes",),
        ("discard",),
    )
    assert ran[1] == "minemineminea:\nfile\n\nb:\nfile\n"
    assert [each["path"] for each in changes] == ["a/new", "b/new"]
    assert exactly(project.path) == before
    assert secret.read_text() == "secret"


def test_what_is_in_a_directory_that_was_shut_is_reported_and_taken_over(project: Project) -> None:
    project.write("shut/file", "1")
    ran, changes, applied = project.do(
        (
            "run",
            "echo 2 > shut/file; mkdir -p new/er; echo 3 > new/er/file; ls new/er; "
            "chmod 444 shut; chmod 000 new/er; chmod 600 new",
        ),
        ("changes",),
        ("apply",),
    )
    assert ran[:2] == [0, "file\n"], ran
    assert [each["path"] for each in changes] == [
        "new",
        "new/er",
        "new/er/file",
        "shut",
        "shut/file",
    ]
    assert applied["refused"] == []
    modes = {name: (project.path / name).stat().st_mode & 0o777 for name in ("shut", "new")}
    assert modes == {"shut": 0o444, "new": 0o600}
    if IS_ROOT:
        assert (project.path / "new/er").stat().st_mode & 0o777 == 0
        assert (project.path / "new/er/file").read_text() == "3\n"
        assert (project.path / "shut/file").read_text() == "2\n"
    (project.path / "new").chmod(0o700)
    (project.path / "new/er").chmod(0o700)
    (project.path / "shut").chmod(0o700)


def test_a_file_that_was_moved_into_another_directory_is_not_a_conflict(project: Project) -> None:
    project.write("a", "1")
    project.write("b", "2")
    project.write("there/c", "3")
    said = project.do(
        ("run", "mkdir new; mv a new/a; mv b there/b"),
        ("checkpoint", "one"),
        ("run", "echo more >> new/a; echo more >> there/b"),
        ("changes",),
        ("apply",),
    )
    assert [each["conflict"] for each in said[3]] == [""] * 5
    assert said[4]["refused"] == []
    assert (project.path / "new/a").read_text() == "1more\n"
    assert (project.path / "there/b").read_text() == "2more\n"


def test_a_deletion_below_a_link_of_the_project_deletes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "outside/file", "outside")
    before = snapshot(tmp_path / "outside")
    desk = a_desk(tmp_path / "desk")
    white_out(desk.upper / "way/file")
    white_out(desk.upper / "nowhere")
    (desk.project / "way").symlink_to(tmp_path / "outside")
    desk.apply(force=True)
    assert snapshot(tmp_path / "outside") == before
