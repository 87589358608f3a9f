"""Results say what happened; output is cut to its limit without breaking a character."""

import tracemalloc
from dataclasses import FrozenInstanceError

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.results import Capture, ExecutionResult, Reason, mark_truncated


def captured(data: bytes, *, limit_bytes: int) -> Capture:
    capture = Capture(limit_bytes)
    capture.feed(data)
    return capture


@pytest.mark.parametrize(
    ("exit_code", "reason", "ok"),
    [
        (0, Reason.EXITED, True),
        (1, Reason.EXITED, False),
        (0, Reason.TIMED_OUT, False),
        (0, Reason.CANCELLED, False),
        (137, Reason.SIGNALLED, False),
    ],
)
def test_only_a_command_that_exits_with_zero_is_ok(
    exit_code: int, reason: Reason, ok: bool
) -> None:
    assert ExecutionResult(exit_code, "", "", 0, reason).ok is ok


@pytest.mark.parametrize("stream", ["stdout_truncated", "stderr_truncated"])
def test_a_result_is_truncated_if_either_stream_is(stream: str) -> None:
    assert ExecutionResult(0, "", "", 0, **{stream: True}).truncated  # type: ignore[arg-type]
    assert not ExecutionResult(0, "", "", 0).truncated


def test_a_result_is_a_fact_that_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        ExecutionResult(0, "", "", 0).exit_code = 1  # type: ignore[misc]


def test_reasons_are_the_words_of_the_wire_and_the_audit_log() -> None:
    assert [str(reason) for reason in Reason] == [
        "exited",
        "signalled",
        "timed_out",
        "idle_timeout",
        "out_of_memory",
        "cancelled",
        "sandbox_lost",
        "never_started",
    ]


@pytest.mark.parametrize(
    ("data", "limit_bytes", "text"),
    [
        (b"", 5, ""),
        (b"hello", 5, "hello"),
        (b"hello!", 5, "hello"),
        (b"hello", 0, ""),
        ("日本".encode(), 6, "日本"),
        ("日本".encode(), 5, "日"),
        ("日本".encode(), 4, "日"),
        ("日本".encode(), 3, "日"),
        ("日本".encode(), 2, ""),
        ("a😀b".encode(), 5, "a😀"),
        ("a😀b".encode(), 4, "a"),
        (b"a\xffb", 9, "a\ufffdb"),
        (b"a\xe6\x97", 3, "a\ufffd"),  # the stream itself ends broken: that is worth seeing
        (b"a\xffbcd", 2, "a\ufffd"),
    ],
)
def test_the_head_is_kept_and_no_character_is_broken(
    data: bytes, limit_bytes: int, text: str
) -> None:
    assert captured(data, limit_bytes=limit_bytes).text() == text


@given(text=st.text(), limit_bytes=st.integers(0, 40))
def test_a_cut_text_is_the_longest_whole_head_within_the_limit(text: str, limit_bytes: int) -> None:
    capture = captured(text.encode(), limit_bytes=limit_bytes)
    kept = capture.text()
    assert text.startswith(kept)
    assert len(kept.encode()) <= limit_bytes
    assert len(text[: len(kept) + 1].encode()) > limit_bytes or kept == text
    assert capture.truncated == (kept != text)


@given(chunks=st.lists(st.binary(max_size=40)), limit_bytes=st.integers(0, 60))
def test_how_a_stream_is_chunked_never_changes_what_is_kept(
    chunks: list[bytes], limit_bytes: int
) -> None:
    whole = captured(b"".join(chunks), limit_bytes=limit_bytes)
    pieces = Capture(limit_bytes)
    for chunk in chunks:
        pieces.feed(memoryview(chunk))
    assert pieces.text() == whole.text()
    assert pieces.total_bytes == whole.total_bytes == sum(map(len, chunks))
    assert pieces.truncated == whole.truncated


@given(data=st.binary(), limit_bytes=st.integers(0, 40))
def test_no_bytes_can_make_a_capture_raise_or_keep_more_than_its_limit(
    data: bytes, limit_bytes: int
) -> None:
    text = captured(data, limit_bytes=limit_bytes).text()
    assert len(text) <= limit_bytes
    assert text == data[:limit_bytes].decode("utf-8", "replace")[: len(text)]


def test_memory_is_flat_however_much_is_fed() -> None:
    capture = Capture(64 * 1024)
    chunk = bytes(64 * 1024)
    tracemalloc.start()
    try:
        for _ in range(2_000):
            capture.feed(chunk)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert capture.total_bytes == 2_000 * len(chunk)
    assert peak_bytes < 512 * 1024


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="-1"):
        Capture(-1)


@pytest.mark.requirement("A-055")
@pytest.mark.parametrize("text", ["head", "head\n"])
def test_cut_output_says_so_on_a_line_of_its_own(text: str) -> None:
    kept = len(text)
    assert (
        mark_truncated(text, total_bytes=3_145_728)
        == f"head\n[kakoi: output cut, {kept} of 3145728 bytes kept]\n"
    )


def test_cut_output_of_which_nothing_is_kept_is_only_the_marker() -> None:
    assert mark_truncated("", total_bytes=9) == "[kakoi: output cut, 0 of 9 bytes kept]\n"
