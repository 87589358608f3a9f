"""verify: whatever was done to the log afterwards is found; what a killed writer left is not blamed."""

import json
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kakoi.audit import Event, Verification, read, verify
from kakoi.audit.records import GENESIS, LONGEST_LINE, seal
from tests.audit.logs import filled, log_at, run_python, started


def lines_of_a_log(count: int) -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "audit.jsonl")
        filled(path, count)
        return path.read_bytes().splitlines(keepends=True)


LINES = lines_of_a_log(6)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def verified(path: Path, data: bytes) -> Verification:
    path.write_bytes(data)
    path.chmod(0o600)
    return verify(path)


def verified_lines(lines: list[bytes]) -> Verification:
    with tempfile.TemporaryDirectory() as folder:
        return verified(Path(folder, "audit.jsonl"), b"".join(lines))


# --- An honest log ---------------------------------------------------------------------------


def test_a_log_as_it_was_written_is_whole(path: Path) -> None:
    last = filled(path, 5).append(started(6))
    assert verify(path) == Verification(
        files=1,
        records=6,
        first_seq=1,
        last_seq=6,
        last_hash=last.hash,
        problems=(),
        problem_count=0,
        torn=(),
        anchor_seq=None,
    )


def test_a_log_that_is_not_there_or_empty_has_no_records(path: Path) -> None:
    answer = verify(path)
    assert (answer.ok, answer.files, answer.records, answer.last_hash) == (True, 0, 0, GENESIS)
    assert (verified(path, b"").ok, verify(path).files) == (True, 1)


# --- Tampering -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change", [lambda old: old ^ 1, lambda _: 0x0A, lambda _: 0x7D, lambda _: 0]
)
def test_each_change_of_a_single_byte_is_found(path: Path, change: Callable[[int], int]) -> None:
    whole = b"".join(LINES[:3])
    missed = []
    for position, old in enumerate(whole):
        new = change(old)
        data = whole[:position] + bytes([new]) + whole[position + 1 :]
        if new != old and verified(path, data).ok:
            missed.append(position)
    assert missed == []


def test_each_removal_of_a_single_byte_is_found_but_of_the_last_newline(path: Path) -> None:
    whole = b"".join(LINES[:3])
    missed = [
        position
        for position in range(len(whole))
        if verified(path, whole[:position] + whole[position + 1 :]).ok
    ]
    assert missed == [len(whole) - 1]
    assert verify(path).records == 3


@given(st.data())
def test_any_other_stretch_in_place_of_one_is_found(data: st.DataObject) -> None:
    whole = b"".join(LINES)
    # Up to the last line: what is cut off at the end, and what follows then, only others know.
    end = len(whole) - len(LINES[-1])
    start = data.draw(st.integers(0, end - 1))
    stop = data.draw(st.integers(start, end))
    new = data.draw(st.binary(max_size=20) | st.sampled_from(LINES))
    changed = whole[:start] + new + whole[stop:]
    assume(changed != whole)
    assert not verified_lines([changed]).ok


@given(st.permutations(range(len(LINES))))
def test_any_other_order_of_the_lines_is_found(order: list[int]) -> None:
    assert verified_lines([LINES[n] for n in order]).ok == (order == sorted(order))


@given(st.sets(st.integers(0, len(LINES) - 1)))
def test_any_removed_lines_are_found_unless_nothing_follows_them(removed: set[int]) -> None:
    kept = [n for n in range(len(LINES)) if n not in removed]
    is_head = kept == list(range(len(kept)))
    assert verified_lines([LINES[n] for n in kept]).ok == is_head


@given(st.integers(0, len(LINES) - 1), st.integers(0, len(LINES)))
def test_a_line_that_stands_twice_is_found(line: int, place: int) -> None:
    assert not verified_lines([*LINES[:place], LINES[line], *LINES[place:]]).ok


@pytest.mark.parametrize("strange", [b"\n", b"hello\n", b"{}\n", b"\0\n", b"\xff\xfe\n"])
@pytest.mark.parametrize("place", [0, 3, 6])
def test_a_line_that_is_not_a_record_is_found(path: Path, strange: bytes, place: int) -> None:
    answer = verified(path, b"".join([*LINES[:place], strange, *LINES[place:]]))
    assert [(each.line, each.why) for each in answer.problems] == [
        (place + 1, "the line is not a valid record")
    ]


