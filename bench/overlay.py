"""The cost of copy-on-write: checkpoints, rollbacks and forks of a big tree, and commands in it.

    python bench/overlay.py [--save]

Run with `make bench`. Every figure is a ratio to a baseline in the same run: `cp -a` of the same
tree, or the same command in the same sandbox without an overlay. `--save` adds the table to
bench/results/.
"""

import argparse
import asyncio
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from _results import save

from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.overlay import Overlay

FOLDERS, FILES = 100, 100
TIMES = 5
COMMANDS = 40
FORKS = 8
CHECKPOINTS = 50
EDIT = "for d in d1 d2 d3; do for f in $d/*; do echo more >> $f; done; done; rm -r d4; touch new"
# Builds and searches mostly read and write many small files.
WORK = {
    "true": "true",
    "read 1,000 files": "cat d[1][0-9]/* > /dev/null",
    "write 100 files": "for n in $(seq 100); do echo $n > made$n; done; rm made*",
}
Rows = list[tuple[str, str, str]]


def fill(project: Path) -> None:
    for folder in range(FOLDERS):
        (project / f"d{folder}").mkdir(parents=True)
        for number in range(FILES):
            (project / f"d{folder}" / f"f{number}").write_text("x" * 2048)


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return (time.perf_counter() - start) * 1000


def copying(project: Path, beside: Path) -> float:
    samples = []
    for number in range(3):
        argv = ["cp", "-a", str(project), str(beside / f"copy{number}")]
        samples.append(milliseconds(partial(subprocess.run, argv, check=True)))
    for number in range(3):
        shutil.rmtree(beside / f"copy{number}")
    return statistics.median(samples)


async def in_sandbox(adapter: BubblewrapAdapter, command: str) -> None:
    try:
        await adapter.execute(command)
    finally:
        await adapter.cleanup()


def checkpoints(project: Path, overlay: Overlay, copy_ms: float, rows: Rows) -> None:
    made, back, seen = [], [], []
    for number in range(TIMES):
        made.append(milliseconds(partial(overlay.checkpoint, f"c{number}")))
        asyncio.run(in_sandbox(BubblewrapAdapter(project, overlay=overlay), EDIT))
        seen.append(milliseconds(overlay.changes))
        back.append(milliseconds(partial(overlay.rollback, f"c{number}")))
    for what, samples in (
        ("checkpoint", made),
        ("rollback, 401 paths changed", back),
        ("changes, 401 paths", seen),
    ):
        p50 = statistics.median(samples)
        rows.append((what, f"{p50:.1f} ms", f"1/{copy_ms / p50:.0f} of cp -a"))


async def median(run: Callable[[], Awaitable[object]], times: int) -> float:
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        await run()
        samples.append((time.perf_counter() - start) * 1000)
    return statistics.median(samples)


