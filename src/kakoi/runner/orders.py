"""A client's orders about jobs and files: one function for each.

Standard library only, Python >= 3.8.
"""

from __future__ import annotations

import errno
import os
import struct
import time

from kakoi.runner import file_trees, file_watch, files, frames
from kakoi.runner.jobs import RunnerJob, signal_number
from kakoi.runner.outlet import OutletSocket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from kakoi.runner.clients import Request
    from kakoi.runner.loop import Loop, Timer

    Order = dict[str, Any]


_TEXT_OR_NONE = (str, type(None))
_SECONDS_OR_NONE = (int, float, type(None))
_RUN = (
    ("id", str),
    ("command", (str, list)),
    ("cwd", _TEXT_OR_NONE),
    ("env", dict),
    ("stdin", bool),
    ("terminal", (list, type(None))),
    ("timeout_s", _SECONDS_OR_NONE),
    ("idle_timeout_s", _SECONDS_OR_NONE),
    ("send_limit", int),
    ("spill", int),
)


def check_run(order: Order) -> None:
    """Refuse a malformed `run` order before anything is done."""
    for name, kinds in _RUN:
        if not isinstance(order[name], kinds):
            raise frames.BadFrame(name)
    command, size = order["command"], order["terminal"]
    words = [command] if isinstance(command, str) else command
    if not words or not all(isinstance(word, str) for word in [*words, *order["env"].values()]):
        raise frames.BadFrame("command or env")
    if size is not None:
        rows, columns = size
        struct.pack("HH", rows, columns)
    if order["send_limit"] < 0 or order["spill"] < 0:
        raise frames.BadFrame("a negative limit")
    for seconds in (order["timeout_s"], order["idle_timeout_s"]):
        if seconds is not None and not 0 < seconds < float("inf"):
            raise frames.BadFrame("a timeout that is not positive")
    if "input" in order:
        import binascii  # Few orders need it, and it is a separate file.

        order["input"] = binascii.a2b_base64(order["input"])
        order["input_ends"] = bool(order["input_ends"])


def _path(order: Order, name: str = "path") -> str:
    path = order[name]
    if not isinstance(path, str):
        raise frames.BadFrame("no path")
    try:
        possible = b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:
        possible = False
    if not possible:
        raise OSError(errno.EINVAL, "not a file name")
    return path


def _count(order: Order, name: str, least: int) -> int:
    value = order[name]
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise frames.BadFrame(name)
    return value


