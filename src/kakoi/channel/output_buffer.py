"""Live output that has arrived but has not been read yet."""

from collections import deque
from collections.abc import Callable
from itertools import islice

from kakoi.channel.api import Stream
from kakoi.runner import frames

_SMALL = 4096
_MANY = 1000


class OutputBuffer:
    """Pieces of two streams, in order of arrival.

    The caller limits the number of bytes; this class limits the number of pieces. A million single
    bytes do not become a million objects: small pieces of a stream are joined, and when there are
    very many, also across a piece of the other stream.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pieces: deque[tuple[Stream, bytes | bytearray]] = deque()
        self._since = 0.0
        self.size = 0
        self.waited_s = 0.0  # Total time during which there was unread output.

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def __len__(self) -> int:
        return len(self._pieces)

    def put(self, stream: Stream, body: bytes) -> None:
        if not self._pieces:
            self._since = self._clock()
        self.size += len(body)
        if len(body) >= _SMALL:
            self._pieces.append((stream, body))
            return
        for name, last in islice(reversed(self._pieces), 2 if len(self) > _MANY else 1):
            if name == stream and isinstance(last, bytearray) and len(last) < frames.MAX_DATA:
                last += body
                return
        self._pieces.append((stream, bytearray(body)))

    def take(self) -> tuple[Stream, bytes]:
        stream, piece = self._pieces.popleft()
        self.size -= len(piece)
        if not self._pieces:
            self.waited_s += self._clock() - self._since
        return stream, bytes(piece)

    def clear(self) -> int:
        """Drop everything; returns the number of bytes dropped."""
        size, self.size = self.size, 0
        if self._pieces:
            self.waited_s += self._clock() - self._since
            self._pieces.clear()
        return size