async def commands(project: Path, overlay: Overlay, rows: Rows) -> None:
    plain, copied = BubblewrapAdapter(project), BubblewrapAdapter(project, overlay=overlay)
    try:
        for adapter in (plain, copied):
            await adapter.execute("true")
        for what, text in WORK.items():
            times: dict[bool, list[float]] = {True: [], False: []}
            # Alternating, because the machine is noisy.
            for _ in range(5):
                for is_copy, adapter in ((False, plain), (True, copied)):
                    run = partial(adapter.execute, text)
                    times[is_copy].append(await median(run, COMMANDS // 5))
            ours, bare = (statistics.median(times[is_copy]) for is_copy in (True, False))
            rows.append(
                (f"{what}, in an overlay", f"{ours:.2f} ms", f"{ours / bare:.2f} x without")
            )
    finally:
        await plain.cleanup()
        await copied.cleanup()


async def starting(project: Path, overlay: Overlay, rows: Rows) -> None:
    async def start(*, copy: bool) -> None:
        adapter = BubblewrapAdapter(project, overlay=overlay if copy else None)
        await in_sandbox(adapter, "true")

    bare = await median(lambda: start(copy=False), 7)
    ours = await median(lambda: start(copy=True), 7)
    rows.append(("start, run and end a sandbox", f"{ours:.0f} ms", f"{ours / bare:.2f} x without"))


def copying_eight(project: Path, beside: Path) -> float:
    """Milliseconds for as many copies of the project as `fork(8)` makes."""
    copies = [beside / f"copy{number}" for number in range(FORKS)]
    spent = 0.0
    for copy in copies:
        argv = ["cp", "-a", str(project), str(copy)]
        spent += milliseconds(partial(subprocess.run, argv, check=True))
    for copy in copies:
        shutil.rmtree(copy)
    return spent


async def forks(project: Path, overlay: Overlay, copies_ms: float, rows: Rows) -> None:
    """Fork a sandbox that has changed every tenth file, and run the first command of each fork."""
    origin = BubblewrapAdapter(project, overlay=overlay)
    made, used = [], []
    try:
        for _ in range(3):
            await origin.execute("for f in d*/f1*; do echo more >> $f; done")
            start = time.perf_counter()
            boxes = await origin.fork(FORKS)
            made.append((time.perf_counter() - start) * 1000)
            await asyncio.gather(*(box.execute("true") for box in boxes))
            used.append((time.perf_counter() - start) * 1000)
            for box in boxes:
                await box.cleanup()
    finally:
        await origin.cleanup()
    for what, samples in (
        (f"fork({FORKS})", made),
        (f"fork({FORKS}), and a command in each", used),
    ):
        p50 = statistics.median(samples)
        rows.append((what, f"{p50:.0f} ms", f"{p50 / copies_ms:.3f} x {FORKS} cp -a"))


async def search(project: Path, overlay: Overlay, rows: Rows) -> None:
    """Take a step, save it, take the next one: each checkpoint ends the sandbox."""
    box = BubblewrapAdapter(project, overlay=overlay)
    samples, alone = [], []
    try:
        await box.execute("true")
        for number in range(CHECKPOINTS):
            start = time.perf_counter()
            await box.checkpoint(f"c{number}")
            alone.append((time.perf_counter() - start) * 1000)
            await box.execute(f"echo {number} > d1/f1")
            samples.append((time.perf_counter() - start) * 1000)
        back = time.perf_counter()
        await box.rollback("c1")
        await box.execute("cat d1/f1")
        back_ms = (time.perf_counter() - back) * 1000
    finally:
        await box.cleanup()
    rows.append(("checkpoint of an open sandbox", f"{statistics.median(alone):.0f} ms", ""))
    last = statistics.median(samples[-5:]) / statistics.median(samples[:5])
    ratio = f"the last of {CHECKPOINTS}: {last:.2f} x the first"
    rows.append(("checkpoint and the next command", f"{statistics.median(samples):.0f} ms", ratio))
    rows.append(("rollback and the next command", f"{back_ms:.0f} ms", ""))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    rows: Rows = []
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        fill(project)
        overlay = Overlay(project, Path(folder, "overlays"))
        copy_ms = copying(project, Path(folder))
        rows.append((f"cp -a of {FOLDERS * FILES} files", f"{copy_ms:.0f} ms", ""))
        checkpoints(project, overlay, copy_ms, rows)
        overlay.discard()
        asyncio.run(commands(project, overlay, rows))
        asyncio.run(starting(project, overlay, rows))
        asyncio.run(search(project, overlay, rows))
        overlay.discard()
        copies_ms = copying_eight(project, Path(folder))
        rows.append((f"{FORKS} cp -a", f"{copies_ms:.0f} ms", ""))
        asyncio.run(forks(project, overlay, copies_ms, rows))
    table = "\n".join(f"{what:<50} {value:>12}   {ratio}".rstrip() for what, value, ratio in rows)
    print(table)
    if options.save:
        save("overlay", table)


if __name__ == "__main__":
    main()