class Orders:
    """Carries out orders about existing jobs and about files."""

    def __init__(self, loop: Loop, jobs: dict[str, RunnerJob]) -> None:
        self._loop = loop
        self._jobs = jobs
        self._table: dict[str, Callable[[Request, Order], None]] = {
            "list": self._list,
            "read": self._read,
            "write": self._write,
            "wait": self._wait,
            "stop": self._stop,
            "signal": self._signal,
            "resize": self._resize,
            "read_file": self._read_file,
            "write_file": self._write_file,
            "list_files": self._list_files,
            "stat_file": self._stat_file,
            "make_dir": self._make_dir,
            "move_file": self._move_file,
            "remove_file": self._remove_file,
            "watch_files": self._watch_files,
            "hand_over": OutletSocket().hand_over,
            "ping": lambda request, order: request.answer({}),
        }

    def obey(self, request: Request, order: Order) -> None:
        self._table[order["op"]](request, order)

    def answer_when_over(self, request: Request, job: RunnerJob, wait_s: float | None) -> None:
        """Send the job's answer, or that it is still running after `wait_s`."""

        def give() -> None:
            request.answer(job.answer or {"running": True})

        self._when(request, job, wait_s, lambda: job.answer is not None, give)

    def _when(
        self,
        request: Request,
        job: RunnerJob,
        wait_s: float | None,
        due: Callable[[], bool],
        give: Callable[[], None],
    ) -> None:
        """Call `give` as soon as `due`, or after `wait_s`. Never if the request is cancelled."""
        timer: Timer | None = None

        def look() -> None:
            if look in job.watchers and due():
                finish()

        def finish() -> None:
            stop()
            give()

        def stop() -> None:
            job.watchers.remove(look)
            request.waiting = None
            if timer is not None:
                timer.cancel()

        job.watchers.append(look)
        request.waiting = stop
        if wait_s is not None and not wait_s > 0:  # NaN does not wait either.
            finish()
        else:
            timer = None if wait_s is None else self._loop.after(wait_s, finish)
            look()

    def _job(self, order: Order) -> RunnerJob:
        job = self._jobs.get(order["id"])
        if job is None:
            raise OSError(errno.ESRCH, "no such job")
        return job

    def _list(self, request: Request, order: Order) -> None:
        now = time.monotonic()
        jobs = [
            {
                "id": job.id,
                "command": job.title,
                "age_s": now - job.started,
                "bytes": job.counts(),
                # The exports of a thousand jobs would be too long for an answer.
                "answer": job.answer and {**job.answer, "exports": ""},
            }
            for job in self._jobs.values()
            if job.in_background
        ]
        request.answer({"jobs": jobs})

    def _read(self, request: Request, order: Order) -> None:
        job = self._job(order)
        spool = job.spool(order["stream"])
        offset: int = order["offset"]
        if offset < 0 or order["limit"] < 0:
            raise OSError(errno.EINVAL, "negative offset or limit")

        def due() -> bool:
            return spool.stored > offset or not job.running

        def give() -> None:
            data = spool.read(offset, min(order["limit"], frames.WINDOW))
            for start in range(0, len(data), frames.MAX_DATA):
                request.send(frames.STDOUT, data[start : start + frames.MAX_DATA])
            ended = not job.running and offset + len(data) >= spool.stored
            request.answer({"ended": ended, "stored": spool.stored, "total": spool.total})

        self._when(request, job, order["wait_s"], due, give)

    def _write(self, request: Request, order: Order) -> None:
        job = self._job(order)
        data = order["data"].encode("latin-1")
        if job.stdin is None or not job.running:
            raise OSError(errno.EPIPE, "the job takes no input")
        if job.stdin.waiting + len(data) > frames.WINDOW:
            raise OSError(errno.EAGAIN, "the job does not read its input")
        if data:
            job.stdin.feed(data)
        if order["close"]:
            job.stdin.feed(b"")
        request.answer({})

    def _wait(self, request: Request, order: Order) -> None:
        self.answer_when_over(request, self._job(order), order["wait_s"])

    def _stop(self, request: Request, order: Order) -> None:
        job = self._job(order)
        job.end("cancelled")
        self.answer_when_over(request, job, None)

    def _signal(self, request: Request, order: Order) -> None:
        self._job(order).signal(signal_number(order["number"]))
        request.answer({})

    def _resize(self, request: Request, order: Order) -> None:
        job = self._job(order)
        if not job.on_terminal:
            raise OSError(errno.ENOTTY, "the job has no terminal")
        job.resize(order["rows"], order["columns"])
        request.answer({})

    def _read_file(self, request: Request, order: Order) -> None:
        reading = files.FileReader(request, _path(order), order["offset"], order["limit"])
        request.transfer = reading
        reading.has_room()

    def _write_file(self, request: Request, order: Order) -> None:
        request.transfer = files.FileWriter(request, _path(order), order["mode"], order["limit"])

    def _list_files(self, request: Request, order: Order) -> None:
        depth, limit = _count(order, "depth", 1), _count(order, "limit", 0)
        self._work_on(request, file_trees.listing(_path(order), depth, limit))

    def _remove_file(self, request: Request, order: Order) -> None:
        work = file_trees.removal(_path(order), recursive=order["recursive"] is True)
        self._work_on(request, work)

    def _watch_files(self, request: Request, order: Order) -> None:
        work = file_watch.watching(_path(order), recursive=order["recursive"] is True)
        self._work_on(request, work)

    def _work_on(self, request: Request, work: file_trees.Work) -> None:
        request.transfer = file_trees.SlicedWork(self._loop, request, work)
        request.transfer.advance()

    def _stat_file(self, request: Request, order: Order) -> None:
        request.answer(files.stat_file(_path(order)))

    def _make_dir(self, request: Request, order: Order) -> None:
        mode, parents = _count(order, "mode", 0), order["parents"] is True
        request.answer({"made": files.make_dir(_path(order), mode, parents=parents)})

    def _move_file(self, request: Request, order: Order) -> None:
        os.rename(_path(order), _path(order, "destination"))
        request.answer({})