def test_a_changed_line_is_reported_once_with_its_location(path: Path) -> None:
    lines = [*LINES[:2], LINES[2].replace(b"echo 3", b"echo x"), *LINES[3:]]
    (problem,) = verified(path, b"".join(lines)).problems
    assert (problem.file, problem.line) == (path, 3)


def test_removed_lines_are_reported_by_their_numbers(path: Path) -> None:
    (problem,) = verified(path, b"".join([LINES[0], *LINES[3:]])).problems
    assert (problem.line, problem.why) == (2, "records 2 to 3 are missing before it")
    (problem,) = verified(path, b"".join(LINES[1:])).problems
    assert problem.why == "record 1 is missing before it; no rotation dropped them"


def test_a_record_that_was_replaced_with_a_hash_of_its_own_is_found(tmp_path: Path) -> None:
    forged = tmp_path / "forged.jsonl"
    forged.write_bytes(b"".join(LINES[:2]))
    forged.chmod(0o600)
    log_at(forged).append(started(3, "harmless"))
    forgery = forged.read_bytes().splitlines(keepends=True)[2]
    answer = verified(tmp_path / "audit.jsonl", b"".join([*LINES[:2], forgery, *LINES[3:]]))
    assert [(each.line, each.why) for each in answer.problems] == [
        (4, "the previous record is not the one that was written")
    ]


def test_a_first_record_that_was_not_the_first_is_found(path: Path) -> None:
    """What stood before it was removed, and its number and hash were made to fit."""
    fields = json.loads(LINES[1])
    del fields["hash"]
    _, line = seal({**fields, "seq": 1})
    assert [each.why for each in verified(path, line).problems] == [
        "the previous record is not the one that was written"
    ]


def test_a_flood_of_problems_is_counted_and_not_kept(path: Path) -> None:
    answer = verified(path, b"x\n" * 50_000 + LINES[0])
    assert (len(answer.problems), answer.problem_count) == (100, 50_000)


# --- A hash kept elsewhere -------------------------------------------------------------------


def test_a_kept_hash_shows_that_the_end_was_cut_off(path: Path) -> None:
    log = filled(path, 3)
    kept = log.append(started(4)).hash
    assert verify(path, last_hash=kept).anchor_seq == 4
    log.append(started(5))
    assert verify(path, last_hash=kept).ok
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    assert verify(path).ok
    answer = verify(path, last_hash=kept)
    assert (answer.ok, answer.anchor_seq) == (False, None)
    assert kept in answer.problems[0].why


def test_a_kept_hash_shows_that_all_was_rewritten_or_removed(path: Path) -> None:
    kept = filled(path, 3).append(started(4)).hash
    path.unlink()
    assert not verify(path, last_hash=kept).ok
    filled(path, 10)
    assert verify(path).ok
    assert not verify(path, last_hash=kept).ok


# --- Torn lines ------------------------------------------------------------------------------


def test_an_end_torn_at_any_byte_is_recovered_from_and_not_called_tampering(path: Path) -> None:
    head, last = b"".join(LINES[:2]), LINES[2]
    for kept in range(1, len(last) - 1):
        answer = verified(path, head + last[:kept])
        assert (answer.ok, answer.records, [t.line for t in answer.torn]) == (True, 2, [3]), kept
        log_at(path).append(started(3))
        answer = verify(path)
        assert (answer.ok, answer.records, [t.line for t in answer.torn]) == (True, 4, [3]), kept
        recovered, added = list(read(path))[2:]
        assert (recovered.event, recovered.seq, recovered.torn_bytes) == ("recovered", 3, kept)
        assert (added.event, added.seq) == ("started", 4)


def test_a_last_line_that_lacks_its_newline_only_is_not_lost(path: Path) -> None:
    answer = verified(path, b"".join(LINES[:3])[:-1])
    assert (answer.ok, answer.records, answer.torn) == (True, 3, ())
    log_at(path).append(started(4))
    assert [record.seq for record in read(path)] == [1, 2, 3, 4]
    assert path.read_bytes().startswith(b"".join(LINES[:3]))


