"""A record is one line, whatever is in it, and a line is a record only as it was written."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.audit import AuditEntry, AuditRecord, Event, encode, end_entry
from kakoi.audit.records import GENESIS, LONGEST_LINE, clean_fields, decode, seal
from kakoi.errors import ConfigurationError
from kakoi.results import ExecutionResult, Reason
from tests.audit.logs import TEXTS, started

PLACE = {"seq": 7, "time": "2026-01-02T03:04:05.006Z", "prev": GENESIS}


def sealed(entry: AuditEntry) -> tuple[AuditRecord, bytes]:
    return seal(clean_fields(entry, str) | PLACE)


def forged(body: str) -> bytes:
    """A line with the right hash, as somebody makes it who knows how."""
    digest = hashlib.sha256(body.encode()).hexdigest()
    return f'{body[:-1]},"hash":"{digest}"}}\n'.encode()


def test_the_keys_stand_in_one_order_and_empty_ones_are_left_out() -> None:
    record, line = sealed(started(1, "ls -la"))
    assert line == encode(record)
    assert list(json.loads(line)) == [
        *("seq", "time", "event", "id", "command", "cwd", "prev", "hash"),
    ]


def test_zero_and_false_are_not_empty_values() -> None:
    result = ExecutionResult(0, "", "", 0)
    fields = json.loads(sealed(end_entry(started(), result))[1])
    assert fields["exit_code"] == fields["duration_ms"] == fields["stdout_bytes"] == 0
    assert fields["truncated"] is False


def test_the_hash_covers_the_line_and_the_hash_before_it() -> None:
    line = sealed(started())[1]
    body, _, digest = line.partition(b',"hash":"')
    assert hashlib.sha256(body + b"}").hexdigest() == digest[:64].decode()
    assert GENESIS.encode() in body


def test_an_ending_says_how_it_ended_and_not_what_was_printed() -> None:
    result = ExecutionResult(
        137, "out", "err", 1500, Reason.TIMED_OUT, stdout_bytes=9, stderr_bytes=3, stdout_truncated=True
    )  # fmt: skip
    entry = end_entry(replace(started(), session="s", task="t", user="u", sandbox="host"), result)
    fields = json.loads(sealed(entry)[1])
    assert {name: fields[name] for name in ("event", "reason", "exit_code", "duration_ms")} == {
        "event": "ended",
        "reason": "timed_out",
        "exit_code": 137,
        "duration_ms": 1500,
    }
    assert (fields["stdout_bytes"], fields["stderr_bytes"], fields["truncated"]) == (9, 3, True)
    assert (fields["session"], fields["task"], fields["user"]) == ("s", "t", "u")
    assert "command" not in fields
    assert "out" not in fields.values()


def test_why_a_command_never_started_is_recorded_in_words() -> None:
    result = ExecutionResult(127, "", "", 0, Reason.NEVER_STARTED, error="there is no bash here")
    record, _ = sealed(end_entry(started(), result))
    assert (record.reason, record.error) == ("never_started", "there is no bash here")


@given(
    st.fixed_dictionaries({}, optional={name: st.text(st.characters()) for name in TEXTS}),
    st.lists(st.text(st.characters()), max_size=3),
)
def test_any_text_makes_one_ascii_line_and_comes_back(
    texts: dict[str, str], rules: list[str]
) -> None:
    entry = AuditEntry(event=Event.REFUSED, id="ab", rules=tuple(rules), **texts)  # type: ignore[arg-type]
    record, line = sealed(entry)
    assert line.isascii()
    assert line.count(b"\n") == 1
    assert min(line.rstrip(b"\n")) >= 0x20
    read = decode(line)
    assert read is not None
    assert encode(read) == line
    assert read.command.encode("utf-16", "surrogatepass") == record.command.encode(
        "utf-16", "surrogatepass"
    )


@pytest.mark.parametrize(
    "text", ["\ud800", "a\udcff", "a\nb\r\x1b[31m\0", "\u2028\u2029", "𝒳", "\x7f"]
)
def test_odd_characters_neither_break_the_line_nor_the_program(text: str) -> None:
    record, line = sealed(started(1, text))
    assert decode(line) == record
    assert record.command == text


def test_a_long_command_is_cut_with_a_mark_and_the_hash_of_the_whole() -> None:
    text = "echo " + "é" * 20_000
    record, _ = sealed(started(1, text))
    assert record.command.startswith("echo é")
    assert record.command.endswith(" [kakoi: command cut, 8192 of 20005 characters kept]")
    assert record.command_sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert sealed(started(1, "x" * 8192))[0].command == "x" * 8192


def test_the_worst_texts_stay_within_the_longest_line() -> None:
    worst: dict[str, Any] = dict.fromkeys(TEXTS, "𝒳" * 100_000)
    entry = AuditEntry(event=Event.REFUSED, id="f" * 64, rules=("𝒳" * 1000,) * 1000, **worst)
    line = sealed(entry)[1]
    assert len(line) < LONGEST_LINE
    assert decode(line) is not None


@pytest.mark.parametrize(
    "wrong",
    [
        {"event": "exploded"},
        {"exit_code": 1.5},
        {"exit_code": True},
        {"exit_code": "1"},
        {"truncated": 1},
        {"command": b"ls"},
        {"rules": ["a"]},
        {"rules": (1,)},
        {"id": ""},
        {"id": "hunter 2"},
        {"id": "ab\n"},
        {"id": "a" * 65},
    ],
    ids=str,
)
def test_what_could_not_be_read_back_is_not_an_entry(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        AuditEntry(**{"event": Event.STARTED, "id": "ab"} | wrong)
    assert "hunter" not in str(caught.value)


BODY = f'{{"seq":1,"time":"t","event":"started","id":"ab","prev":"{GENESIS}"}}'


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"seq":1', '"seq":"1"'),
        ('"seq":1', '"seq":true'),
        ('"seq":1', '"seq":1.0'),
        ('"seq":1', '"seq":1e0'),
        ('"seq":1', '"seq":NaN'),
        ('"seq":1', '"seq":' + "1" * 5000),
        ('"seq":1,', ""),
        ('"seq":1', '"seq":1,"seq":1'),
        ('"seq":1,"time":"t"', '"time":"t","seq":1'),
        ('"seq":1', ' "seq":1'),
        ('"started"', '"exploded"'),
        ('"event":"started",', ""),
        ('"id":"ab"', '"id":""'),
        ('"id":"ab"', '"id":"ab","rules":[]'),
        ('"id":"ab"', '"id":"ab","rules":[1]'),
        ('"id":"ab"', '"id":"ab","odd":"x"'),
        ('"id":"ab"', '"id":"ab","command":"é"'),
        ('"id":"ab"', '"id":"ab","command":"\\u0041"'),
        ('"id":"ab"', '"id":"ab","rules":' + "[" * 100_000 + "]" * 100_000),
        ("{", "[{"),
    ],
    ids=range(20),
)
def test_a_line_that_we_would_not_write_so_is_not_a_record(old: str, new: str) -> None:
    assert decode(forged(BODY)) is not None
    assert decode(forged(BODY.replace(old, new, 1))) is None


@given(st.binary())
def test_reading_bytes_never_fails(data: bytes) -> None:
    assert decode(data) is None
