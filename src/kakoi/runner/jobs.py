"""One command inside the sandbox, its timeouts and its end. Every command is a job.

A foreground job has a follower, the request that waits for it. The follower receives the output, as
far as its credit allows, and the answer. Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import _signal as signal  # type: ignore[import-not-found]
import errno
import fcntl
import os
import struct
import termios
import time

from kakoi.runner.resident_keeper import END, SIGNAL, CommandRecord
from kakoi.runner.spool import Spool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kakoi.runner.loop import Loop, Timer
    from kakoi.runner.resident_keeper import Keeper
    from kakoi.runner.streams import CommandInput, CommandOutput, OutputReceiver, ReadBuffer

_SECOND_TRY_S = 1.0
_NEXT_TRY_S = 0.01


class RunnerJob:
    """A command from its start to its answer."""

    def __init__(
        self,
        loop: Loop,
        order: dict[str, Any],
        read_buffer: ReadBuffer,
        on_over: Callable[[RunnerJob], None],
    ) -> None:
        self.loop = loop
        self._on_over = on_over
        self.id: str = order["id"]
        self.order = order
        self.read_buffer = read_buffer
        self.follower: OutputReceiver | None = None
        self.watchers: list[Callable[[], None]] = []  # Called after output, and at the end.
        self.keeper: Keeper | None = None
        self.stdin: CommandInput | None = None
        self.terminal = -1
        self.outputs: list[CommandOutput] = []
        self.started = self.last_output = time.monotonic()
        self.why = ""
        self.disk_full = b""
        self.kept_out = ""
        self.answer: dict[str, Any] | None = None
        self._record: CommandRecord | None = None
        self._timers: dict[str, Timer] = {}

    @property
    def running(self) -> bool:
        return self.answer is None

    @property
    def in_background(self) -> bool:
        return bool(self.order.get("background"))

    @property
    def on_terminal(self) -> bool:
        return bool(self.order.get("terminal"))

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
        """Start the timeouts, and feed the input that came with the order."""
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
            left_s = idle_s  # Not idle: nobody reads its output.
        if left_s <= 0:
            self.end("idle_timeout")
        elif self.running:
            self._timers["idle"] = self.loop.after(left_s, self._check_idle)

    def end(self, why: str) -> None:
        """Kill everything it started; the answer comes when that is done."""
        if self.keeper is None or self.why or self._record is not None:
            return
        self.why = why
        self.keeper.send(END)
        self._timers["force"] = self.loop.after(_SECOND_TRY_S, self._force)

    def _force(self) -> None:
        if self.keeper is not None and self.running:
            self.keeper.force()
            self._timers["force"] = self.loop.after(_NEXT_TRY_S, self._force)

    def signal(self, number: int) -> None:
        if self.keeper is not None and not self.why:
            self.keeper.send(SIGNAL + bytes([number]))

    def resize(self, rows: int, columns: int) -> None:
        if self.terminal >= 0 and self.outputs[0].open:
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def over(self, record: CommandRecord) -> None:
        """The keeper has reported. The answer follows the last of the output."""
        self.keeper = None
        self._record = record
        self.settle()

    def settle(self) -> None:
        """Answer as soon as all output has been sent."""
        if self._record is None or self.answer is not None:
            return
        finished = [output for output in self.outputs if output.finish()]
        if len(finished) < len(self.outputs) or self.answer is not None:
            for output in finished:
                output.close()
            return  # Called again when the follower has room, or already was when it left.
        for timer in self._timers.values():
            timer.cancel()
        self._timers = {}
        if self.stdin is not None:
            self.stdin.close()
        self.terminal = -1
        self.answer = self._describe(self._record)
        # A job is remembered for a long time, but its order can be megabytes: keep only a summary.
        kept = {"command": self.title, "background": self.in_background}
        self.order = {**kept, "terminal": self.order.get("terminal")}
        follower, self.follower = self.follower, None
        if follower is not None:
            follower.answer(self.answer)
        for output in self.outputs:  # After the answer, which nobody has to wait for longer.
            output.close()
        for watcher in list(self.watchers):
            watcher()
        self._on_over(self)

    def fail(self, kind: str, number: int) -> None:
        """The command could not be passed to a keeper."""
        self.over(CommandRecord(kind, number))

    def counts(self) -> list[int]:
        totals = [output.spool.total for output in self.outputs]
        return totals + [0] * (2 - len(totals))

    def _describe(self, record: CommandRecord) -> dict[str, Any]:
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
        """The follower can take more: resume reading, or answer."""
        if self._record is not None:
            self.settle()
            return
        for output in self.outputs:
            output.resume()


def signal_number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < signal.NSIG:
        raise OSError(errno.EINVAL, "no such signal")
    return value
