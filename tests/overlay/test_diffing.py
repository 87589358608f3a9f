"""Unified diffs: git understands them, hostile files do not hold them up."""

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kakoi.overlay.diffs import _hunks, _lines, quoted
from tests.overlay.layers import Desk, a_desk, copied_up, copy_of, white_out, write


def diff(desk: Desk, *paths: str) -> bytes:
    return b"".join(line for each in desk.overlay.diff(paths) for line in each.lines)


def texts(root: Path) -> dict[bytes, tuple[int, bytes]]:
    found = {}
    for above, _, names in os.walk(os.fsencode(root)):
        for name in names:
            path = os.path.join(above, name)
            is_link = os.path.islink(path)
            content = os.readlink(path) if is_link else Path(os.fsdecode(path)).read_bytes()
            mode = 0 if is_link else os.stat(path).st_mode & 0o100
            found[os.path.relpath(path, os.fsencode(root))] = (mode, content)
    return found


def test_git_makes_of_the_project_what_apply_makes_of_it(tmp_path: Path) -> None:
    def fill(project: Path) -> None:
        write(project / "poem", "".join(f"line {n}\n" for n in range(100)))
        write(project / "no end", "one\ntwo")
        write(project / "gone", "bye\n")
        write(project / "script", "#!/bin/sh\n")
        write(project / "was file", "x\n")
        os.symlink("poem", project / "link")

    desk = a_desk(tmp_path / "desk", fill)
    upper = desk.upper
    lines = [f"line {n}\n" for n in range(100) if n not in (3, 50, 51)]
    copied_up(upper / "poem", "".join(["new\n", *lines[:70], "between\n", *lines[70:]]))
    copied_up(upper / "no end", "one\ntwo\nthree")
    white_out(upper / "gone")
    copied_up(upper / "script", "#!/bin/sh\n").chmod(0o755)
    os.symlink("poem", upper / "was file")
    os.symlink("elsewhere", upper / "link")
    write(upper / 'new\nname "quoted" \\ \x1b[2J é', "content\n")
    write(upper / "deep/empty line", "\n\n")
    Path(os.fsdecode(os.fsencode(upper) + b"/bytes \xff\xfe")).write_bytes(b"caf\xe9 \x1b[31m\r\n")
    patched = copy_of(desk.project, tmp_path / "patched")
    patch = diff(desk)
    git = ["git", "apply", "--whitespace=nowarn"]
    env = {"PATH": os.environ["PATH"], "GIT_CEILING_DIRECTORIES": str(tmp_path)}
    done = subprocess.run(git, input=patch, cwd=patched, capture_output=True, env=env, timeout=60)
    assert done.returncode == 0, done.stderr
    assert desk.overlay.apply().refused == ()
    assert texts(patched) == texts(desk.project)


def test_some_are_only_named(tmp_path: Path) -> None:
    desk = a_desk(tmp_path, lambda project: write(project / "bin", b"\0\1"))
    upper = desk.upper
    copied_up(upper / "bin", "\0\2")
    with (upper / "big").open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(upper / "pipe")
    assert diff(desk).splitlines() == [
        b"diff --git a/big b/big",
        b"new file mode 100644",
        b"Binary files /dev/null and b/big differ",
        b"diff --git a/bin b/bin",
        b"Binary files a/bin and b/bin differ",
        b"fifo added: pipe",
    ]
    assert diff(desk, "pipe") == b"fifo added: pipe\n"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (b"a/plain name", b"a/plain name"),
        (b"a/new\nline", b'"a/new\\012line"'),
        (b"a/\x1b]0;title\x07", b'"a/\\033]0;title\\007"'),
        (b'a/"quote\\', b'"a/\\"quote\\\\"'),
        ("a/é".encode(), b'"a/\\303\\251"'),
    ],
)
def test_a_name_cannot_be_taken_for_anything_else(path: bytes, text: bytes) -> None:
    assert quoted(path) == text


def patched(old: list[bytes], body: list[bytes]) -> list[bytes]:
    """The lines after the hunks are applied, as their numbers say."""
    done: list[bytes] = []
    at = 0
    for line in body:
        if line.startswith(b"@@"):
            start, _, count = line.split()[1][1:].partition(b",")
            begin = int(start) - (count != b"0")
            done += old[at:begin]
            at = begin
        elif line.startswith(b"\\"):
            done[-1:] = [done[-1].removesuffix(b"\n")] if done else []
        elif line[:1] == b"+":
            done.append(line[1:])
        elif line[:1] == b"-":
            at += 1
        else:
            done.append(line[1:])
            at += 1
    return done + old[at:]


TEXT = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n"]), max_size=30)


@settings(max_examples=300)
@given(old=TEXT, new=TEXT)
def test_hunks_lead_from_one_text_to_the_other(old: list[bytes], new: list[bytes]) -> None:
    body, added, removed = _hunks(old, new)
    assert patched(old, body) == new
    assert len(old) + added - removed == len(new)
    assert (body == []) == (old == new)


def test_two_texts_with_nothing_in_common_are_replaced_as_a_whole() -> None:
    old = _lines(b"".join(b"%d\n" % n for n in range(60_000)))
    new = _lines(b"".join(b"%d\n" % -n for n in range(1, 60_000)))
    body, added, removed = _hunks(old, new)
    assert (added, removed) == (len(new), len(old))
    assert patched(old, body) == new
