"""The head of a request to the proxy, parsed strictly: anything ambiguous is refused.

Only proxy requests are accepted: `CONNECT host:port`, and other methods with an absolute URL
(`GET http://host/path`). Anything that two programs could read differently ends the connection:
folded or repeated headers, two lengths, bare line feeds, a Host that differs from the URL.
"""

import re
from collections.abc import Iterable
from typing import Final

from kakoi._support.late import dataclass, pattern
from kakoi.network.domains import Target, parse_target

MAX_HEAD_BYTES: Final = 32 * 1024
_MOST_FIELDS: Final = 128
_LONGEST_BODY: Final = 2**63
_TOKEN: Final = pattern(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = pattern(rb"[\t\x20-\x7e\x80-\xff]*")
_WORD: Final = pattern(rb"[\x21-\x7e]+")
_LENGTH: Final = pattern(rb"0|[1-9]\d{0,18}")
_URL: Final = pattern(r"http://([^/?#]*)([^#]*)", re.IGNORECASE)
_AUTHORITY: Final = pattern(r"(\[[^\[\]]*\]|[^:\[\]]+)(?::(\d+))?")
# These are between a client and its proxy, and are not forwarded.
_HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade host content-length".split()
)
# Max-Forwards lets a server on the way answer with what it was sent, an override makes a TRACE of a
# GET, and a range cuts an answer so that a credential in it is not recognized.
_NOT_BESIDE_A_CREDENTIAL: Final = frozenset(
    b"accept-encoding max-forwards range if-range x-http-method-override x-http-method "
    b"x-method-override".split()
)
# TRACE, TRACK and DEBUG echo the request; other methods are unknown.
_WITH_CREDENTIAL: Final = frozenset(
    b"GET HEAD POST PUT PATCH DELETE OPTIONS "
    b"PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK REPORT SEARCH QUERY MERGE".split()
)


class BadRequestError(ValueError):
    """The request is not accepted; says why."""


@dataclass(frozen=True, slots=True)
class ProxyRequest:
    """One request. `length` is the length of its body, None if it is chunked.

    `path` is empty for a tunnel. `fields` are the headers to forward, unchanged.
    """

    method: bytes
    target: Target
    path: bytes = b""
    length: int | None = 0
    fields: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def takes_credential(self) -> bool:
        """Whether its method never echoes the request back."""
        return self.method in _WITH_CREDENTIAL

    @property
    def is_tunnel(self) -> bool:
        """Whether the client wants a tunnel."""
        return not self.path

    def head(self) -> bytes:
        """Return the head to send to the server."""
        return self._head(self.fields, default_port=80)

    def head_with(self, credential: tuple[bytes, bytes]) -> bytes:
        """Return the head for a server that is reached by TLS, with a credential.

        The credential replaces the client's own header. The answer is requested uncompressed,
        because a credential in a compressed answer would not be recognized, and whole.
        """
        replaced = _NOT_BESIDE_A_CREDENTIAL | {credential[0].lower()}
        kept = [field for field in self.fields if field[0].lower() not in replaced]
        return self._head((*kept, (b"Accept-Encoding", b"identity"), credential), default_port=443)

    def _head(self, fields: Iterable[tuple[bytes, bytes]], *, default_port: int) -> bytes:
        authority = str(self.target)
        if self.target.port == default_port:
            authority = authority.rpartition(":")[0]
        own = [(b"Host", authority.encode("ascii")), (b"Connection", b"close")]
        if self.length is None:
            own.append((b"Transfer-Encoding", b"chunked"))
        elif self.length or self.method in (b"POST", b"PUT", b"PATCH"):
            own.append((b"Content-Length", b"%d" % self.length))
        lines = [b"%b: %b" % field for field in (*own, *fields)]
        return b"\r\n".join([b"%b %b HTTP/1.1" % (self.method, self.path), *lines, b"", b""])