def test_a_recovery_that_is_torn_itself_is_recovered_from(path: Path) -> None:
    head, fragment = b"".join(LINES[:2]), LINES[2][:40]
    verified(path, head + fragment)
    log_at(path).append(started(3))
    recovered = path.read_bytes()[len(head + fragment) :]
    # After its newline: killed right before, the end is as it was.
    for kept in range(2, len(recovered) - 1):
        answer = verified(path, head + fragment + recovered[:kept])
        assert answer.ok, kept
        log_at(path).append(started(4))
        answer = verify(path)
        assert (answer.ok, answer.torn[0].line) == (True, 3), kept


def test_the_first_line_of_all_may_be_torn(path: Path) -> None:
    assert verified(path, LINES[0][:30]).ok
    log_at(path).append(started(1))
    assert [(r.seq, r.event) for r in read(path)] == [(1, "recovered"), (2, "started")]
    assert verify(path).ok


def test_zeros_after_a_power_cut_are_a_torn_line(path: Path) -> None:
    for rest in (LINES[2][:40] + bytes(500), bytes(4096)):
        assert verified(path, b"".join(LINES[:2]) + rest).ok
        log_at(path).append(started(3))
        assert (verify(path).ok, len(verify(path).torn)) == (True, 1)


@pytest.mark.parametrize(
    "rest",
    [
        b"hello",
        LINES[3][:50],
        LINES[1][:50],
        LINES[2][:50] + b"\n",
        LINES[2][:50] + b"\n" + b"more",
        LINES[2].replace(b"echo 3", b"echo x"),
        LINES[2].replace(b"echo 3", b"echo x")[:-1],
        LINES[2].replace(b"echo 3", b"echo x")[:-2] + b"x",
        LINES[2][:-1] + b"x",
    ],
    ids=range(9),
)
def test_what_no_killed_writer_leaves_is_not_a_torn_line(path: Path, rest: bytes) -> None:
    assert not verified(path, b"".join(LINES[:2]) + rest).ok
    log_at(path).append(started(3))
    answer = verify(path)
    assert not answer.ok
    assert answer.torn == ()


def torn_and_recovered(path: Path) -> list[bytes]:
    verified(path, b"".join(LINES[:2]) + LINES[2][:40])
    log_at(path).append(started(3))
    return path.read_bytes().splitlines(keepends=True)


def test_a_torn_line_cannot_be_changed_moved_or_removed_later(path: Path) -> None:
    one, two, torn, recovered, added = torn_and_recovered(path)
    for lines in (
        [one, two, recovered, added],
        [one, two, torn[:-2] + b"x\n", recovered, added],
        [one, two, torn[:-2] + b"\n", recovered, added],
        [one, two, torn, torn, recovered, added],
        [one, torn, two, recovered, added],
        [one, two, torn, added],
        [one, two, recovered, torn, added],
    ):
        assert not verified(path, b"".join(lines)).ok, lines


def test_a_line_made_to_look_torn_hides_nothing(path: Path) -> None:
    for place in range(len(LINES) - 1):
        lines = [*LINES]
        lines[place] = lines[place][:40] + b"\n"
        assert not verified(path, b"".join(lines)).ok


# --- Hostile files ---------------------------------------------------------------------------

BOUNDED = """
import os, resource, sys
from kakoi.audit import read, tail, verify
path, limit = sys.argv[1], 300 << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
assert os.stat(path).st_size > limit
answer = verify(path)
print(answer.ok, answer.records, len(list(read(path))), len(tail(path, 5)))
"""


def test_a_huge_line_takes_no_memory(path: Path) -> None:
    with path.open("wb") as file:
        file.write(b"".join(LINES[:3]))
        file.seek(400 << 20, 1)  # A hole: it takes no room on the disk.
        file.write(b"\n" + b"".join(LINES[3:]))
    assert run_python(BOUNDED, str(path)).split() == ["False", "6", "6", "5"]


def test_a_line_longer_than_any_record_is_one_problem(path: Path) -> None:
    for size in (LONGEST_LINE - 1, LONGEST_LINE, LONGEST_LINE + 1, 3 * LONGEST_LINE):
        answer = verified(path, LINES[0] + b"x" * size + b"\n" + b"".join(LINES[1:]))
        assert [each.line for each in answer.problems] == [2], size
        assert answer.records == 6


def test_a_record_of_the_log_itself_is_read_like_any_other(path: Path) -> None:
    torn_and_recovered(path)
    assert [record.event for record in read(path)][2] is Event.RECOVERED
