"""The cost of processes: starting one, piping through one, large output, killing a tree.

Run with `make bench`. Figures are ratios within one run; absolute times depend on the machine.
"""

import asyncio
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

from kakoi.errors import ExecutionTimeoutError
from kakoi.process import ProcessExecutor, SpawnOptions, run_filter

TIMES = 60
FLOOD_BYTES = 256 * 1024 * 1024
TIMEOUT_MS = 500
# Twenty daemons, each forked twice with its own session and an empty environment.
DAEMONS = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        os.execve("/bin/sleep", ["sleep", "600"], {})
time.sleep(600)
"""


def p50_ms(work: Callable[[], object], times: int = TIMES) -> float:
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        samples.append((time.perf_counter() - start) * 1000)
    return statistics.median(samples)


def show(title: str, rows: Iterable[tuple[str, float]]) -> None:
    print(f"\n{title}")
    base = 0.0
    for name, value_ms in rows:
        base = base or value_ms
        print(f"  {name:<52} {value_ms:8.2f} ms   {value_ms / base:6.2f} x")


def bare_spawn() -> None:
    null = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in range(3)]
    os.waitpid(os.posix_spawn("/bin/cat", ["cat"], {}, file_actions=null), 0)


def bench_start(loop: asyncio.AbstractEventLoop, executor: ProcessExecutor) -> None:
    keeperless = [sys.executable, "-I", "-S", "-c", "pass"]
    show(
        "start a program and wait for it",
        [
            ("subprocess.run(['true'])", p50_ms(lambda: subprocess.run(["true"]))),
            ("subprocess.run(python -I -S -c pass)", p50_ms(lambda: subprocess.run(keeperless))),
            ("spawn('true')", p50_ms(lambda: loop.run_until_complete(executor.spawn("true")))),
        ],
    )


def bench_filter() -> None:
    def through_run() -> None:
        subprocess.run(["/bin/cat"], input=b"hello", capture_output=True)

    def through_filter() -> None:
        run_filter(["/bin/cat"], b"hello", timeout_s=60, max_output_bytes=1024)

    show(
        "filter five bytes through cat",
        [
            ("os.posix_spawn, no pipes", p50_ms(bare_spawn, 300)),
            ("run_filter", p50_ms(through_filter, 300)),
            ("subprocess.run(capture_output=True)", p50_ms(through_run, 300)),
        ],
    )


def bench_flood(loop: asyncio.AbstractEventLoop, executor: ProcessExecutor) -> None:
    flood = ["-c", str(FLOOD_BYTES), "/dev/zero"]

    def bare_pipe() -> None:
        subprocess.run(["sh", "-c", f"head {' '.join(flood)} | cat > /dev/null"])

    def spawned() -> None:
        result = loop.run_until_complete(executor.spawn("head", flood))
        if result.stdout_bytes != FLOOD_BYTES:
            print(f"  lost bytes: {result.stdout_bytes}")

    spawned()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rows = [("head | cat > /dev/null", p50_ms(bare_pipe, 5)), ("spawn(head)", p50_ms(spawned, 5))]
    show(f"{FLOOD_BYTES >> 20} MiB of output, 1 MiB kept", rows)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    print(f"  {'growth of our peak memory over the first one':<52} {grown_kib:8d} KiB")


def bench_end(loop: asyncio.AbstractEventLoop, executor: ProcessExecutor) -> None:
    def time_out() -> None:
        options = SpawnOptions(timeout=TIMEOUT_MS)
        args = ["-I", "-S", "-c", DAEMONS]
        try:
            loop.run_until_complete(executor.spawn(sys.executable, args, options))
        except ExecutionTimeoutError:
            return
        print("  no timeout?")

    total = p50_ms(time_out, 10)
    print("\ntwenty daemons at their time limit")
    what = "call to all dead, less the limit (start-up included)"
    print(f"  {what:<52} {total - TIMEOUT_MS:8.2f} ms")


def main() -> None:
    executor = ProcessExecutor()
    loop = asyncio.new_event_loop()
    try:
        bench_start(loop, executor)
        bench_filter()
        bench_flood(loop, executor)
        bench_end(loop, executor)
    finally:
        loop.close()


if __name__ == "__main__":
    main()
