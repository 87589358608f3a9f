"""What running in a sandbox costs: a command, many at once, a flood, the end of a tree, idling.

    python bench/sandbox.py [--image IMAGE] [--save]

Run with `make bench`; Docker is measured if an engine answers and the image is there. Everything
is a ratio to something plain in the same run. `--save` adds the table to bench/results/.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

from _saving import save

from kakoi.runner.commands import Channel, Command
from kakoi.sandbox.adapter import SandboxAdapter
from kakoi.sandbox.bubblewrap import BubblewrapAdapter
from kakoi.sandbox.docker import DockerAdapter
from kakoi.sandbox.docker_cli import DockerSettings
from kakoi.sandbox.host import HostAdapter

TIMES = 300
AT_ONCE = (1, 8, 32, 128)
BATCH = 1280
FLOOD_BYTES = 1 << 30
IDLE = 20
TIMEOUT_S = 0.5
# Twenty daemons: own sessions, forked twice, empty environments.
DAEMONS = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork(): os._exit(0)
        os.execve("/bin/sleep", ["sleep", "600"], {})
time.sleep(600)
"""
TRUE = Command(command=["true"])
Rows = list[tuple[str, str, str]]


def plain(work: Callable[[], object], times: int = TIMES) -> float:
    """Median milliseconds."""
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        samples.append((time.perf_counter() - start) * 1000)
    return statistics.median(samples)


async def awaited(work: Callable[[], Awaitable[object]], times: int = TIMES) -> float:
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        await work()
        samples.append((time.perf_counter() - start) * 1000)
    return statistics.median(samples)


def anew() -> Command:
    return Command(command=["true"])