def parse_request(head: bytes) -> ProxyRequest:
    """Parse `head`, which includes the empty line at its end. Raises BadRequestError.

    Raises BadHostError if it is well-formed, but does not name a host in its usual notation.
    """
    lines = head.split(b"\r\n")
    if lines[-2:] != [b"", b""] or any(b"\n" in line or b"\r" in line for line in lines):
        raise BadRequestError("a line has a bad line ending")
    method, url, version = _parse_line(lines[0])
    fields = [_parse_field(line) for line in lines[1:-2]]
    if len(fields) > _MOST_FIELDS:
        raise BadRequestError("too many headers")
    hosts = _values(fields, b"host")
    if len(hosts) > 1 or (version == b"HTTP/1.1" and not hosts):
        raise BadRequestError("it must have exactly one Host header")
    length = _length(fields, version)
    if method == b"CONNECT":
        target = _authority(url, default_port=None)
        if length != 0:
            raise BadRequestError("a tunnel has no body")
        _check_host(hosts, target, default_port=None)
        return ProxyRequest(method, target, fields=_kept(fields))
    match = _URL.fullmatch(url)
    if match is None:
        raise BadRequestError("the URL does not begin with http://")
    target = _authority(match[1], default_port=80)
    _check_host(hosts, target, default_port=80)
    path = match[2] if match[2].startswith("/") else f"/{match[2]}"
    return ProxyRequest(method, target, path.encode("ascii"), length, _kept(fields))


def _kept(fields: list[tuple[bytes, bytes]]) -> tuple[tuple[bytes, bytes], ...]:
    dropped = {
        name.strip().lower() for each in _values(fields, b"connection") for name in each.split(b",")
    }
    return tuple(field for field in fields if field[0].lower() not in _HOP_BY_HOP | dropped)


def _parse_line(line: bytes) -> tuple[bytes, str, bytes]:
    words = line.split(b" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not _WORD.fullmatch(words[1]):
        raise BadRequestError("the first line is not an HTTP request line")
    if words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadRequestError("it is neither HTTP/1.1 nor HTTP/1.0")
    return words[0], words[1].decode("ascii"), words[2]


def _parse_field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise BadRequestError("a header is malformed")
    return name, value.strip(b" \t")


def _values(fields: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for each, value in fields if each.lower() == name]


def _length(fields: list[tuple[bytes, bytes]], version: bytes) -> int | None:
    """Return the length of the body; None if it is chunked."""
    lengths, codings = _values(fields, b"content-length"), _values(fields, b"transfer-encoding")
    if codings:
        if lengths or version == b"HTTP/1.0" or [each.lower() for each in codings] != [b"chunked"]:
            raise BadRequestError("the length of its body is ambiguous")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]) or int(lengths[0]) >= _LONGEST_BODY:
        raise BadRequestError("the length of its body is ambiguous")
    return int(lengths[0])


def _authority(text: str, *, default_port: int | None) -> Target:
    """Parse `host:port`; without a default, the port is required."""
    if "@" in text:
        raise BadRequestError("the URL contains a user name")
    match = _AUTHORITY.fullmatch(text)
    port = (match[2] or default_port) if match else None
    if match is None or port is None:
        raise BadRequestError("the URL has no host or no port")
    return parse_target(match[1], port)


def _check_host(hosts: list[bytes], target: Target, *, default_port: int | None) -> None:
    if not hosts:
        return
    text = hosts[0].decode("latin-1")
    try:
        # For a tunnel, some clients send only the host.
        named = _authority(text, default_port=default_port or target.port)
    except ValueError:
        raise BadRequestError("its Host header is invalid") from None
    if named != target:
        raise BadRequestError("its Host header differs from its URL")


# --- Chunked bodies --------------------------------------------------------------------------

_CHUNK: Final = pattern(rb"([0-9A-Fa-f]{1,15})\r\n")
MAX_CHUNK_LINE: Final = 17


def parse_chunk_line(line: bytes) -> int:
    """Return the length of the next chunk. Extensions are refused: parsers disagree on them."""
    match = _CHUNK.fullmatch(line)
    if match is None:
        raise BadRequestError("a chunk of the body is malformed")
    return int(match[1], 16)
