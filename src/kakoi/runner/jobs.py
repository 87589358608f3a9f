"""One command inside the sandbox: its time, its end. Every command is a job.

A job in the foreground has a follower, the request that waits for it: it gets the output as far
as its credit goes, and the answer. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import errno
import fcntl
import os
import struct
import termios
import time

from kakoi.runner.keepers import END, SIGNAL, Record
from kakoi.runner.spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kakoi.runner.keepers import Keeper
    from kakoi.runner.loop import Loop, Timer
    from kakoi.runner.streams import Follower, Input, Intake, Output

_SECOND_TRY_S = 1.0
_NEXT_TRY_S = 0.01


class Job:
    """A command from its start to its answer."""

    def __init__(
        self,
        loop: Loop,
        order: dict[str, Any],
        intake: Intake,
        on_over: Callable[[Job], None],
    ) -> None:
        self.loop = loop
        self._on_over = on_over
        self.id: str = order["id"]
        self.order = order
        self.intake = intake
        self.follower: Follower | None = None
        self.watchers: list[Callable[[], None]] = []  # Called after output, and at the end.
        self.keeper: Keeper | None = None
        self.stdin: Input | None = None
        self.terminal = -1
        self.outputs: list[Output] = []
        self.started = self.last_output = time.monotonic()
        self.why = ""
        self.disk_full = b""
        self.kept_out = ""
        self.answer: dict[str, Any] | None = None
        self._record: Record | None = None
        self._timers: dict[str, Timer] = {}

    @property
    def running(self) -> bool:
        return self.answer is None

    @property
    def in_background(self) -> bool:
        return bool(self.order.get("background"))

    @property
    def title(self) -> str:
        command = self.order["command"]
        return (command if isinstance(command, str) else " ".join(command))[:500]

    def spool(self, stream: int) -> Spool:
        if stream not in (0, 1):
            raise OSError(errno.EINVAL, "no such stream")
        return self.outputs[stream].spool if stream < len(self.outputs) else Spool(0)

    def memory_bytes(self) -> int:
        return sum(output.spool.memory_bytes for output in self.outputs)

    def file_bytes(self) -> int:
        return sum(output.spool.file_bytes for output in self.outputs)

    def arm(self) -> None:
        """Start the clocks, and give it the input that came along."""
        given = self.order.pop("input", None)
        if given is not None and self.stdin is not None:
            if given:
                self.stdin.feed(given)
            if self.order["input_ends"]:
                self.stdin.feed(b"")
        timeout_s, idle_s = self.order.get("timeout_s"), self.order.get("idle_timeout_s")
        if timeout_s:
            self._timers["time"] = self.loop.after(timeout_s, lambda: self.end("timed_out"))
        if idle_s:
            self._timers["idle"] = self.loop.after(idle_s, self._check_idle)

    def _check_idle(self) -> None:
        idle_s = self.order["idle_timeout_s"]
        left_s = self.last_output + idle_s - time.monotonic()
        if any(output.held_back for output in self.outputs):
            left_s = idle_s  # It is not idle: nobody takes what it says.
        if left_s <= 0:
            self.end("idle_timeout")
        elif self.running:
            self._timers["idle"] = self.loop.after(left_s, self._check_idle)

    def end(self, why: str) -> None:
        """Have everything of it killed; the answer comes when that is done."""
        if self.keeper is None or self.why or self._record is not None:
            return
        self.why = why
        self.keeper.tell(END)
        self._timers["force"] = self.loop.after(_SECOND_TRY_S, self._force)

    def _force(self) -> None:
        if self.keeper is not None and self.running:
            self.keeper.force()
            self._timers["force"] = self.loop.after(_NEXT_TRY_S, self._force)

    def signal(self, number: int) -> None:
        if self.keeper is not None and not self.why:
            self.keeper.tell(SIGNAL + bytes([number]))

    def resize(self, rows: int, columns: int) -> None:
        if self.terminal >= 0 and self.outputs[0].open:
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def over(self, record: Record) -> None:
        """Its keeper has reported. The answer follows the last of the output."""
        self.keeper = None
        self._record = record
        self.settle()

    def settle(self) -> None:
        """Answer, as soon as all output is on its way."""
        if self._record is None or self.answer is not None:
            return
        finished = [output.finish() for output in self.outputs]
        if not all(finished) or self.answer is not None:
            return  # Called again when the follower has room; or was, when it left meanwhile.
        for timer in self._timers.values():
            timer.cancel()
        self._timers = {}
        if self.stdin is not None:
            self.stdin.close()
        self.terminal = -1
        self.answer = self._describe(self._record)
        # A job is remembered for long, what it was given (megabytes, perhaps) need not be.
        self.order = {"command": self.title, "background": self.in_background}
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.answer(self.answer)
        for watcher in list(self.watchers):
            watcher()
        self._on_over(self)

    def fail(self, kind: str, number: int) -> None:
        """It could not even be handed to a keeper."""
        self.over(Record(kind, number))

    def counts(self) -> list[int]:
        totals = [output.spool.total for output in self.outputs]
        return totals + [0] * (2 - len(totals))

    def _describe(self, record: Record) -> dict[str, Any]:
        kind = self.why if self.why and not record.kind.startswith("no_") else record.kind
        return {
            "id": self.id,
            "kind": kind,
            "number": record.number,
            "error": os.strerror(record.number) if kind.startswith("no_") else "",
            "duration_ms": round((time.monotonic() - self.started) * 1000),
            "bytes": self.counts(),
            "cwd": record.cwd.decode("utf-8", "surrogateescape"),
            "exports": record.exports.decode("latin-1"),
            "cpu_ms": record.cpu_ms,
            "max_rss_kib": record.max_rss_kib,
            "ended": record.ended,
            "survivors": record.survivors,
            "disk_full": self.disk_full.decode("utf-8", "surrogateescape"),
            "kept_out": self.kept_out,
        }

    def forget(self) -> None:
        for output in self.outputs:
            output.spool.close()

    def has_room(self) -> None:
        """The follower takes more: go on reading, or answer at last."""
        if self._record is not None:
            self.settle()
            return
        for output in self.outputs:
            output.resume()


def signal_number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < signal.NSIG:
        raise OSError(errno.EINVAL, "no such signal")
    return value
