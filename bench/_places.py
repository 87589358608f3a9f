"""What a place to run commands in costs: measured in the same way for every tool of others.py.

Run inside the environment of each tool, so the standard library is all there is.
"""

import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

STARTS = 3
SAMPLES = 200
AT_ONCE = 32
# A tool that needs 100 ms for a command is not asked for hundreds of them.
ENOUGH_S = 5.0
# Text, as a tool that answers in JSON would have to escape much else: 64 MiB of it.
FLOOD = ["seq", "8530000"]
FLOODS = 3
FLOOD_PATIENCE_S = 60
LIMIT_S = 2  # Whole seconds: one of the tools takes nothing else.
LIMITED = 3
GRACE_S = 5.0
FAMILY = 21
# Twenty daemons (own sessions, forked twice, empty environments), and the program itself.
DAEMONS = """
import os
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        os.execve("/bin/sleep", ["sleep", "{nap}"], {{}})
os.execve("/bin/sleep", ["sleep", "{nap}"], {{}})
"""


class Place(Protocol):
    """A tool that runs commands, in the way that its own documents recommend."""

    @property
    def version(self) -> str:
        """Of the tool; empty for what is part of every machine."""

    @property
    def pid(self) -> int:
        """The process on this side that receives what commands write."""

    async def open(self) -> None:
        """Make a new environment."""

    async def close(self) -> None:
        """Take it away."""

    async def run(self, argv: list[str]) -> int:
        """Run a program to its end; how much it wrote, as far as the tool hands it over."""

    async def beside(self, argv: list[str]) -> int:
        """The same, while others run."""

    async def limited(self, code: str, limit_s: int) -> None:
        """Run a Python program that does not end, with a limit of time; return when it is up."""


async def measure(place: Place) -> dict[str, object]:
    """Everything, on one environment after the other."""
    started = [await _start(place) for _ in range(STARTS)]
    await place.open()
    try:
        each_ms, run_ms = await _one_by_one(place)
        rate = await _at_once(place)
        flood = await _flood(place)
    finally:
        await place.close()
    return {
        "version": place.version,
        "start_ms": statistics.median(started),
        "true_ms": each_ms,
        "run_ms": run_ms,
        "per_s": rate,
        **flood,
        **await _ending(place),
    }


async def _start(place: Place) -> float:
    start = time.perf_counter()
    await place.open()
    try:
        await place.run(["true"])
        return (time.perf_counter() - start) * 1000
    finally:
        await place.close()


async def _one_by_one(place: Place) -> tuple[float, float]:
    """Medians of `true` there, and of the plain thing meanwhile: the machine is noisy."""
    there: list[float] = []
    plain: list[float] = []
    until = time.perf_counter() + ENOUGH_S
    while len(there) < SAMPLES and time.perf_counter() < until:
        start = time.perf_counter()
        await place.run(["true"])
        between = time.perf_counter()
        subprocess.run(["true"])  # noqa: ASYNC221 - nothing else is to run meanwhile
        there.append((between - start) * 1000)
        plain.append((time.perf_counter() - between) * 1000)
    return statistics.median(there), statistics.median(plain)


async def _at_once(place: Place) -> float:
    """Commands in a second, with AT_ONCE of them always under way."""
    start = time.perf_counter()
    done = 0

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() - start < ENOUGH_S:
            await place.beside(["true"])
            done += 1

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return done / (time.perf_counter() - start)


def _peak_mib(pid: int, *, reset: bool = False) -> float:
    if reset:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


async def _flood(place: Place) -> dict[str, object]:
    """Time and memory of much output; no time if there was no end of it."""
    times, returned = [], 0
    before = _peak_mib(place.pid, reset=True)
    for _ in range(FLOODS):
        start = time.perf_counter()
        try:
            returned = await asyncio.wait_for(place.beside(FLOOD), FLOOD_PATIENCE_S)
        except TimeoutError:
            break
        times.append((time.perf_counter() - start) * 1000)
    grown = _peak_mib(place.pid) - before
    median = statistics.median(times) if times else None
    return {"flood_ms": median, "flood_bytes": returned, "flood_mib": grown}


class _Watch:
    """Looks for the processes of one nap, from outside: every 10 ms, until none is left."""

    def __init__(self, nap: str) -> None:
        self._needle = b"sleep\0" + nap.encode() + b"\0"
        self._over = threading.Event()
        self.most = 0
        self.gone_at = 0.0
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def pids(self) -> list[int]:
        found = []
        for entry in os.scandir("/proc"):
            if entry.name.isdecimal():
                with contextlib.suppress(OSError):
                    if Path(f"/proc/{entry.name}/cmdline").read_bytes() == self._needle:
                        found.append(int(entry.name))
        return found

    def _look(self) -> None:
        while not self._over.is_set():
            alive = len(self.pids())
            self.most = max(self.most, alive)
            if self.most and not alive:
                self.gone_at = time.perf_counter()
                return
            self._over.wait(0.01)

    def wait(self, seconds: float) -> None:
        self._thread.join(seconds)
        self._over.set()
        self._thread.join()


async def _ending(place: Place) -> dict[str, object]:
    """How long after the limit all are dead; how many are not, GRACE_S after the answer."""
    late, left = [], 0
    for _ in range(LIMITED):
        await place.open()
        try:
            ms, survivors = await _one_limit(place)
        finally:
            await place.close()
        left = max(left, survivors)
        late.append(ms)
    return {"late_ms": None if left else statistics.median(late), "survivors": left}


async def _one_limit(place: Place) -> tuple[float, int]:
    """Milliseconds and survivors of one command that is stopped by its limit."""
    await place.run(["true"])
    nap = f"600.{uuid.uuid4().int % 10**9:09}"
    watch = _Watch(nap)
    start = time.perf_counter()
    try:
        await place.limited(DAEMONS.format(nap=nap), LIMIT_S)
    finally:
        answered = time.perf_counter()
        watch.wait(GRACE_S)
    survivors = watch.pids()
    for pid in survivors:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    if watch.most != FAMILY:
        raise RuntimeError(f"{watch.most} of {FAMILY} processes were there at the limit")
    # If all were gone with the answer, that is the time: the watch only looks now and then.
    over = answered if 0 < watch.gone_at <= answered + 0.02 else watch.gone_at
    return (over - start - LIMIT_S) * 1000, len(survivors)


def report(make: Callable[[], Place]) -> None:
    """Measure, and print what came of it as a line of JSON."""

    async def all_of_it() -> dict[str, object]:
        return await measure(make())

    print("\n" + json.dumps(asyncio.run(all_of_it())))
