"""DNS messages: reads the queries of a sandbox and builds their answers (RFC 1035).

The other side is hostile. A query is one short name without compression, or it is not answered.
"""

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final

from kakoi._support.late import dataclass
from kakoi.network.addresses import Address

# A query is one name, of at most 255 bytes, and perhaps options.
MAX_QUERY_BYTES: Final = 512
A: Final = 1
AAAA: Final = 28
_IN: Final = 1
_HEAD: Final = struct.Struct("!HHHHHH")
_RECORD: Final = struct.Struct("!HHHIH")
_IS_ANSWER, _RECURSION_DESIRED, _RECURSION_AVAILABLE = 0x8000, 0x0100, 0x0080
_OPCODES: Final = 0x7800
_LONGEST_LABEL: Final = 63
_LONGEST_NAME: Final = 255
_MAX_TTL_S: Final = 2**31 - 1
# In a record: the name that is at byte 12, which is where the question begins.
_THE_NAME: Final = 0xC00C


class ResponseCode(IntEnum):
    """What an answer says about its query."""

    OK = 0
    FORMAT_ERROR = 1
    SERVER_FAILURE = 2
    NO_SUCH_NAME = 3
    NOT_IMPLEMENTED = 4
    REFUSED = 5


class BadQueryError(ValueError):
    """The message is not a query that can be answered. `answer`: empty if it gets none."""

    def __init__(self, answer: bytes = b"") -> None:
        super().__init__("a bad query")
        self.answer = answer


@dataclass(frozen=True, slots=True)
class Query:
    """The question of a message. `name`: as it was sent, without a dot at its end."""

    id: int
    flags: int
    name: str
    kind: int
    question: bytes

    def answer(
        self, code: ResponseCode, addresses: Sequence[Address] = (), *, ttl_s: int = 0
    ) -> bytes:
        """Return an answer with those of the addresses that were asked for."""
        version = {A: 4, AAAA: 6}.get(self.kind)
        found = [each.packed for each in addresses if each.version == version]
        life = max(0, min(ttl_s, _MAX_TTL_S))
        records = [
            _RECORD.pack(_THE_NAME, self.kind, _IN, life, len(each)) + each for each in found
        ]
        head = _head(self.id, self.flags, code, questions=1, answers=len(records))
        return b"".join((head, self.question, *records))


def parse_query(message: bytes) -> Query:
    """Parse a query for a name. BadQueryError has the answer to anything else."""
    if not _HEAD.size <= len(message) <= MAX_QUERY_BYTES:
        raise BadQueryError
    id, flags, questions, *_ = _HEAD.unpack_from(message)
    if flags & _IS_ANSWER:
        raise BadQueryError  # Two servers must not answer each other.
    if flags & _OPCODES:
        raise BadQueryError(_head(id, flags, ResponseCode.NOT_IMPLEMENTED))
    try:
        if questions != 1:
            raise ValueError(questions)
        labels, end = _labels(message)
        kind, family = struct.unpack_from("!HH", message, end)
    except (ValueError, IndexError, struct.error):
        raise BadQueryError(_head(id, flags, ResponseCode.FORMAT_ERROR)) from None
    if family != _IN:
        raise BadQueryError(_head(id, flags, ResponseCode.REFUSED))
    name = b".".join(labels).decode("ascii", "backslashreplace")
    return Query(id, flags, name, kind, message[_HEAD.size : end + 4])


def _labels(message: bytes) -> tuple[list[bytes], int]:
    """Return the labels of the question's name, and where it ends."""
    labels, at = [], _HEAD.size
    while size := message[at]:
        # Larger sizes are pointers into the message, which no question needs.
        if size > _LONGEST_LABEL or at + 1 + size >= len(message):
            raise ValueError(size)
        labels.append(message[at + 1 : at + 1 + size])
        at += 1 + size
        if at - _HEAD.size >= _LONGEST_NAME or b"." in labels[-1]:
            raise ValueError(at)
    return labels, at + 1


def _head(
    id: int, flags: int, code: ResponseCode, *, questions: int = 0, answers: int = 0
) -> bytes:
    kept = flags & (_OPCODES | _RECURSION_DESIRED)
    return _HEAD.pack(id, _IS_ANSWER | kept | _RECURSION_AVAILABLE | code, questions, answers, 0, 0)


def lowest_ttl(message: bytes) -> int | None:
    """Return how long an answer of a name server holds, in seconds; None if it has no records.

    `message`: as the system's resolver accepted it.
    """
    try:
        _, _, questions, answers, _, _ = _HEAD.unpack_from(message)
        at = _HEAD.size
        for _ in range(questions):
            at = _after_name(message, at) + 4
        found = []
        for _ in range(answers):
            at = _after_name(message, at)
            _, _, ttl_s, size = struct.unpack_from("!HHIH", message, at)
            found.append(ttl_s if ttl_s <= _MAX_TTL_S else 0)
            at += 10 + size
    except (IndexError, struct.error):
        return None
    return min(found, default=None)


def _after_name(message: bytes, at: int) -> int:
    while size := message[at]:
        if size > _LONGEST_LABEL:  # A pointer ends the name, wherever it leads.
            return at + 2
        at += 1 + size
    return at + 1
