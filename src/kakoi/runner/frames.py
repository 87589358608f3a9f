"""The wire format of a channel and its limits, the same file on both ends.

A frame is a head (kind, request number, size of the body) and a body. Numbers are big-endian.

    to the runner      REQUEST  JSON: what to do
                       INPUT    bytes for its standard input; none is its end
                       CANCEL   end the command of this request
                       CREDIT   so many more bytes of output may be sent
    from the runner    HELLO    JSON: who speaks; of request 0
                       STDOUT   bytes, and STDERR
                       CREDIT   so many more bytes of input may be sent
                       ANSWER   JSON: the last word on this request

Nobody sends output or input beyond the credit that the other end has given: a slow reader slows
the writer down, and never has to store more than a window. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = 1
HEAD = struct.Struct(">BII")
NUMBER = struct.Struct(">I")

REQUEST, INPUT, CANCEL, CREDIT, HELLO, ANSWER, STDOUT, STDERR = range(1, 9)
KINDS = frozenset(range(1, 9))

MAX_DATA = 256 * 1024
MAX_JSON = 2 * 1024 * 1024
# One window for each stream of a command, in either direction.
WINDOW = 1024 * 1024
MAX_REQUESTS = 4096

_LIMITS = {
    REQUEST: MAX_JSON,
    HELLO: MAX_JSON,
    ANSWER: MAX_JSON,
    INPUT: MAX_DATA,
    STDOUT: MAX_DATA,
    STDERR: MAX_DATA,
    CREDIT: NUMBER.size,
    CANCEL: 0,
}


class BadFrame(Exception):
    """The other end does not keep to the format. There is no way back into step."""


def frame(kind: int, request: int, body: bytes = b"") -> bytes:
    """One frame, ready to be sent."""
    return HEAD.pack(kind, request, len(body)) + body


class Decoder:
    """Frames out of bytes that arrive in pieces. Keeps at most one unfinished frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[int, int, bytes]]:
        """Every frame (kind, request, body) that `data` completes; raises BadFrame."""
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= HEAD.size:
                kind, request, size = HEAD.unpack_from(buffer, start)
                if kind not in KINDS or size > _LIMITS[kind]:
                    raise BadFrame(f"kind {kind} with {size} bytes")
                end = start + HEAD.size + size
                if len(buffer) < end:
                    return
                body = bytes(memoryview(buffer)[start + HEAD.size : end])
                start = end
                yield kind, request, body
        finally:
            del buffer[:start]


def number_of(body: bytes) -> int:
    """The number in a CREDIT frame."""
    if len(body) != NUMBER.size:
        raise BadFrame(f"a credit of {len(body)} bytes")
    return int(NUMBER.unpack(body)[0])
