"""What is kept of a command's output where there is no runner that could keep it in the sandbox."""

import contextlib

from kakoi.errors import SandboxError
from kakoi.results import Capture
from kakoi.runner.commands import MIB, Command, OutputPart, Stream
from kakoi.runner.posix_shells import OrderError, Shells

_SAVED_AT_ONCE = MIB // 4


class KeptOutput:
    """One output stream: its head is kept here, more of it goes back into the sandbox."""

    def __init__(self, shells: Shells, command: Command, stream: Stream) -> None:
        self._shells = shells
        self._name = f"{command.id},{stream}"
        self._limit = command.spill_bytes
        self._head_limit = command.max_output_bytes
        self._unsaved = bytearray()
        self.head = bytearray()
        self.capture = Capture(command.max_output_bytes)
        self.stored = 0

    @property
    def is_spilled(self) -> bool:
        """Is it to be read in the sandbox?"""
        return self.capture.truncated and self._limit > 0

    @property
    def size(self) -> int:
        """How many bytes of it are kept here, about: for reading, and as text in the result."""
        return len(self.head) + 2 * min(self.capture.total_bytes, self._head_limit)

    async def take(self, data: bytes) -> None:
        """More of it."""
        self.capture.feed(data)
        if not self.capture.truncated:
            self.head += data
        elif self._limit:
            self._unsaved += self.head + data
            self.head.clear()
            if len(self._unsaved) >= _SAVED_AT_ONCE:
                await self._save()

    async def finish(self) -> None:
        """All of it is there; in the sandbox too, when this returns."""
        await self._save()
        lost = self.capture.total_bytes - self.stored
        if self.is_spilled and lost > 0 and not self._shells.lost:
            with contextlib.suppress(SandboxError):  # No room, not even for a number.
                await self._shells.put(f"{self._name},lost", b"%d\n" % lost)

    async def _save(self) -> None:
        data = bytes(self._unsaved[: self._limit - self.stored])
        self._unsaved.clear()
        if data:
            try:
                await self._shells.order("append", self._name, len(data), payload=data)
                self.stored += len(data)
            except (OrderError, SandboxError):
                self._limit = self.stored  # No room for it, or nobody to ask.

    def part(self, offset: int, limit: int, *, is_over: bool) -> OutputPart:
        """A part of the head."""
        data = bytes(self.head[offset : offset + limit])
        ended = is_over and offset + len(data) >= len(self.head)
        lost = self.capture.total_bytes - len(self.head)
        return OutputPart(data, offset, offset + len(data), ended, lost)
