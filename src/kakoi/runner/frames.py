"""The wire format of a channel and its limits. Both ends use this file.

A frame is a head (kind, request number, size of the body) and a body. Numbers are big-endian.

    to the runner      REQUEST  JSON: what to do
                       INPUT    bytes for the command's stdin; an empty body ends it
                       CANCEL   end the command of this request
                       CREDIT   how many more bytes of output can be sent
    from the runner    HELLO    JSON: the greeting; request number 0
                       STDOUT   bytes, and STDERR
                       CREDIT   how many more bytes of input can be sent
                       ANSWER   JSON: the last frame of this request

Neither end sends output or input beyond the credit that the other has granted: a slow reader slows
the writer down, and never has to store more than a window. Both ends also refuse
the variables for which `changes_the_shell` is true. Standard library only, Python >= 3.8.
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
# So many results of ended jobs are kept, at both ends.
REMEMBERED_JOBS = 256

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
    """The other end violates the format. The stream cannot be resynchronised.

    The runner closes that stream (`clients.py`); our end gives up the sandbox
    (`channel/runner_stream.py`).
    """


def frame(kind: int, request: int, body: bytes = b"") -> bytes:
    """Return one frame, ready to be sent."""
    return HEAD.pack(kind, request, len(body)) + body


class Decoder:
    """Decodes frames from bytes that arrive in pieces. Stores at most one partial frame."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> Iterator[tuple[int, int, bytes]]:
        """Yield every frame (kind, request, body) that `data` completes; raises BadFrame."""
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


def parse_credit(body: bytes) -> int:
    """Return the number in a CREDIT frame."""
    if len(body) != NUMBER.size:
        raise BadFrame(f"a credit of {len(body)} bytes")
    return int(NUMBER.unpack(body)[0])


_CHANGE_THE_SHELL = frozenset(
    "BASH_ENV ENV SHELLOPTS BASHOPTS PROMPT_COMMAND PS4 BASH_XTRACEFD BASH_COMPAT POSIXLY_CORRECT "
    "GLOBIGNORE EXECIGNORE CDPATH BASH_LOADABLES_PATH".split()
)
_FUNCTION = "BASH_FUNC_"


def changes_the_shell(name: str) -> bool:
    """Would a variable of this name change the meaning of a command that was already judged?"""
    return name in _CHANGE_THE_SHELL or name.startswith(_FUNCTION)
