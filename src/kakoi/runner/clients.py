"""The runner's clients: each has a stream, and requests that came over it.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import os

from kakoi.runner import file_trees, files, frames, plain_json
from kakoi.runner.contexts import suppress
from kakoi.runner.loop import READ, WRITE
from kakoi.runner.runner_socket import STAYS

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _socket as socket
    from collections.abc import Callable
    from typing import Any, Protocol

    from kakoi.runner.jobs import RunnerJob
    from kakoi.runner.loop import Loop

    class Host(Protocol):
        """Carries out what clients request."""

        loop: Loop
        closing: bool

        def obey(self, request: Request, order: dict[str, Any]) -> None: ...
        def leave(self, client: Client) -> None: ...


_HIGH_WATER = 2 * 1024 * 1024
_BUFFER = memoryview(bytearray(frames.MAX_DATA))


class Request:
    """One open request of a client."""

    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self._number = number
        self._credit = frames.WINDOW
        self.job: RunnerJob | None = None
        self.transfer: files.FileReader | files.FileWriter | file_trees.SlicedWork | None = None
        self.waiting: Callable[[], None] | None = None  # Stops the wait.

    def room(self) -> int:
        return 0 if self._client.full else self._credit

    def grant(self, size: int) -> None:
        self._credit = min(self._credit + size, frames.WINDOW)
        self.has_room()

    def has_room(self) -> None:
        if self.job is not None:
            self.job.has_room()
        if self.transfer is not None:
            self.transfer.has_room()

    def send(self, kind: int, body: bytes) -> None:
        if kind in (frames.STDOUT, frames.STDERR):
            self._credit -= len(body)
        self._client.send(frames.frame(kind, self._number, body))

    def answer(self, answer: dict[str, Any]) -> None:
        self._client.requests.pop(self._number, None)
        body = plain_json.dumps(answer)
        if len(body) > frames.MAX_JSON:
            body = plain_json.dumps(
                files.failure(OSError(errno.EOVERFLOW, "the answer is too long"))
            )
        self._client.send(frames.frame(frames.ANSWER, self._number, body))

    def feed(self, data: bytes) -> None:
        if isinstance(self.transfer, files.FileWriter):
            self.transfer.feed(data)
        elif self.job is not None and self.job.stdin is not None:
            if not self.job.stdin.feed(data):
                raise frames.BadFrame("input beyond the credit")
        else:
            self.send(frames.CREDIT, frames.NUMBER.pack(len(data)))

    def cancel(self) -> None:
        """The client cancelled the request, or is gone."""
        if self.transfer is not None:
            self.transfer.close()
        if self.waiting is not None:
            self.waiting()
        if self.job is None:
            self.answer({"errno": errno.ECANCELED, "error": "cancelled"})
        else:
            self.job.end("cancelled")

    def abandon(self) -> None:
        """The client is gone: nobody will read the rest of the job's output."""
        self.cancel()
        if self.job is not None:
            self.job.follower = None
            self.job.has_room()


class Client:
    """One stream, and the requests that came over it."""

    def __init__(
        self, runner: Host, reading: int, writing: int, held: socket.socket | None
    ) -> None:
        self._runner = runner
        self._reading = reading
        self._writing = writing
        self._decoder = frames.Decoder()
        self._outbox = bytearray()
        self._deaf = False
        self.requests: dict[int, Request] = {}
        self._held = held
        for fd in {reading, writing}:
            os.set_blocking(fd, False)
        runner.loop.watch(reading, READ, self._on_ready)

    @property
    def full(self) -> bool:
        return len(self._outbox) > _HIGH_WATER

    def send(self, data: bytes) -> None:
        if self._writing < 0:
            return
        if not self._outbox:
            try:
                sent = os.write(self._writing, data)
            except BlockingIOError:
                sent = 0
            except OSError:
                return self.close()
            if sent == len(data):
                return None
            data = data[sent:]
            self._await_room()
        self._outbox += data
        return None

    def _await_room(self) -> None:
        same = self._writing == self._reading
        self._runner.loop.watch(self._writing, WRITE | READ if same else WRITE, self._on_ready)

    def _on_ready(self, events: int) -> None:
        if events & WRITE or self._outbox:
            self._flush()
        if self._reading >= 0 and not self._deaf and (events & ~WRITE):
            self._receive()

    def _flush(self) -> None:
        was_full = self.full
        try:
            sent = os.write(self._writing, self._outbox)
        except BlockingIOError:
            return
        except OSError:
            return self.close()
        del self._outbox[:sent]
        if not self._outbox:
            if self._writing == self._reading:
                self._runner.loop.watch(self._writing, READ, self._on_ready)
            else:
                self._runner.loop.forget(self._writing)
        if was_full and not self.full:
            for request in list(self.requests.values()):
                request.has_room()
        if self._deaf and not self.full:
            self._deaf = False
            self._runner.loop.watch(self._reading, READ, self._on_ready)
            self._obey(b"")

    def _receive(self) -> None:
        try:
            # One shared buffer: allocating it takes longer than a small read.
            size = os.readv(self._reading, [_BUFFER])
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if size:
            self._obey(_BUFFER[:size])
        else:
            self.close()

    def _obey(self, data: bytes | memoryview) -> None:
        try:
            for kind, number, body in self._decoder.feed(data):
                self._take(kind, number, body)
                if self._reading < 0:
                    return
                if self.full:  # The client must read before it can send more requests.
                    self._deaf = True
                    self._runner.loop.forget(self._reading)
                    return
        except Exception:  # Whatever a bad request breaks, the other clients must still be served.
            self.close()

    def _take(self, kind: int, number: int, body: bytes) -> None:
        request = self.requests.get(number)
        if kind == frames.REQUEST:
            if len(self.requests) >= frames.MAX_REQUESTS or request is not None:
                raise frames.BadFrame("too many requests, or one twice")
            order = plain_json.loads(body)
            request = Request(self, number)
            self.requests[number] = request
            try:
                self._runner.obey(request, order)
            except OSError as error:
                request.answer(files.failure(error))
        elif request is None:
            return  # The request ended while this frame was in transit.
        elif kind == frames.INPUT:
            request.feed(body)
        elif kind == frames.CREDIT:
            request.grant(frames.parse_credit(body))
        elif kind == frames.CANCEL:
            request.cancel()

    def close(self) -> None:
        """The client is gone: end its foreground commands; jobs continue if clients can return."""
        if self._reading < 0:
            return
        for fd in {self._reading, self._writing}:
            self._runner.loop.forget(fd)
            os.close(fd)
        self._reading = self._writing = -1
        self._outbox.clear()
        for request in list(self.requests.values()):
            request.abandon()
        self._runner.leave(self)
        if self._held is not None:
            if not self._runner.closing:
                with suppress(OSError):
                    self._held.send(STAYS)
            self._held.close()