async def commands(name: str, channel: Channel, rows: Rows) -> None:
    """One after the other, between measurements of the plain thing: the machine is noisy."""
    ours, bare, shells = [], [], []
    for _ in range(5):
        ours.append(await awaited(lambda: channel.run(anew()), TIMES // 5))
        shells.append(await awaited(lambda: channel.run(Command(command="true")), TIMES // 5))
        bare.append(plain(lambda: subprocess.run(["true"]), TIMES // 5))
    base = statistics.median(bare)
    for what, samples in (("program", ours), ("shell text", shells)):
        p50 = statistics.median(samples)
        rows.append((f"{name}: `true`, {what}, p50", f"{p50:.2f} ms", f"{p50 / base:.2f} x run"))


async def many(name: str, channel: Channel, rows: Rows) -> None:
    for count in AT_ONCE:

        async def worker(times: int = BATCH // count) -> None:
            for _ in range(times):
                await channel.run(anew())

        await asyncio.gather(*(channel.run(anew()) for _ in range(count)))
        start = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(count)))
        rate = BATCH // count * count / (time.perf_counter() - start)
        rows.append((f"{name}: {count} at once", f"{rate:.0f} /s", ""))


def peak_mib(*, reset: bool = False) -> float:
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


async def flood(name: str, channel: Channel, rows: Rows) -> None:
    command = f"head -c {FLOOD_BYTES} /dev/zero"
    bare = plain(lambda: drain(["head", "-c", str(FLOOD_BYTES), "/dev/zero"]), 3)
    before = peak_mib(reset=True)
    ours = await awaited(lambda: channel.run(Command(command=command)), 3)
    grown = peak_mib() - before
    rows.append((f"{name}: 1 GiB, 1 MiB kept", f"{ours:.0f} ms", f"{ours / bare:.2f} x a pipe"))
    rows.append((f"{name}: our memory meanwhile", f"+{grown:.1f} MiB", ""))


def drain(argv: list[str]) -> None:
    buffer = bytearray(256 * 1024)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        while os.readv(process.stdout.fileno(), [buffer]):
            pass


async def ending(name: str, channel: Channel, rows: Rows) -> None:
    daemons = ["python3", "-c", DAEMONS]
    late = []
    for _ in range(5):
        start = time.perf_counter()
        result = await channel.run(Command(command=daemons, timeout_s=TIMEOUT_S))
        late.append((time.perf_counter() - start - TIMEOUT_S) * 1000)
        assert result.leftovers_ended == 20, result
    p50 = statistics.median(late)
    rows.append((f"{name}: limit to 20 daemons dead", f"{p50:.0f} ms", f"worst {max(late):.0f}"))


def tree_mib(root: int) -> float:
    """Memory of a process and all below it, shared pages counted once."""
    total, todo = 0.0, [root]
    while todo:
        pid = todo.pop()
        with contextlib.suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(rollup.split("Pss:")[1].split()[0]) / 1024
            for task in Path(f"/proc/{pid}/task").iterdir():
                todo += map(int, (task / "children").read_text().split())
    return total


async def idling(name: str, make: Callable[[], SandboxAdapter], rows: Rows) -> None:
    before = tree_mib(os.getpid())
    sandboxes = [make() for _ in range(IDLE)]
    started = []
    try:
        for sandbox in sandboxes:
            start = time.perf_counter()
            await (await sandbox.channel()).run(anew())
            started.append((time.perf_counter() - start) * 1000)
        each = (tree_mib(os.getpid()) - before) / IDLE
        rows.append(
            (f"{name}: start to first answer, p50", f"{statistics.median(started):.0f} ms", "")
        )
        rows.append((f"{name}: memory on our side, each of {IDLE}", f"{each:.1f} MiB", ""))
    finally:
        await asyncio.gather(*(sandbox.cleanup() for sandbox in sandboxes))


@contextlib.asynccontextmanager
async def opened(sandbox: SandboxAdapter) -> AsyncIterator[Channel]:
    try:
        yield await sandbox.channel()
    finally:
        await sandbox.cleanup()


def peers(image: str | None, container: str | None) -> Rows:
    rows: Rows = []
    base = plain(lambda: subprocess.run(["true"]))
    rows.append(("subprocess.run(['true']), p50", f"{base:.2f} ms", "1.00 x run"))
    bwrap = "bwrap --unshare-all --ro-bind / / --dev /dev --proc /proc true".split()
    each = plain(lambda: subprocess.run(bwrap), 60)
    rows.append(("bwrap for each command", f"{each:.2f} ms", f"{each / base:.2f} x run"))
    if container is not None:
        argv = ["docker", "exec", container, "true"]
        each = plain(lambda: subprocess.run(argv), 20)
        rows.append(("docker exec for each command", f"{each:.2f} ms", f"{each / base:.2f} x run"))
    return rows


def image_is_there(image: str) -> bool:
    with contextlib.suppress(OSError):
        asked = ["docker", "image", "inspect", image]
        return subprocess.run(asked, capture_output=True).returncode == 0
    return False


@contextlib.contextmanager
def plain_container(image: str) -> Iterator[str]:
    argv = "docker run -d --rm --init --label kakoi.owner=bench".split()
    name = subprocess.check_output([*argv, image, "sleep", "900"], text=True).strip()
    try:
        yield name
    finally:
        subprocess.run(["docker", "rm", "-f", name], capture_output=True)


async def measure(image: str | None, workspace: str) -> Rows:
    makers: dict[str, Callable[[], SandboxAdapter]] = {
        "host": lambda: HostAdapter(workspace, warn_on_start=False),
        "bubblewrap": lambda: BubblewrapAdapter(workspace),
    }
    rows: Rows = []
    if image is None:
        rows += peers(None, None)
    else:
        settings = DockerSettings(image=image)
        makers["docker"] = lambda: DockerAdapter(settings, lifetime="sandbox")
        with plain_container(image) as container:
            rows += peers(image, container)
    for name, make in makers.items():
        async with opened(make()) as channel:
            for part in (commands, many, flood, ending):
                await part(name, channel, rows)
        await idling(name, make, rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", default="kakoi-test:python")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    image = options.image if image_is_there(options.image) else None
    if image is None:
        print(f"no image {options.image}: Docker is left out", file=sys.stderr)
    with tempfile.TemporaryDirectory() as workspace:
        rows = asyncio.run(measure(image, workspace))
    table = "\n".join(f"{what:<50} {value:>12}   {ratio}" for what, value, ratio in rows)
    print(table)
    if options.save:
        save("sandbox", table)


if __name__ == "__main__":
    main()
