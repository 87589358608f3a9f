"""Rotation: the chain goes across files, and only what a rotation dropped may be missing."""

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from kakoi.audit import AuditLog, Event, read, verify
from tests.audit.logs import log_at, started

MAX_BYTES = 1000


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def rotating(path: Path, keep: int = 3) -> AuditLog:
    return log_at(path, max_bytes=MAX_BYTES, keep=keep)


def fill(log: AuditLog, count: int) -> None:
    for number in range(count):
        log.append(started(number))


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.parent.iterdir())


def numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def test_a_full_file_is_put_away_under_a_number(path: Path) -> None:
    fill(rotating(path), 40)
    assert names(path) == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2", "audit.jsonl.3"]
    assert all(p.stat().st_size < MAX_BYTES + 1000 for p in path.parent.iterdir())
    assert all(p.stat().st_mode & 0o777 == 0o600 for p in path.parent.iterdir())


def test_the_chain_goes_across_files(path: Path) -> None:
    fill(rotating(path, keep=50), 40)
    answer = verify(path)
    assert (answer.ok, answer.first_seq) == (True, 1)
    assert answer.files > 5
    records = list(read(path))
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    assert sum(record.event is Event.STARTED for record in records) == 40


def test_what_a_rotation_drops_is_not_a_problem_and_can_be_seen(path: Path) -> None:
    fill(rotating(path, keep=2), 40)
    answer = verify(path)
    assert (answer.ok, answer.files) == (True, 3)
    assert answer.first_seq > 1
    said = [record for record in read(path) if record.event is Event.ROTATED]
    assert said[-1].oldest_seq == answer.first_seq


def test_a_single_file_is_kept_if_that_is_wanted(path: Path) -> None:
    fill(rotating(path, keep=1), 40)
    assert names(path) == ["audit.jsonl", "audit.jsonl.1"]
    assert verify(path).ok


def test_any_removed_file_but_the_newest_is_found(path: Path) -> None:
    fill(rotating(path, keep=4), 40)
    for number in range(1, 5):
        away = path.parent / "away"
        os.rename(numbered(path, number), away)
        assert not verify(path).ok, number
        os.rename(away, numbered(path, number))
    assert verify(path).ok


def test_the_oldest_file_cannot_be_removed_by_renumbering_the_others(path: Path) -> None:
    fill(rotating(path, keep=3), 40)
    for number in (2, 1):
        os.rename(numbered(path, number), numbered(path, number + 1))
    assert not verify(path).ok


def test_removing_all_but_the_newest_file_is_found(path: Path) -> None:
    fill(rotating(path), 41)
    for number in (1, 2, 3):
        numbered(path, number).unlink()
    assert not verify(path).ok


def test_lines_removed_from_the_beginning_of_the_oldest_file_are_found(path: Path) -> None:
    fill(rotating(path, keep=2), 40)
    oldest = numbered(path, 2)
    lines = oldest.read_bytes().splitlines(keepends=True)
    for first in range(1, len(lines)):
        oldest.write_bytes(b"".join(lines[first:]))
        assert not verify(path).ok


def test_swapped_files_are_found(path: Path) -> None:
    fill(rotating(path), 40)
    one, two = numbered(path, 1).read_bytes(), numbered(path, 2).read_bytes()
    numbered(path, 1).write_bytes(two)
    numbered(path, 2).write_bytes(one)
    assert not verify(path).ok


def test_a_torn_line_in_an_older_file_is_tampering(path: Path) -> None:
    fill(rotating(path), 40)
    with numbered(path, 1).open("ab") as file:
        file.write(b'{"seq":')
    assert not verify(path).ok


def test_a_torn_line_at_the_end_of_a_full_file_is_recovered_from_before_rotation(
    path: Path,
) -> None:
    fill(rotating(path), 3)
    due = verify(path).last_seq + 1
    with path.open("ab") as file:
        file.write(b'{"seq":%d,"time":"2026' % due + b"0" * MAX_BYTES)
    fill(rotating(path), 3)
    answer = verify(path)
    assert (answer.ok, len(answer.torn)) == (True, 1)


def test_fewer_files_are_kept_when_fewer_are_wanted(path: Path) -> None:
    fill(rotating(path, keep=6), 60)
    assert len(names(path)) == 7
    fill(rotating(path, keep=2), 10)
    assert names(path) == ["audit.jsonl", "audit.jsonl.1", "audit.jsonl.2"]
    assert verify(path).ok


def test_files_of_other_names_are_left_alone(path: Path) -> None:
    others = [
        "audit.jsonl.old",
        "audit.jsonl.01",
        "audit.jsonl.1.gz",
        "audit.jsonl.²",
        "audit.jsonl.",
    ]
    for name in others:
        (path.parent / name).write_text("x")
    fill(rotating(path, keep=1), 40)
    assert verify(path).ok
    assert [(path.parent / name).read_text() for name in others] == ["x"] * len(others)


class Killed(BaseException):
    """Stands for the end of the process: nothing after it is done."""


@pytest.mark.parametrize("keep", [1, 2, 4])
@pytest.mark.parametrize("steps", range(6))
def test_a_rotation_that_is_killed_at_any_step_is_gone_on_from(
    path: Path, monkeypatch: pytest.MonkeyPatch, keep: int, steps: int
) -> None:
    fill(rotating(path, keep=4), 40)
    left = steps

    def counted(act: Callable[..., None]) -> Callable[..., None]:
        def step(*arguments: Path) -> None:
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            act(*arguments)

        return step

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", counted(os.rename))
        patched.setattr(os, "unlink", counted(os.unlink))
        with contextlib.suppress(Killed):
            fill(rotating(path, keep=keep), 10)
    assert verify(path).ok
    fill(rotating(path, keep=keep), 1)
    answer = verify(path)
    assert (answer.ok, answer.torn) == (True, ())
    fill(rotating(path, keep=keep), 20)
    assert verify(path).ok
    assert len(names(path)) == keep + 1


def test_a_missing_newest_file_is_reported(path: Path) -> None:
    fill(rotating(path), 40)
    path.unlink()
    answer = verify(path)
    assert [(each.file, each.line) for each in answer.torn] == [(path, 0)]
