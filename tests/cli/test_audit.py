"""`kakoi audit` as people and scripts use it: in a process of its own."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kakoi.audit import AuditEntry, AuditRecord, Event, end_entry, read
from kakoi.results import ExecutionResult
from kakoi.settings.audit_log import default_audit_file
from tests.audit.logs import PATIENCE_S, filled, log_at, started
from tests.cli.forked import Forked, kakoi


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def kakoi_audit(path: Path, *arguments: str) -> tuple[int, str, str]:
    env = {**os.environ, "KAKOI_AUDIT_FILE": str(path)}
    done = kakoi("audit", *arguments, cwd=Path.cwd(), env=env)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def busy(path: Path) -> list[AuditRecord]:
    log = log_at(path)
    run = started(0xA1, "make test")
    log.append(run)
    log.append(end_entry(run, ExecutionResult(2, "", "", 1500)))
    log.append(
        AuditEntry(
            event=Event.REFUSED,
            id="b2c3",
            command="sudo id",
            verdict="deny",
            rules=("privilege",),
            reason="`sudo` changes users, owners or privileges",
        )
    )
    return list(read(path))


# --- tail ------------------------------------------------------------------------------------


def test_the_newest_records_are_printed_one_a_line(path: Path) -> None:
    busy(path)
    status, out, err = kakoi_audit(path, "tail")
    assert (status, err) == (0, "")
    assert out.splitlines() == [
        "2026-01-02 03:04:05.001  00a1          started    make test",
        "2026-01-02 03:04:05.002  00a1          ended      exited, exit code 2 after 1500 ms",
        "2026-01-02 03:04:05.003  b2c3          refused    [privilege] sudo id",
    ]
    assert kakoi_audit(path, "tail", "-n", "1")[1].splitlines() == out.splitlines()[-1:]


def test_machines_get_the_lines_of_the_log_as_they_are(path: Path) -> None:
    busy(path)
    assert kakoi_audit(path, "tail", "--json")[1] == path.read_text()


def test_records_about_the_log_itself_are_shown_in_words(path: Path) -> None:
    log = log_at(path, max_bytes=200)
    log.append(started(1))
    log.append(started(2))
    assert "  -             rotated    kept from record 1 onward\n" in kakoi_audit(path, "tail")[1]
    with path.open("ab") as file:
        file.write(b'{"seq":4')
    log.append(started(3))
    words = "recovered  an incomplete line of 8 bytes precedes this one"
    assert words in kakoi_audit(path, "tail")[1]
    path.unlink()
    log.append(started(4))
    assert "cut        record 5 was written, and has disappeared" in kakoi_audit(path, "tail")[1]


def test_records_that_do_not_follow_each_other_are_warned_of(path: Path) -> None:
    filled(path, 4)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([lines[0], lines[1].replace(b"echo", b"true"), *lines[2:]]))
    status, out, err = kakoi_audit(path, "tail")
    assert (status, len(out.splitlines())) == (0, 3)
    assert err == (
        "kakoi: the log was changed between the records 1 and 3; run `kakoi audit verify`\n"
    )


@contextmanager
def following(path: Path, *arguments: str) -> Iterator["subprocess.Popen[str]"]:
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = ["audit", "tail", "--follow", *arguments, "--file", str(path)]
    with Forked(*words, text=True, **pipes) as follower:
        watchdog = threading.Timer(PATIENCE_S, follower.kill)
        watchdog.start()
        try:
            yield follower
        finally:
            watchdog.cancel()
            follower.kill()


def test_what_is_added_is_printed_as_it_comes_until_interrupted(path: Path) -> None:
    log = log_at(path, max_bytes=600)
    log.append(started(1))
    log.append(started(2))
    with following(path, "-n", "1", "--json") as follower:
        assert follower.stdout is not None
        assert json.loads(follower.stdout.readline())["id"] == "0002"
        for number in range(3, 9):
            log.append(started(number))
        expected = [record.seq for record in read(path)][2:]
        assert [json.loads(follower.stdout.readline())["seq"] for _ in expected] == expected
        follower.send_signal(signal.SIGINT)
        assert follower.wait(PATIENCE_S) == 130
        assert follower.stderr is not None
        assert follower.stderr.read() == ""


def test_following_waits_for_a_log_that_is_not_there_yet(path: Path) -> None:
    # Its first poll may come before or after the log is made; both print the record.
    with following(path) as follower:
        filled(path, 1)
        assert follower.stdout is not None
        assert follower.stdout.readline().endswith("started    echo 1\n")


# --- show ------------------------------------------------------------------------------------


def test_all_records_of_a_command_are_shown_in_full(path: Path) -> None:
    records = busy(path)
    status, out, _ = kakoi_audit(path, "show", "00a1")
    first, second = out.rstrip("\n").split("\n\n")
    assert status == 0
    assert "command        make test" in first.splitlines()
    assert "exit_code      2" in second.splitlines()
    assert f"hash           {records[1].hash}" in second.splitlines()
    assert "rules          privilege" in kakoi_audit(path, "show", "b2")[1].splitlines()


def test_the_beginning_of_an_id_is_enough_if_it_is_the_only_one(path: Path) -> None:
    log = log_at(path)
    for each in ("ab", "abcd", "abce", "cdef"):
        log.append(AuditEntry(event=Event.STARTED, id=each, command=f"echo {each}"))
    shown = kakoi_audit(path, "show", "--json", "cd")[1]
    assert [json.loads(line)["id"] for line in shown.splitlines()] == ["cdef"]
    assert json.loads(kakoi_audit(path, "show", "--json", "ab")[1])["id"] == "ab"
    status, out, err = kakoi_audit(path, "show", "abc")
    assert (status, out) == (1, "")
    assert err == "Error: several commands begin with 'abc': abcd, abce\n"


def test_an_unknown_id_names_the_nearest(path: Path) -> None:
    busy(path)
    status, out, err = kakoi_audit(path, "show", "b2c4")
    assert (status, out) == (1, "")
    assert err == "Error: No command has the id 'b2c4'. Did you mean b2c3?\n"


# --- verify ----------------------------------------------------------------------------------


def test_a_whole_log_is_ok_and_its_limits_are_reported(path: Path) -> None:
    last = busy(path)[-1]
    status, out, _ = kakoi_audit(path, "verify")
    assert status == 0
    assert out.splitlines() == [
        "ok: 3 records in 1 file, numbers 1 to 3",
        f"last hash: {last.hash}",
        "A hash chain cannot show that its end was cut off, or that all of it was rewritten.",
        "Store the last hash elsewhere: `kakoi audit verify --last-hash HASH` detects both.",
    ]


def test_a_changed_log_has_status_one_and_names_the_line(path: Path) -> None:
    filled(path, 3)
    path.write_bytes(path.read_bytes().replace(b"echo 2", b"echo x"))
    status, out, _ = kakoi_audit(path, "verify")
    assert status == 1
    assert out.startswith(f"changed[{path}:2]: the line is not a valid record\nNOT ok: ")
    status, out, _ = kakoi_audit(path, "verify", "--json")
    answer = json.loads(out)
    assert (status, answer["ok"], answer["problem_count"]) == (1, False, 1)
    assert answer["problems"][0]["line"] == 2


def test_a_torn_end_is_reported_and_is_ok(path: Path) -> None:
    filled(path, 2)
    with path.open("ab") as file:
        file.write(b'{"seq":3,')
    status, out, _ = kakoi_audit(path, "verify")
    assert status == 0
    assert out.startswith(f"torn[{path}:3]: the line is unfinished: its writer was killed\nok: ")


def test_dropped_records_are_reported(path: Path) -> None:
    log = log_at(path, max_bytes=500, keep=1)
    for number in range(20):
        log.append(started(number))
    status, out, _ = kakoi_audit(path, "verify")
    assert status == 0
    assert "rotation has deleted the " in out


def test_a_hash_that_was_kept_elsewhere_is_looked_for(path: Path) -> None:
    records = busy(path)
    status, out, _ = kakoi_audit(path, "verify", "--last-hash", records[1].hash)
    assert status == 0
    assert "the records up to 2 match the hash you gave" in out
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert kakoi_audit(path, "verify")[0] == 0
    assert kakoi_audit(path, "verify", "--last-hash", records[1].hash)[0] == 1
    path.unlink()
    assert kakoi_audit(path, "verify", "--last-hash", records[1].hash)[0] == 1
    assert kakoi_audit(path, "verify", "--last-hash", "abc")[0] == 2


# --- All of them -----------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["tail"], ["verify"], ["show", "ab"]], ids=str)
def test_without_a_log_the_message_says_how_to_get_one(path: Path, arguments: list[str]) -> None:
    status, out, err = kakoi_audit(path, *arguments)
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        f"kakoi: no audit log at {path}",
        "  hint: name another file with --file or KAKOI_AUDIT_FILE",
        "  next: kakoi explain AUDIT_FAILED",
    ]


@pytest.mark.parametrize("arguments", [["tail"], ["tail", "--json"], ["show", "ab"], ["show", "--json", "ab"]], ids=str)  # fmt: skip
def test_nothing_of_a_recorded_command_reaches_the_terminal_raw(
    path: Path, arguments: list[str]
) -> None:
    nasty = "echo \x1b]0;owned\x07 \x9b31m \u202e \r\n2026-01-01 fake line \ud800"
    entry = AuditEntry(
        event=Event.REFUSED, id="ab", command=nasty, cwd=nasty, rules=(nasty,), user=nasty
    )
    log_at(path).append(entry)
    status, out, err = kakoi_audit(path, *arguments)
    assert (status, err) == (0, "")
    assert all(char.isprintable() or char == "\n" for char in out)
    assert "\n2026-01-01 fake" not in out


def test_the_log_is_where_the_system_keeps_the_state_of_programs() -> None:
    default = default_audit_file
    assert default({"HOME": "/home/m"}) == Path("/home/m/.local/state/kakoi/audit.jsonl")
    assert default({"HOME": "/h", "XDG_STATE_HOME": "/s"}) == Path("/s/kakoi/audit.jsonl")
    assert default({"HOME": "/h", "XDG_STATE_HOME": "s"}) == Path(
        "/h/.local/state/kakoi/audit.jsonl"
    )
    assert default({}).is_absolute()
