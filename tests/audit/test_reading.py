"""Reading: the last records, those of one command, and what is added meanwhile."""

import os
from pathlib import Path

import pytest

from kakoi.audit import AuditEntry, Event, Follower, find, read, tail
from tests.audit.logs import filled, log_at, started


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def seqs(records: object) -> list[int]:
    return [record.seq for record in records]  # type: ignore[attr-defined]


def test_there_is_nothing_to_read_without_a_log(path: Path) -> None:
    assert list(read(path)) == tail(path, 5) == list(find(path, "a")) == []
    assert list(Follower(path, 5).poll()) == []


@pytest.mark.parametrize("count", [0, 1, 3, 7, 100])
def test_the_tail_is_the_end_of_everything_across_files(path: Path, count: int) -> None:
    log = log_at(path, max_bytes=1000, keep=50)
    for number in range(30):
        log.append(started(number))
    assert tail(path, count) == list(read(path))[-count or 10**6 :]


def test_the_tail_is_found_behind_long_records(path: Path) -> None:
    log = log_at(path)
    for number in range(10):
        log.append(started(number, "x" * 8000))
    assert seqs(tail(path, 6)) == [5, 6, 7, 8, 9, 10]


def test_lines_that_are_not_records_are_passed_over(path: Path) -> None:
    filled(path, 3)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(
        b"".join([lines[0], b"nonsense\n", lines[1].replace(b"echo", b"rm -r"), lines[2]])
    )
    assert seqs(read(path)) == seqs(tail(path, 9)) == [1, 3]


def test_a_command_is_found_by_the_beginning_of_its_id_only(path: Path) -> None:
    log = log_at(path)
    log.append(AuditEntry(event=Event.STARTED, id="abcd", command='x,"id":"ab'))
    log.append(AuditEntry(event=Event.STARTED, id="cdab", command='{"seq":1,"id":"abcd"}'))
    log.append(AuditEntry(event=Event.ENDED, id="abcd", exit_code=0))
    assert seqs(find(path, "ab")) == [1, 3]
    assert seqs(find(path, "abce")) == seqs(find(path, '"')) == seqs(find(path, "é")) == []


def test_a_follower_gives_the_last_records_and_then_each_new_one_once(path: Path) -> None:
    log = filled(path, 5)
    follower = Follower(path, 2)
    assert seqs(follower.poll()) == [4, 5]
    assert seqs(follower.poll()) == []
    log.append(started(6))
    log.append(started(7))
    assert seqs(follower.poll()) == [6, 7]
    assert seqs(follower.poll()) == []


def test_a_follower_may_want_no_old_records(path: Path) -> None:
    log = filled(path, 5)
    follower = Follower(path, 0)
    assert seqs(follower.poll()) == []
    log.append(started(6))
    assert seqs(follower.poll()) == [6]


@pytest.mark.parametrize("count", [0, 1])
def test_a_follower_that_was_there_before_the_log_gets_all_of_it(path: Path, count: int) -> None:
    follower = Follower(path, count)
    assert seqs(follower.poll()) == []
    log = filled(path, 3)
    assert seqs(follower.poll()) == [1, 2, 3]
    log.append(started(4))
    assert seqs(follower.poll()) == [4]


def test_a_follower_misses_nothing_across_rotations(path: Path) -> None:
    log = log_at(path, max_bytes=1000, keep=50)
    follower = Follower(path, 1)
    seen: list[int] = []
    for number in range(40):
        for _ in range(number % 9):
            log.append(started(number))
        seen += seqs(follower.poll())
    assert seen == seqs(read(path))


def test_a_follower_begins_again_with_a_log_that_was_replaced(path: Path) -> None:
    filled(path, 5)
    follower = Follower(path, 5)
    list(follower.poll())
    os.rename(path, path.with_suffix(".away"))
    filled(path, 2)
    assert seqs(follower.poll()) == [1, 2]


def test_a_follower_goes_on_behind_a_torn_line(path: Path) -> None:
    filled(path, 2)
    with path.open("ab") as file:
        file.write(b'{"seq":3,')
    follower = Follower(path, 5)
    assert seqs(follower.poll()) == [1, 2]
    log_at(path).append(started(3))
    assert seqs(follower.poll()) == [3, 4]
