"""Which host a TLS client asks for: parses the ClientHello in the first bytes of a tunnel.

It can arrive in pieces and span many records. A server can ask for a second one, so parsing
continues until the client sends something other than a hello, or the server has accepted the first
one. Anything unreadable is refused.
"""

import struct
from collections.abc import Iterator
from typing import Final

_CHANGE_CIPHER, _HANDSHAKE, _APPLICATION = 20, 22, 23
_CLIENT_HELLO, _SERVER_HELLO = 1, 2
_SERVER_NAME, _ENCRYPTED_HELLO = 0, 0xFE0D
_LONGEST_RECORD: Final = 2**14 + 256
_LONGEST_HELLO: Final = 2**16
_HEAD: Final = struct.Struct("!BHH")
# The record header, the message header, the version, and the random number.
_SERVER_HELLO_HEAD: Final = struct.Struct("!BHHB3x2x32s")
# The random number of a HelloRetryRequest (RFC 8446, 4.1.3).
_ASKS_AGAIN: Final = bytes.fromhex(
    "cf21ad74e59a6111be1d8c021e65b891c2a211167abb8c5e079e09e2c8a8339c"
)


class BadHelloError(ValueError):
    """The data is not a readable ClientHello; says why."""


class ClientHelloReader:
    """Reads what a client sends, and returns the name in each ClientHello (empty if it has none).

    `done`: the client has moved past the handshake, so there is nothing more to read.
    """

    def __init__(self) -> None:
        self._records = bytearray()
        self._messages = bytearray()
        self.done = False

    def feed(self, data: bytes) -> list[str]:
        """Return the names in the hellos that `data` completes. Raises BadHelloError."""
        self._records += data
        names: list[str] = []
        while not self.done and len(self._records) >= _HEAD.size:
            kind, version, size = _HEAD.unpack_from(self._records)
            if kind == _APPLICATION:
                self.done = True
            elif kind not in (_HANDSHAKE, _CHANGE_CIPHER) or version >> 8 != 3:
                raise BadHelloError("it is not TLS")
            elif not 0 < size <= _LONGEST_RECORD:
                raise BadHelloError("a TLS record has an invalid size")
            elif len(self._records) < _HEAD.size + size:
                break
            else:
                body = bytes(self._records[_HEAD.size : _HEAD.size + size])
                del self._records[: _HEAD.size + size]
                if kind == _HANDSHAKE:
                    names += self._take(body)
        return names

    def _take(self, body: bytes) -> Iterator[str]:
        self._messages += body
        while len(self._messages) >= 4 and not self.done:
            if self._messages[0] != _CLIENT_HELLO:
                self.done = True
                return
            size = int.from_bytes(self._messages[1:4], "big")
            if size > _LONGEST_HELLO:
                raise BadHelloError("its TLS ClientHello is too long")
            if len(self._messages) < 4 + size:
                return
            message = bytes(self._messages[4 : 4 + size])
            del self._messages[: 4 + size]
            yield server_name(message)


class ServerHelloReader:
    """Reads what a server sends. `accepted`: it accepted the first ClientHello and wants no other.

    After that, a client's record can begin with any byte, because it may be encrypted.
    """

    def __init__(self) -> None:
        self._head = b""
        self.accepted = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes; only the first ones matter."""
        missing = _SERVER_HELLO_HEAD.size - len(self._head)
        if missing <= 0:
            return
        self._head += data[:missing]
        if len(self._head) == _SERVER_HELLO_HEAD.size:
            kind, _, size, message, random = _SERVER_HELLO_HEAD.unpack(self._head)
            whole = size >= _SERVER_HELLO_HEAD.size - _HEAD.size
            is_hello = kind == _HANDSHAKE and message == _SERVER_HELLO and whole
            self.accepted = is_hello and random != _ASKS_AGAIN


def server_name(hello: bytes) -> str:
    """Return the name in the body of a ClientHello, in lower case; empty if it has none."""
    try:
        extensions = dict(_extensions(hello))
        if _ENCRYPTED_HELLO in extensions:
            raise BadHelloError(
                "it contains an encrypted ClientHello (ECH), which can name another host"
            )
        return _name(extensions[_SERVER_NAME]) if _SERVER_NAME in extensions else ""
    except (IndexError, struct.error):
        raise BadHelloError("its TLS ClientHello is malformed") from None


def _extensions(hello: bytes) -> Iterator[tuple[int, bytes]]:
    at = 2 + 32  # Version and random.
    at += 1 + hello[at]  # Session.
    at += 2 + _number(hello, at)  # Ciphers.
    at += 1 + hello[at]  # Compressions.
    if at == len(hello):
        return
    if at + 2 + _number(hello, at) != len(hello):
        raise IndexError
    at += 2
    seen: set[int] = set()
    while at < len(hello):
        kind, size = _number(hello, at), _number(hello, at + 2)
        at += 4
        if at + size > len(hello):
            raise IndexError
        if kind in seen:
            raise BadHelloError("its TLS ClientHello has a repeated extension")
        seen.add(kind)
        yield kind, hello[at : at + size]
        at += size


def _name(body: bytes) -> str:
    """Return the single name of a server_name extension."""
    kind, size = body[2], _number(body, 3)
    if _number(body, 0) != len(body) - 2 or kind != 0 or size != len(body) - 5 or not size:
        raise BadHelloError("its TLS ClientHello does not name exactly one host")
    try:
        return body[5:].decode("ascii").lower()
    except UnicodeDecodeError:
        raise BadHelloError("its TLS ClientHello does not name exactly one host") from None


def _number(data: bytes, at: int) -> int:
    return int(struct.unpack_from("!H", data, at)[0])
