"""The host that a TLS client asks for, out of whatever pieces it sends."""

import contextlib
import ssl
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.network.tls_hello import BadHelloError, ClientHelloReader, ServerHelloReader
from tests.network.world import certificate, client_hello, hello, record, sni

HELLO = client_hello("Example.org")


def names(*parts: bytes) -> list[str]:
    reader = ClientHelloReader()
    return [name for part in parts for name in reader.feed(part)]


def test_a_real_client_is_understood() -> None:
    assert names(HELLO) == ["example.org"]
    assert names(client_hello(None)) == [""]


@pytest.mark.parametrize("size", [1, 2, 5, 7, 100])
def test_it_may_come_in_pieces(size: int) -> None:
    assert names(*(HELLO[at : at + size] for at in range(0, len(HELLO), size))) == ["example.org"]


def test_it_may_be_spread_over_records() -> None:
    message = HELLO[5:]
    spread = b"".join(record(message[at : at + 3]) for at in range(0, len(message), 3))

    assert names(spread) == ["example.org"]


def test_unknown_extensions_do_not_matter() -> None:
    grease = (0x0A0A, b""), (0xFAFA, b"\x00")

    assert names(hello(grease[0], sni(b"example.org"), grease[1])) == ["example.org"]


def test_a_second_hello_is_read_as_well() -> None:
    second = hello(sni(b"evil.test"))

    assert names(HELLO, record(b"\x01", kind=20), second) == ["example.org", "evil.test"]


def test_what_comes_after_the_hello_is_left_alone() -> None:
    reader = ClientHelloReader()
    steps = []
    for part in (HELLO, record(b"\x10\x00\x00\x01x"), hello(sni(b"evil.test"))):
        steps.append((reader.feed(part), reader.done))

    assert steps == [(["example.org"], False), ([], True), ([], True)]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not TLS"),
        (b"SSH-2.0-x\r\n", "not TLS"),
        (b"\x80\x2e\x01\x03\x01", "not TLS"),
        (record(b""), "size"),
        (struct.pack("!BHH", 22, 0x0301, 0xFFFF), "size"),
        (record(b"\x01\xff\xff\xff"), "too long"),
        (hello(sni(b"a.org"), (0xFE0D, b"\x00" * 8)), "ECH"),
        (hello(sni(b"a.org"), sni(b"b.org")), "repeated extension"),
        (hello(sni(b"a.org"), tail=b"x"), "malformed"),
        (hello((0, b"\x00\x03\x00\x00\x00")), "one host"),
        (hello((0, b"\x00")), "malformed"),
        (hello(sni(b"a.org", kind=1)), "one host"),
        (hello(sni("ä.org".encode())), "one host"),
        (hello((0, sni(b"a.org")[1][:2] + b"\x00\x00\x01a" * 2)), "one host"),
    ],
)
def test_what_cannot_be_read_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(BadHelloError, match=why):
        names(data)


@given(st.binary(max_size=200), st.integers(0, len(HELLO)))
def test_no_bytes_break_the_reader(noise: bytes, at: int) -> None:
    for data in (noise, HELLO[:at] + noise, HELLO[:at] + noise + HELLO[at + len(noise) :]):
        try:
            found = names(data)
        except BadHelloError:
            continue
        assert len(found) <= 2


# --- The server's answer ---------------------------------------------------------------------


def accepted(*parts: bytes) -> bool:
    reader = ServerHelloReader()
    for part in parts:
        reader.feed(part)
    return reader.accepted


def answered(folder: Path, version: ssl.TLSVersion, *, again: bool = False) -> bytes:
    """What a real server answers to a real client; `again`: one that wants another hello."""
    theirs, _ = certificate(folder, "example.org")
    theirs.maximum_version = version
    if again:
        theirs.set_ecdh_curve("secp521r1")  # Which clients offer, but not at once.
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    incoming.write(HELLO)
    server = theirs.wrap_bio(incoming, outgoing, server_side=True)
    with contextlib.suppress(ssl.SSLWantReadError):
        server.do_handshake()
    return outgoing.read()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_a_server_that_takes_the_hello_is_seen_in_whatever_pieces(
    tmp_path: Path, version: ssl.TLSVersion
) -> None:
    data = answered(tmp_path, version)

    assert accepted(data)
    assert accepted(*(data[at : at + 1] for at in range(len(data))))
    assert not accepted(data[:40])


def test_a_server_that_wants_another_hello_has_not_taken_the_first(tmp_path: Path) -> None:
    assert not accepted(answered(tmp_path, ssl.TLSVersion.TLSv1_3, again=True))


@given(st.binary(max_size=100))
def test_what_is_not_a_hello_of_a_server_means_nothing(noise: bytes) -> None:
    assert not accepted(b"\x15" + noise)
    assert not accepted(record(b"\x01" + noise))
    assert not accepted(record(b"\x02"), noise)
