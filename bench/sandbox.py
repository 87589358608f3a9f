"""The cost of a sandbox: a command, bare or judged and recorded, many at once, large output,
killing a tree, idling; and of `kakoi.Sandbox`: commands, files, copies, the import.

    python bench/sandbox.py [--image IMAGE] [--object] [--save]

Run with `make bench`. Docker is measured if an engine answers and the image exists. Every figure is
a ratio to a baseline in the same run. `--object`: only `kakoi.Sandbox`. `--save` adds the table to
bench/results/.
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
from datetime import UTC, datetime
from pathlib import Path

from _results import save

from kakoi import Sandbox
from kakoi._support.asyncio import background
from kakoi.audit import AuditLog
from kakoi.backends.adapter import SandboxAdapter
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.host.adapter import HostAdapter
from kakoi.channel.api import Channel, Command
from kakoi.gate import Gate
from kakoi.policy.profiles import load_policy
from kakoi.sync import Sandbox as BlockingSandbox

TIMES = 300
AT_ONCE = (1, 8, 32, 128)
BATCH = 1280
FLOOD_BYTES = 1 << 30
IDLE = 20
TIMEOUT_S = 0.5
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
TRUE = Command(command=["true"])
Rows = list[tuple[str, str, str]]


def plain(work: Callable[[], object], times: int = TIMES) -> float:
    """Return median milliseconds."""
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
    """Measure commands one by one, alternating with the baseline, because the machine is noisy."""
    ours, bare, shells = [], [], []
    for _ in range(5):
        ours.append(await awaited(lambda: channel.run(anew()), TIMES // 5))
        shells.append(await awaited(lambda: channel.run(Command(command="true")), TIMES // 5))
        bare.append(plain(lambda: subprocess.run(["true"]), TIMES // 5))
    base = statistics.median(bare)
    for what, samples in (("program", ours), ("shell text", shells)):
        p50 = statistics.median(samples)
        rows.append((f"{name}: `true`, {what}, p50", f"{p50:.2f} ms", f"{p50 / base:.2f} x run"))


async def beside(gate: Gate, command: str | list[str], argv: list[str]) -> tuple[float, float]:
    """Return the medians of a command and of its baseline, run by turns on the noisy machine."""
    ours, bare = [], []
    for _ in range(TIMES):
        ours.append(await awaited(lambda: gate.run(Command(command=command)), 1))
        bare.append(plain(lambda: subprocess.run(argv), 1))
    return statistics.median(ours), statistics.median(bare)


async def judged(name: str, sandbox: SandboxAdapter, rows: Rows) -> None:
    """Measure commands through a gate: judged, recorded before they start and when they end."""
    with tempfile.TemporaryDirectory() as folder:
        audit = AuditLog(Path(folder, "audit.jsonl"), clock=lambda: datetime.now(UTC))
        gate = Gate(load_policy("coding-agent"), sandbox, audit=audit)
        for what, argv in (("program", ["true"]), ("shell text", ["bash", "-c", "true"])):
            p50, base = await beside(gate, argv if what == "program" else argv[-1], argv)
            row = f"{name}: `true`, {what}, judged, p50"
            rows.append((row, f"{p50:.2f} ms", f"{p50 / base:.2f} x run({argv[0]})"))
        start = time.perf_counter()
        await asyncio.gather(*(gate.run(anew()) for _ in range(BATCH)))
        rate = BATCH / (time.perf_counter() - start)
        rows.append((f"{name}: {BATCH} judged at once, 16 run", f"{rate:.0f} /s", ""))


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
    """Return the memory of a process and its descendants, counting shared pages once."""
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
        sandbox = make()
        async with opened(sandbox) as channel:
            await commands(name, channel, rows)
            await judged(name, sandbox, rows)
            for part in (many, flood, ending):
                await part(name, channel, rows)
        await idling(name, make, rows)
    return rows


def measure_all(image: str | None) -> Rows:
    with tempfile.TemporaryDirectory() as workspace:
        return asyncio.run(measure(image, workspace))


# --- The object ------------------------------------------------------------------------------


async def by_turns(
    ours: Callable[[], Awaitable[object]], theirs: Callable[[], object], times: int
) -> tuple[float, float]:
    """Return the medians of both, measured by turns."""
    first, second = [], []
    for _ in range(times):
        first.append(await awaited(ours, 1))
        second.append(await asyncio.to_thread(plain, theirs, 1))
    return statistics.median(first), statistics.median(second)


async def calls(name: str, box: Sandbox, rows: Rows) -> None:
    await box.run(["true"])
    run, bare = await by_turns(lambda: box.run(["true"]), lambda: subprocess.run(["true"]), TIMES)
    rows.append((f"{name}: Sandbox.run `true`, p50", f"{run:.2f} ms", f"{run / bare:.2f} x run"))
    text, shell = await by_turns(
        lambda: box.run("true"), lambda: subprocess.run(["bash", "-c", "true"]), TIMES
    )
    rows.append(
        (f"{name}: Sandbox.run, shell text, p50", f"{text:.2f} ms", f"{text / shell:.2f} x bash")
    )
    data = b"x" * 1024

    async def write_and_read() -> None:
        await box.files.write("small", data)
        await box.files.read("small")

    both = await awaited(write_and_read, 100)
    again = await awaited(lambda: box.run("true"), 100)
    rows.append(
        (f"{name}: 1 KiB written and read", f"{both:.2f} ms", f"{both / again:.2f} x run(true)")
    )


def blocking(name: str, audit: Path, rows: Rows) -> None:
    """Compare a blocking call with the same one awaited in its loop."""
    with BlockingSandbox(name, audit=audit) as box:
        box.run(["true"])

        async def inside() -> float:
            return await awaited(lambda: box._box.run(["true"]), 20)

        around, within = [], []
        for _ in range(10):
            around.append(plain(lambda: box.run(["true"]), 20))
            within.append(background().run(inside()))
        more = statistics.median(around) - statistics.median(within)
        rows.append((f"{name}: kakoi.sync adds", f"{more:.2f} ms", ""))


async def transfers(box: Sandbox, container: str, folder: Path, rows: Rows) -> None:
    """Copy 1 GiB into a container and back, beside `docker cp` with a plain one."""
    source = folder / "big"
    with source.open("wb") as file:
        for _ in range(FLOOD_BYTES >> 20):
            file.write(os.urandom(1 << 20))
    there = f"{container}:/tmp/cp"
    up, cp_up = await by_turns(
        lambda: box.files.upload(source, "big"),
        lambda: subprocess.run(["docker", "cp", str(source), there], check=True),
        3,
    )
    rows.append(("docker: upload of 1 GiB", f"{up:.0f} ms", f"{up / cp_up:.2f} x docker cp"))
    down, cp_down = await by_turns(
        lambda: box.files.download("big", folder / "back"),
        lambda: subprocess.run(["docker", "cp", there, str(folder / "cp")], check=True),
        3,
    )
    rows.append(
        ("docker: download of 1 GiB", f"{down:.0f} ms", f"{down / cp_down:.2f} x docker cp")
    )


async def forks(box: Sandbox, folder: Path, rows: Rows) -> None:
    make = (
        "for d in $(seq 100); do mkdir d$d; for f in $(seq 100); do echo $f > d$d/f$f; done; done"
    )
    await box.run(["bash", "-c", make], check=True)
    await box.files.download(".", folder / "tree")

    def copy() -> None:
        for number in range(8):
            argv = ["cp", "-a", str(folder / "tree"), str(folder / f"copy{number}")]
            subprocess.run(argv, check=True)

    start = time.perf_counter()
    forked = await box.fork(8)
    took = (time.perf_counter() - start) * 1000
    base = plain(copy, 1)
    for each in forked:
        await each.close()
    rows.append(("fork(8) of 10,000 files", f"{took:.0f} ms", f"{took / base:.3f} x eight cp -a"))


def importing(rows: Rows) -> None:
    argv = [sys.executable, "-c"]
    ours, bare = [], []
    for _ in range(40):
        ours.append(plain(lambda: subprocess.run([*argv, "from kakoi import Sandbox"]), 1))
        bare.append(plain(lambda: subprocess.run([*argv, "pass"]), 1))
    p50, base = statistics.median(ours), statistics.median(bare)
    rows.append(
        ("from kakoi import Sandbox", f"{p50:.0f} ms", f"{p50 / base:.2f} x python -c pass")
    )


async def measure_object(image: str | None) -> Rows:
    rows: Rows = []
    importing(rows)
    with tempfile.TemporaryDirectory() as folder:
        audit = Path(folder, "audit.jsonl")
        async with Sandbox("bubblewrap", policy="open", audit=audit) as box:
            await forks(box, Path(folder), rows)
        async with Sandbox("bubblewrap", audit=audit) as box:
            await calls("bubblewrap", box, rows)
        await asyncio.to_thread(blocking, "bubblewrap", audit, rows)
        if image is not None:
            async with Sandbox("docker", image=image, audit=audit) as box:
                await calls("docker", box, rows)
            # Without limits, as the container beside it.
            async with Sandbox("docker", image=image, audit=audit, memory=None, disk=None) as box:
                with plain_container(image) as container:
                    await transfers(box, container, Path(folder), rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", default="kakoi-test:python")
    parser.add_argument("--object", action="store_true")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    image = options.image if image_is_there(options.image) else None
    if image is None:
        print(f"no image {options.image}: Docker is left out", file=sys.stderr)
    rows = [] if options.object else measure_all(image)
    rows += asyncio.run(measure_object(image))
    table = "\n".join(f"{what:<50} {value:>12}   {ratio}" for what, value, ratio in rows)
    print(table)
    if options.save:
        save("sandbox", table)


if __name__ == "__main__":
    main()
