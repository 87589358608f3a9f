"""Trees are removed whole, and non-blocking descriptors are read and written to the end."""

import contextlib
import fcntl
import os
import resource
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi._support.files import empty, read_some, remove_tree, write_whole


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
from kakoi._support.files import remove_tree
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


def test_a_closed_folder_is_removed_by_a_normal_user() -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o777)
        done = subprocess.run(
            [sys.executable, "-c", SHUT, f"{folder}/work"],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends non-blocking, and with numbers as a program of many files has them, if it may."""
    low = os.pipe()
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    at = min(1500, most - 100)
    reading, writing = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, at) for end in low)
    for end in (reading, writing):
        os.set_blocking(end, False)
    for end in low:
        os.close(end)
    yield reading, writing
    for end in (reading, writing):
        with contextlib.suppress(OSError):
            os.close(end)


def test_more_than_fits_is_written_while_somebody_reads(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    data = os.urandom(1024) * 1024
    found = bytearray()

    def read_all() -> None:
        while len(found) < len(data):
            found.extend(read_some(reading, 100_000))

    reader = threading.Thread(target=read_all)
    reader.start()
    write_whole(writing, data)
    reader.join(60)
    assert bytes(found) == data


def test_an_end_is_an_end_and_nobody_to_read_an_error(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"last")
    os.close(writing)
    assert [read_some(reading, 10), read_some(reading, 10)] == [b"last", b""]
    reading, writing = os.pipe()
    os.close(reading)
    with pytest.raises(BrokenPipeError):
        write_whole(writing, b"x")
    os.close(writing)
