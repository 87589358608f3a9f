"""Measure what running commands costs, in the same way for every tool in others.py.

This runs in the virtual environment of each tool, so it uses only the standard library.
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
# Time budget, so that a tool that needs 100 ms per command does not run hundreds of them.
ENOUGH_S = 5.0
# 64 MiB of text. Tools that answer in JSON would have to escape most other bytes.
FLOOD = ["seq", "8530000"]
FLOODS = 3
FLOOD_PATIENCE_S = 60
LIMIT_S = 2  # One of the tools accepts only whole seconds.
LIMITED = 3
GRACE_S = 5.0
FAMILY = 21
# The program and twenty daemons, each forked twice with its own session and an empty environment.
DAEMONS = """
import os
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        os.execve("/bin/sleep", ["sleep", "{nap}"], {{}})
os.execve("/bin/sleep", ["sleep", "{nap}"], {{}})
"""


class Tool(Protocol):
    """A tool that runs commands, used as its own documentation recommends."""

    @property
    def version(self) -> str:
        """The tool's version, or an empty string for a tool that every machine has."""

    @property
    def pid(self) -> int:
        """The local process that receives the output of commands."""

    async def open(self) -> None:
        """Create a new environment."""

    async def close(self) -> None:
        """Remove the environment."""

    async def run(self, argv: list[str]) -> int:
        """Run a program to completion and return the size of the output that the tool returns."""

    async def beside(self, argv: list[str]) -> int:
        """Do the same as `run` while other commands are running."""

    async def limited(self, code: str, limit_s: int) -> None:
        """Run a Python program that never exits, with a timeout. Return when the timeout fires."""


async def measure(tool: Tool) -> dict[str, object]:
    """Take all measurements, on one environment after the other."""
    started = [await _start(tool) for _ in range(STARTS)]
    await tool.open()
    try:
        each_ms, run_ms = await _one_by_one(tool)
        rate = await _at_once(tool)
        flood = await _flood(tool)
    finally:
        await tool.close()
    return {
        "version": tool.version,
        "start_ms": statistics.median(started),
        "true_ms": each_ms,
        "run_ms": run_ms,
        "per_s": rate,
        **flood,
        **await _ending(tool),
    }


async def _start(tool: Tool) -> float:
    start = time.perf_counter()
    await tool.open()
    try:
        await tool.run(["true"])
        return (time.perf_counter() - start) * 1000
    finally:
        await tool.close()


async def _one_by_one(tool: Tool) -> tuple[float, float]:
    """Return the median times of `true` in the tool and on the host.

    Both alternate, because the machine is noisy.
    """
    there: list[float] = []
    plain: list[float] = []
    until = time.perf_counter() + ENOUGH_S
    while len(there) < SAMPLES and time.perf_counter() < until:
        start = time.perf_counter()
        await tool.run(["true"])
        between = time.perf_counter()
        subprocess.run(["true"])  # noqa: ASYNC221 - nothing else may run at the same time
        there.append((between - start) * 1000)
        plain.append((time.perf_counter() - between) * 1000)
    return statistics.median(there), statistics.median(plain)


async def _at_once(tool: Tool) -> float:
    """Return commands per second, with AT_ONCE of them always running."""
    start = time.perf_counter()
    done = 0

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() - start < ENOUGH_S:
            await tool.beside(["true"])
            done += 1

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return done / (time.perf_counter() - start)


def _peak_mib(pid: int, *, reset: bool = False) -> float:
    if reset:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


async def _flood(tool: Tool) -> dict[str, object]:
    """Measure time and memory for large output. The time is missing if it never finished."""
    times, returned = [], 0
    before = _peak_mib(tool.pid, reset=True)
    for _ in range(FLOODS):
        start = time.perf_counter()
        try:
            returned = await asyncio.wait_for(tool.beside(FLOOD), FLOOD_PATIENCE_S)
        except TimeoutError:
            break
        times.append((time.perf_counter() - start) * 1000)
    grown = _peak_mib(tool.pid) - before
    median = statistics.median(times) if times else None
    return {"flood_ms": median, "flood_bytes": returned, "flood_mib": grown}


class _Watch:
    """Polls from outside for the processes of one nap, every 10 ms until none is left."""

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


async def _ending(tool: Tool) -> dict[str, object]:
    """Measure how long after the timeout all are dead, and count survivors.

    Survivors are the processes that still run GRACE_S after the answer.
    """
    late, left = [], 0
    for _ in range(LIMITED):
        await tool.open()
        try:
            ms, survivors = await _one_limit(tool)
        finally:
            await tool.close()
        left = max(left, survivors)
        late.append(ms)
    return {"late_ms": None if left else statistics.median(late), "survivors": left}


async def _one_limit(tool: Tool) -> tuple[float, int]:
    """Return milliseconds and survivors for one command that is stopped by its timeout."""
    await tool.run(["true"])
    nap = f"600.{uuid.uuid4().int % 10**9:09}"
    watch = _Watch(nap)
    start = time.perf_counter()
    try:
        await tool.limited(DAEMONS.format(nap=nap), LIMIT_S)
    finally:
        answered = time.perf_counter()
        watch.wait(GRACE_S)
    survivors = watch.pids()
    for pid in survivors:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, 9)
    if watch.most != FAMILY:
        raise RuntimeError(f"{watch.most} of {FAMILY} processes were there at the limit")
    # If all were gone when the answer came, use the answer's time: the watch only polls.
    over = answered if 0 < watch.gone_at <= answered + 0.02 else watch.gone_at
    return (over - start - LIMIT_S) * 1000, len(survivors)


def report(make: Callable[[], Tool]) -> None:
    """Measure, and print the results as one line of JSON."""

    async def all_of_it() -> dict[str, object]:
        return await measure(make())

    print("\n" + json.dumps(asyncio.run(all_of_it())))
