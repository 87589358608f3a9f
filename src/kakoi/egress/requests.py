"""The head of one request to the proxy, read strictly: what has two readings is refused.

Only what a proxy is asked is taken: `CONNECT host:port`, and other methods with a whole address
(`GET http://host/path`). Whatever two programs could read in two ways ends the connection: folded
or doubled headers, two lengths, bare line feeds, a Host that disagrees with the address.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from kakoi.egress.domains import Target, parse_target

MAX_HEAD_BYTES: Final = 32 * 1024
_MOST_FIELDS: Final = 128
_LONGEST_BODY: Final = 2**63
_TOKEN: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE: Final = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_WORD: Final = re.compile(rb"[\x21-\x7e]+")
_LENGTH: Final = re.compile(rb"0|[1-9]\d{0,18}")
_URL: Final = re.compile(r"http://([^/?#]*)([^#]*)", re.IGNORECASE)
_AUTHORITY: Final = re.compile(r"(\[[^\[\]]*\]|[^:\[\]]+)(?::(\d+))?")
# These are between a client and its proxy, and do not go on.
_HOP_BY_HOP: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade host content-length".split()
)
_NOT_BESIDE_A_CREDENTIAL: Final = frozenset((b"accept-encoding", b"max-forwards"))
# TRACE, TRACK and DEBUG answer with what the server was sent; of another method nobody knows.
_WITH_CREDENTIAL: Final = frozenset(
    b"GET HEAD POST PUT PATCH DELETE OPTIONS "
    b"PROPFIND PROPPATCH MKCOL COPY MOVE LOCK UNLOCK REPORT SEARCH QUERY MERGE".split()
)


class BadRequestError(ValueError):
    """The request cannot be taken; says why."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request. `length` is that of its body, None if that comes in chunks.

    `path` is what the server is asked for; empty: a tunnel is wanted.
    `fields` are the headers that go on, as they came.
    """

    method: bytes
    target: Target
    path: bytes = b""
    length: int | None = 0
    fields: tuple[tuple[bytes, bytes], ...] = ()

    @property
    def takes_credential(self) -> bool:
        """Is its method one whose answer is something else than the request?"""
        return self.method in _WITH_CREDENTIAL

    @property
    def is_tunnel(self) -> bool:
        """Is a tunnel wanted?"""
        return not self.path

    def head(self) -> bytes:
        """The head for the server."""
        return self._head(self.fields, default_port=80)

    def head_with(self, credential: tuple[bytes, bytes]) -> bytes:
        """The head for a server that is reached by TLS, with a credential.

        It takes the place of the client's own header. The answer is asked for as it is, because in
        a compressed one a credential would not be recognised; and of the server itself, because a
        count of hops (Max-Forwards) lets another one answer with what it was sent.
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


def parse_request(head: bytes) -> Request:
    """The request that `head` (with the empty line at its end) is; BadRequestError if it is none.

    BadHostError: it is well-formed, but what it names is no host in its usual spelling.
    """
    lines = head.split(b"\r\n")
    if lines[-2:] != [b"", b""] or any(b"\n" in line or b"\r" in line for line in lines):
        raise BadRequestError("a line does not end as it should")
    method, url, version = _parse_line(lines[0])
    fields = [_parse_field(line) for line in lines[1:-2]]
    if len(fields) > _MOST_FIELDS:
        raise BadRequestError("too many headers")
    hosts = _values(fields, b"host")
    if len(hosts) > 1 or (version == b"HTTP/1.1" and not hosts):
        raise BadRequestError("it must have one Host")
    length = _length(fields, version)
    if method == b"CONNECT":
        target = _authority(url, default_port=None)
        if length != 0:
            raise BadRequestError("a tunnel has no body")
        _check_host(hosts, target, default_port=None)
        return Request(method, target)
    match = _URL.fullmatch(url)
    if match is None:
        raise BadRequestError("not an address that begins with http://")
    target = _authority(match[1], default_port=80)
    _check_host(hosts, target, default_port=80)
    path = match[2] if match[2].startswith("/") else f"/{match[2]}"
    dropped = {
        name.strip().lower() for each in _values(fields, b"connection") for name in each.split(b",")
    }
    kept = [field for field in fields if field[0].lower() not in _HOP_BY_HOP | dropped]
    return Request(method, target, path.encode("ascii"), length, tuple(kept))


def _parse_line(line: bytes) -> tuple[bytes, str, bytes]:
    words = line.split(b" ")
    if len(words) != 3 or not _TOKEN.fullmatch(words[0]) or not _WORD.fullmatch(words[1]):
        raise BadRequestError("its first line is none of HTTP")
    if words[2] not in (b"HTTP/1.1", b"HTTP/1.0"):
        raise BadRequestError("it is neither HTTP/1.1 nor HTTP/1.0")
    return words[0], words[1].decode("ascii"), words[2]


def _parse_field(line: bytes) -> tuple[bytes, bytes]:
    name, colon, value = line.partition(b":")
    if not colon or not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise BadRequestError("a header is not well-formed")
    return name, value.strip(b" \t")


def _values(fields: list[tuple[bytes, bytes]], name: bytes) -> list[bytes]:
    return [value for each, value in fields if each.lower() == name]


def _length(fields: list[tuple[bytes, bytes]], version: bytes) -> int | None:
    """How long the body is; None: in chunks."""
    lengths, codings = _values(fields, b"content-length"), _values(fields, b"transfer-encoding")
    if codings:
        if lengths or version == b"HTTP/1.0" or [each.lower() for each in codings] != [b"chunked"]:
            raise BadRequestError("the length of its body can be read in two ways")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]) or int(lengths[0]) >= _LONGEST_BODY:
        raise BadRequestError("the length of its body can be read in two ways")
    return int(lengths[0])


def _authority(text: str, *, default_port: int | None) -> Target:
    """`host:port`; without a default, the port must be there."""
    if "@" in text:
        raise BadRequestError("an address with a user in it")
    match = _AUTHORITY.fullmatch(text)
    port = (match[2] or default_port) if match else None
    if match is None or port is None:
        raise BadRequestError("an address without a host or without a port")
    return parse_target(match[1], port)


def _check_host(hosts: list[bytes], target: Target, *, default_port: int | None) -> None:
    if not hosts:
        return
    text = hosts[0].decode("latin-1")
    try:
        # Of a tunnel, some clients name the host only.
        named = _authority(text, default_port=default_port or target.port)
    except ValueError:
        raise BadRequestError("its Host is none") from None
    if named != target:
        raise BadRequestError("its Host is another one than that of its address")


# --- Bodies in chunks ------------------------------------------------------------------------

_CHUNK: Final = re.compile(rb"([0-9A-Fa-f]{1,15})\r\n")
MAX_CHUNK_LINE: Final = 17


def parse_chunk_line(line: bytes) -> int:
    """How long the next chunk is. Extensions are refused: nobody needs them, and readers differ."""
    match = _CHUNK.fullmatch(line)
    if match is None:
        raise BadRequestError("a chunk of the body is not well-formed")
    return int(match[1], 16)
