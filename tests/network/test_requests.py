"""The head of a request: one reading, or none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kakoi.network.domains import BadHostError, parse_target
from kakoi.network.requests import BadRequestError, parse_chunk_line, parse_request


def head(line: str, *fields: str) -> bytes:
    return "\r\n".join([line, *fields, "", ""]).encode("latin-1")


def test_a_request_goes_on_without_what_is_between_us_and_its_client() -> None:
    request = parse_request(
        head(
            "GET http://Example.org:8080/a?b=c HTTP/1.1",
            *("Host: example.ORG:8080", "Accept: */*", "Proxy-Authorization: Basic eA=="),
            *("Connection: keep-alive, X-Hop", "X-Hop: 1", "Proxy-Connection: keep-alive"),
            *("Upgrade: websocket", "TE: trailers", "Keep-Alive: 5"),
        )
    )

    assert request.target == parse_target("example.org", 8080)
    assert request.head() == (
        b"GET /a?b=c HTTP/1.1\r\nHost: example.org:8080\r\nConnection: close\r\nAccept: */*\r\n\r\n"
    )


def test_a_length_that_the_client_tries_to_hide_is_sent_all_the_same() -> None:
    request = parse_request(
        head(
            "POST http://example.org/ HTTP/1.1",
            *("Host: example.org", "Content-Length: 5", "Connection: Content-Length, Host"),
        )
    )

    assert request.length == 5
    assert b"Content-Length: 5\r\n" in request.head()
    assert b"Host: example.org\r\n" in request.head()


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("http://example.org", b"/"),
        ("http://example.org?x", b"/?x"),
        ("HTTP://example.org./%2e%2e/x", b"/%2e%2e/x"),
        ("http://example.org:80/", b"/"),
    ],
)
def test_the_server_is_asked_for_a_path(url: str, path: bytes) -> None:
    assert parse_request(head(f"GET {url} HTTP/1.1", "Host: example.org")).path == path


H = "Host: example.org"
POST = "POST http://example.org/ HTTP/1.1"
BAD = [
    head("GET http://example.org/ HTTP/1.1"),
    head("GET http://example.org/ HTTP/1.1", H, H),
    head("GET http://example.org/ HTTP/1.1", "Host: evil.test"),
    head("GET http://example.org/ HTTP/1.1", "Host: example.org:8080"),
    head("GET http://example.org/ HTTP/1.1", "Host: evil.test, example.org"),
    head("GET http://example.org/ HTTP/1.1", "Host: "),
    head("GET http://example.org@evil.test/ HTTP/1.1", H),
    head("GET http://user:x@example.org/ HTTP/1.1", H),
    head("GET http://example.org/#x HTTP/1.1", H),
    head("GET http://example.org:/ HTTP/1.1", H),
    head("GET https://example.org/ HTTP/1.1", H),
    head("GET ftp://example.org/ HTTP/1.1", H),
    head("GET / HTTP/1.1", H),
    head("OPTIONS * HTTP/1.1", H),
    head("GET //example.org/ HTTP/1.1", H),
    head("GET http:/example.org/ HTTP/1.1", H),
    head("GET http:// HTTP/1.1", H),
    head("GET  http://example.org/ HTTP/1.1", H),
    head("GET http://example.org/ x HTTP/1.1", H),
    head("GET\thttp://example.org/\tHTTP/1.1", H),
    head("GET http://example.org/ HTTP/2.0", H),
    head("GET http://example.org/ HTTP/1.1 ", H),
    head("GET http://example.org/", H),
    head("G(T http://example.org/ HTTP/1.1", H),
    head("GET http://example.org/\x80 HTTP/1.1", H),
    head("", "GET http://example.org/ HTTP/1.1", H),
    head(POST, H, "Content-Length: 5", "Content-Length: 5"),
    head(POST, H, "Content-Length: 5, 5"),
    head(POST, H, "Content-Length: +5"),
    head(POST, H, "Content-Length: 05"),
    head(POST, H, "Content-Length: 0x5"),
    head(POST, H, "Content-Length: -1"),
    head(POST, H, "Content-Length: 99999999999999999999"),
    head(POST, H, "Content-Length: "),
    head(POST, H, "Content-Length: 5", "Transfer-Encoding: chunked"),
    head(POST, H, "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    head(POST, H, "Transfer-Encoding: gzip, chunked"),
    head(POST, H, "Transfer-Encoding: xchunked"),
    head(POST, H, "Transfer-Encoding: chunked, identity"),
    head(POST, H, "Transfer-Encoding:\x0bchunked"),
    head("POST http://example.org/ HTTP/1.0", H, "Transfer-Encoding: chunked"),
    head(POST, H, "Content-Length : 5"),
    head(POST, H, "X: 1", " folded"),
    head(POST, H, "X: 1", "\tfolded"),
    head(POST, H, "X"),
    head(POST, H, ": x"),
    head(POST, H, "X: a\x00b"),
    head(POST, H, "X: a\nTransfer-Encoding: chunked"),
    head(POST, H, "X: a\rTransfer-Encoding: chunked"),
    head(POST, H, *["X: 1"] * 200),
    b"GET http://example.org/ HTTP/1.1\nHost: example.org\n\r\n\r\n",
    head("CONNECT example.org HTTP/1.1", H),
    head("CONNECT example.org:443 HTTP/1.1", "Host: evil.test:443"),
    head("CONNECT example.org:443 HTTP/1.1", H, "Content-Length: 5"),
    head("CONNECT http://example.org:443 HTTP/1.1", H),
    head("CONNECT :443 HTTP/1.1", H),
    head("CONNECT a:1:443 HTTP/1.1", H),
]


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_what_has_two_readings_has_none(text: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_request(text)


@pytest.mark.parametrize(
    "authority", ["example.org:0", "example.org:99999", "127.1:443", "0x7f.1:443", "a..b:443"]
)
def test_what_is_not_a_host_is_told_apart(authority: str) -> None:
    with pytest.raises(BadHostError):
        parse_request(head(f"CONNECT {authority} HTTP/1.1", f"Host: {authority}"))


@pytest.mark.parametrize("line", [b"\r\n", b"5;x=y\r\n", b"0x5\r\n", b"-1\r\n", b"5\n", b" 5\r\n"])
def test_a_chunk_has_one_spelling(line: bytes) -> None:
    with pytest.raises(BadRequestError):
        parse_chunk_line(line)
    assert parse_chunk_line(b"1aF\r\n") == 0x1AF


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(text: bytes) -> None:
    for data in (text, text + b"\r\n\r\n", b"GET http://example.org/ HTTP/1.1\r\n" + text):
        try:
            request = parse_request(data)
        except (BadRequestError, BadHostError):
            continue
        again = request.head()
        assert again.count(b"\r\n\r\n") == 1
        assert again.endswith(b"\r\n\r\n")
