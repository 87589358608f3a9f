"""The wire format: whatever arrives, in whatever pieces, is a frame, an unfinished one or refused."""

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.runner import frames
from kakoi.runner.frames import BadFrame, Decoder, frame, parse_credit

DATA_KINDS = (frames.INPUT, frames.STDOUT, frames.STDERR)
JSON_KINDS = (frames.REQUEST, frames.HELLO, frames.ANSWER)
LIMITS = {
    **dict.fromkeys(DATA_KINDS, frames.MAX_DATA),
    **dict.fromkeys(JSON_KINDS, frames.MAX_JSON),
    frames.CREDIT: 4,
    frames.CANCEL: 0,
}

numbers = st.integers(0, 2**32 - 1)
some_frames = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(DATA_KINDS + JSON_KINDS), numbers, st.binary(max_size=300)),
        st.tuples(st.just(frames.CREDIT), numbers, st.binary(min_size=4, max_size=4)),
        st.tuples(st.just(frames.CANCEL), numbers, st.just(b"")),
    ),
    max_size=8,
)


def in_pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[begin:end] for begin, end in pairwise(places)]


@given(some_frames, st.lists(st.integers(0, 10_000), max_size=30))
def test_frames_arrive_as_they_were_sent_in_whatever_pieces(
    sent: list[tuple[int, int, bytes]], cuts: list[int]
) -> None:
    decoder = Decoder()
    stream = b"".join(frame(*each) for each in sent)
    assert [found for piece in in_pieces(stream, cuts) for found in decoder.feed(piece)] == sent


def test_a_frame_may_come_byte_by_byte() -> None:
    decoder = Decoder()
    stream = frame(frames.STDOUT, 7, b"slow") + frame(frames.CANCEL, 9)
    found = [each for byte in stream for each in decoder.feed(bytes([byte]))]
    assert found == [(frames.STDOUT, 7, b"slow"), (frames.CANCEL, 9, b"")]


@given(some_frames.filter(bool), st.integers(1, 10_000))
def test_a_frame_that_was_cut_off_is_not_a_frame(
    sent: list[tuple[int, int, bytes]], missing: int
) -> None:
    last = frame(*sent[-1])
    stream = b"".join(frame(*each) for each in sent[:-1]) + last[: -1 - missing % len(last)]
    assert list(Decoder().feed(stream)) == sent[:-1]


@pytest.mark.parametrize(("kind", "limit"), LIMITS.items())
def test_a_frame_may_be_as_big_as_its_kind_allows(kind: int, limit: int) -> None:
    assert list(Decoder().feed(frame(kind, 1, bytes(limit)))) == [(kind, 1, bytes(limit))]


@pytest.mark.parametrize(("kind", "limit"), LIMITS.items())
def test_a_frame_that_is_too_big_is_refused_before_its_body_comes(kind: int, limit: int) -> None:
    with pytest.raises(BadFrame):
        list(Decoder().feed(frames.HEAD.pack(kind, 1, limit + 1)))


def test_an_unknown_kind_is_refused() -> None:
    for kind in (0, *range(9, 256)):
        with pytest.raises(BadFrame):
            list(Decoder().feed(frames.HEAD.pack(kind, 1, 0)))


@given(st.binary(max_size=200))
def test_a_reader_that_is_out_of_step_stays_out_of_step(noise: bytes) -> None:
    decoder = Decoder()
    with pytest.raises(BadFrame):
        list(decoder.feed(b"\xff" * frames.HEAD.size))
    with pytest.raises(BadFrame):
        list(decoder.feed(noise + frame(frames.CANCEL, 1)))


@given(st.lists(st.binary(max_size=2000), max_size=10))
def test_noise_is_refused_or_waited_for_and_nothing_else(pieces: list[bytes]) -> None:
    decoder = Decoder()
    try:
        for piece in pieces:
            for kind, number, body in decoder.feed(piece):
                assert len(body) <= LIMITS[kind]
                assert 0 <= number < 2**32
    except BadFrame:
        pass


def test_however_much_comes_no_more_than_one_frame_is_kept() -> None:
    decoder = Decoder()
    piece = frame(frames.STDOUT, 1, bytes(60_000))[:50_000]
    rest = frame(frames.STDOUT, 1, bytes(60_000))[50_000:]
    tracemalloc.start()
    try:
        for _ in range(500):
            assert sum(len(body) for _, _, body in decoder.feed(piece)) == 0
            assert sum(len(body) for _, _, body in decoder.feed(rest)) == 60_000
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 1, 3, 5])
def test_a_credit_is_a_number_of_four_bytes(size: int) -> None:
    with pytest.raises(BadFrame):
        parse_credit(bytes(size))
    assert parse_credit(frames.NUMBER.pack(2**32 - 1)) == 2**32 - 1
