"""Descriptors that somebody has made non-blocking: waited for, and not taken for ended or full."""

import contextlib
import fcntl
import os
import resource
import threading
from collections.abc import Iterator

import pytest

from kakoi.descriptors import read_some, write_whole


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
