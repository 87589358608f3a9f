"""Trees of strangers are removed whole, and nothing beside them is touched."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kakoi.removing import empty, remove_tree


def test_a_tree_goes_whatever_is_in_it(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    for name in ("0", "1", "a\nb", "deep/er"):
        (tree / name).mkdir(parents=True)
        (tree / name / "file").write_text("x")
    os.mkfifo(tree / "pipe")
    (tree / "dangling").symlink_to("nowhere")
    (tree / "deep" / "up").symlink_to(tmp_path)
    remove_tree(tree)
    assert os.listdir(tmp_path) == []
    remove_tree(tree)


def test_no_depth_is_too_deep(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(fd)
    remove_tree(tmp_path / "d")
    assert os.listdir(tmp_path) == []


def test_an_open_directory_is_emptied_and_stays(tmp_path: Path) -> None:
    (tmp_path / "7" / "7").mkdir(parents=True)
    (tmp_path / "0").write_text("x")
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        empty(fd)
    finally:
        os.close(fd)
    assert os.listdir(tmp_path) == []


def test_a_link_goes_and_what_it_names_stays(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").write_text("x")
    (tmp_path / "link").symlink_to("kept")
    remove_tree(tmp_path / "link")
    assert sorted(os.listdir(tmp_path)) == ["kept"]
    assert os.listdir(tmp_path / "kept") == ["file"]


SHUT = """
import os, pathlib, sys
from kakoi.removing import remove_tree
if os.getuid() == 0:
    os.setuid(65534)
path = pathlib.Path(sys.argv[1])
kept = path.with_name("kept")
kept.write_text("x")
kept.chmod(0o640)
(path / "a" / "b").mkdir(parents=True)
(path / "a" / "b" / "c").write_text("x")
(path / "a" / "b" / "link").symlink_to(kept)
(path / "a" / "b").chmod(0o500)
(path / "a").chmod(0)
path.chmod(0o500)
remove_tree(path)
assert not path.exists()
assert kept.stat().st_mode & 0o777 == 0o640
"""


def test_what_is_shut_is_removed_by_whoever_is_not_root() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", SHUT, f"{folder}/work"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
