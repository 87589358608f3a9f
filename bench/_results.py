"""Tables of figures: printed row by row, compared by turns, and saved in bench/results/."""

import os
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

# A machine that others use must not make a benchmark run for ever.
ENOUGH_S = 8.0
_LEAST_SAMPLES = 1


class Table:
    """Rows of figures. Each is printed at once, so that a run that is ended early shows some."""

    def __init__(self, width: int = 50) -> None:
        self._width = width
        self._lines: list[str] = []

    def add(self, what: str, value: str, ratio: str = "", bar: str = "") -> None:
        """Add a row. `bar`: what the figure must not exceed, such as `<= 2.0 x`."""
        line = f"{what:<{self._width}} {value:>12}   {ratio}"
        self._lines.append(f"{line:<{self._width + 50}} {bar}".rstrip())
        print(self._lines[-1], flush=True)

    def __str__(self) -> str:
        return "\n".join(self._lines)


@dataclass(frozen=True)
class Compared:
    """Two things that were measured by turns, in milliseconds."""

    ours: tuple[float, ...]
    theirs: tuple[float, ...]

    @property
    def p50(self) -> float:
        """The median of ours."""
        return statistics.median(self.ours)

    @property
    def value(self) -> str:
        """The median of ours, for a table."""
        return f"{self.p50:.2f} ms" if self.p50 < 10 else f"{self.p50:.0f} ms"

    def ratio(self, of: str) -> str:
        """The ratio of the medians and, as others disturb most samples, of the fastest tenths."""
        fast = _tenth(self.ours) / _tenth(self.theirs)
        return f"{self.p50 / statistics.median(self.theirs):.2f} x {of} (fastest tenth {fast:.2f})"


def _tenth(samples: tuple[float, ...]) -> float:
    return sorted(samples)[len(samples) // 10]


async def by_turns(
    ours: Callable[[], Awaitable[object]],
    theirs: Callable[[], Awaitable[object] | object],
    times: int,
    enough_s: float = ENOUGH_S,
) -> Compared:
    """Measure both by turns, because machines are noisy; at most about `enough_s` seconds."""
    samples: tuple[list[float], list[float]] = ([], [])
    until = time.perf_counter() + enough_s
    while len(samples[1]) < times:
        if len(samples[1]) >= _LEAST_SAMPLES and time.perf_counter() > until:
            break
        for work, taken in zip((ours, theirs), samples, strict=True):
            start = time.perf_counter()
            done = work()
            if isinstance(done, Awaitable):
                await done
            taken.append((time.perf_counter() - start) * 1000)
    return Compared(tuple(samples[0]), tuple(samples[1]))


def tree_mib(root: int) -> float:
    """Return the memory of a process and its descendants, counting shared pages once."""
    total, todo = 0.0, [root]
    while todo:
        pid = todo.pop()
        try:
            total += process_mib(pid)
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
        except OSError:  # It has ended.
            continue
    return total


def process_mib(pid: int) -> float:
    """Return the memory of one process; pages that it shares are divided."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.split("Pss:")[1].split()[0]) / 1024


def save(name: str, table: object) -> None:
    """Save the table as today's results of the benchmark `name`."""
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    kernel = platform.release().partition("-")[0]
    machine = f"Linux {kernel}, {os.cpu_count()} cores, Python {platform.python_version()}"
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    load = f"load {os.getloadavg()[0]:.1f} at the end"
    head = f"{today}, {machine}, root: {os.getuid() == 0}, {load}"
    (folder / f"{today}-{name}.txt").write_text(f"{head}\n\n{table}\n", "utf-8")
