"""The cost of a sandbox: a command, bare or judged and recorded, many at once, large output,
killing a tree, idling; and of `kakoi.Sandbox`: opening, commands, files, copies, memory, import.

    python bench/sandbox.py [--image IMAGE] [--object] [--save]

Run with `make bench`. Docker is measured if an engine answers and the image exists. Every figure is
a ratio to a baseline that is measured by turns with it, and is printed as soon as it is there.
`--object`: only `kakoi.Sandbox`. `--save` adds the table to bench/results/.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from _results import ENOUGH_S, Compared, Table, by_turns, process_mib, save, tree_mib

from kakoi import Sandbox
from kakoi._support.asyncio import background
from kakoi.backends.adapter import SandboxAdapter
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.backends.host.adapter import HostAdapter
from kakoi.channel.api import Channel, Command
from kakoi.sync import Sandbox as BlockingSandbox

TIMES = 300
AT_ONCE = (1, 8, 32, 128)
BATCH = 1280
RATED = 32
ROUNDS, ROUND_S = 3, 1.0
OPENINGS = 15
IDLE_BOXES = 5
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


def plain(work: Callable[[], object], times: int = TIMES) -> float:
    """Return median milliseconds."""
    samples: list[float] = []
    until = time.perf_counter() + ENOUGH_S
    while len(samples) < times and not (samples and time.perf_counter() > until):
        start = time.perf_counter()
        work()
        samples.append((time.perf_counter() - start) * 1000)
    return statistics.median(samples)


async def awaited(work: Callable[[], Awaitable[object]], times: int = TIMES) -> float:
    samples: list[float] = []
    until = time.perf_counter() + ENOUGH_S
    while len(samples) < times and not (samples and time.perf_counter() > until):
        start = time.perf_counter()
        await work()
        samples.append((time.perf_counter() - start) * 1000)
    return statistics.median(samples)


def anew() -> Command:
    return Command(command=["true"])


async def commands(name: str, channel: Channel, rows: Table) -> None:
    """Measure commands over the bare channel: neither judged nor recorded."""
    for what, command in (("program", ["true"]), ("shell text", "true")):
        found = await by_turns(
            lambda c=command: channel.run(Command(command=c)),  # type: ignore[misc]
            lambda: subprocess.run(["true"]),
            TIMES,
        )
        rows.add(f"{name}: bare channel, {what}, p50", found.value, found.ratio("run"))


async def many(name: str, channel: Channel, rows: Table) -> None:
    for count in AT_ONCE:

        async def worker(times: int = BATCH // count) -> None:
            for _ in range(times):
                await channel.run(anew())

        await asyncio.gather(*(channel.run(anew()) for _ in range(count)))
        start = time.perf_counter()
        await asyncio.gather(*(worker() for _ in range(count)))
        rate = BATCH // count * count / (time.perf_counter() - start)
        rows.add(f"{name}: {count} at once", f"{rate:.0f} /s", "")


def peak_mib(*, reset: bool = False) -> float:
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) / 1024


async def flood(name: str, channel: Channel, rows: Table) -> None:
    command = f"head -c {FLOOD_BYTES} /dev/zero"
    bare = plain(lambda: drain(["head", "-c", str(FLOOD_BYTES), "/dev/zero"]), 3)
    before = peak_mib(reset=True)
    ours = await awaited(lambda: channel.run(Command(command=command)), 3)
    grown = peak_mib() - before
    rows.add(f"{name}: 1 GiB, 1 MiB kept", f"{ours:.0f} ms", f"{ours / bare:.2f} x a pipe")
    rows.add(f"{name}: our memory meanwhile", f"+{grown:.1f} MiB", "")


def drain(argv: list[str]) -> None:
    buffer = bytearray(256 * 1024)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        while os.readv(process.stdout.fileno(), [buffer]):
            pass


async def ending(name: str, channel: Channel, rows: Table) -> None:
    daemons = ["python3", "-c", DAEMONS]
    late = []
    for _ in range(5):
        start = time.perf_counter()
        result = await channel.run(Command(command=daemons, timeout_s=TIMEOUT_S))
        late.append((time.perf_counter() - start - TIMEOUT_S) * 1000)
        assert result.leftovers_ended == 20, result
    p50 = statistics.median(late)
    rows.add(f"{name}: limit to 20 daemons dead", f"{p50:.0f} ms", f"worst {max(late):.0f}")


async def idling(name: str, make: Callable[[], SandboxAdapter], rows: Table) -> None:
    before = tree_mib(os.getpid())
    sandboxes = [make() for _ in range(IDLE)]
    started = []
    try:
        for sandbox in sandboxes:
            start = time.perf_counter()
            await (await sandbox.channel()).run(anew())
            started.append((time.perf_counter() - start) * 1000)
        each = (tree_mib(os.getpid()) - before) / IDLE
        rows.add(f"{name}: start to first answer, p50", f"{statistics.median(started):.0f} ms", "")
        rows.add(f"{name}: memory on our side, each of {IDLE}", f"{each:.1f} MiB", "")
    finally:
        await asyncio.gather(*(sandbox.cleanup() for sandbox in sandboxes))


@contextlib.asynccontextmanager
async def opened(sandbox: SandboxAdapter) -> AsyncIterator[Channel]:
    try:
        yield await sandbox.channel()
    finally:
        await sandbox.cleanup()


def peers(container: str | None, rows: Table) -> None:
    base = plain(lambda: subprocess.run(["true"]))
    rows.add("subprocess.run(['true']), p50", f"{base:.2f} ms", "1.00 x run")
    bwrap = "bwrap --unshare-all --ro-bind / / --dev /dev --proc /proc true".split()
    each = plain(lambda: subprocess.run(bwrap), 60)
    rows.add("bwrap for each command", f"{each:.2f} ms", f"{each / base:.2f} x run")
    if container is not None:
        argv = ["docker", "exec", container, "true"]
        each = plain(lambda: subprocess.run(argv), 20)
        rows.add("docker exec for each command", f"{each:.2f} ms", f"{each / base:.2f} x run")


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


async def measure(image: str | None, workspace: str, rows: Table) -> None:
    makers: dict[str, Callable[[], SandboxAdapter]] = {
        "host": lambda: HostAdapter(workspace, warn_on_start=False),
        "bubblewrap": lambda: BubblewrapAdapter(workspace),
    }
    if image is None:
        peers(None, rows)
    else:
        settings = DockerSettings(image=image)
        makers["docker"] = lambda: DockerAdapter(settings, lifetime="sandbox")
        with plain_container(image) as container:
            peers(container, rows)
    for name, make in makers.items():
        sandbox = make()
        async with opened(sandbox) as channel:
            await commands(name, channel, rows)
            for part in (many, flood, ending):
                await part(name, channel, rows)
        await idling(name, make, rows)


def measure_all(image: str | None, rows: Table) -> None:
    with tempfile.TemporaryDirectory() as workspace:
        asyncio.run(measure(image, workspace, rows))


# --- The object ------------------------------------------------------------------------------


async def calls(name: str, box: Sandbox, rows: Table) -> None:
    """Measure commands that are judged, and recorded before they start and when they end."""
    for what, command, argv in (
        ("program", ["true"], ["true"]),
        ("shell text", "true", ["bash", "-c", "true"]),
    ):
        await box.run(command)
        found = await by_turns(
            lambda c=command: box.run(c),  # type: ignore[misc]
            lambda a=argv: subprocess.run(a),  # type: ignore[misc]
            TIMES,
        )
        title = f"{name}: Sandbox.run `true`, {what}, p50"
        rows.add(title, found.value, found.ratio(f"run({argv[0]})"), "<= 2.0 x")
    data = b"x" * 1024

    async def write_and_read() -> None:
        await box.files.write("small", data)
        await box.files.read("small")

    both = await awaited(write_and_read, 100)
    again = await awaited(lambda: box.run("true"), 100)
    rows.add(f"{name}: 1 KiB written and read", f"{both:.2f} ms", f"{both / again:.2f} x run(true)")


def blocking(name: str, audit: Path, rows: Table) -> None:
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
        rows.add(f"{name}: kakoi.sync adds", f"{more:.2f} ms", "")


async def transfers(name: str, box: Sandbox, container: str, folder: Path, rows: Table) -> None:
    """Copy 1 GiB into a container and back, beside `docker cp` with a plain one."""
    source = folder / "big"
    if not source.exists():
        with source.open("wb") as file:
            for _ in range(FLOOD_BYTES >> 20):
                file.write(os.urandom(1 << 20))
    there = f"{container}:/tmp/cp"
    up = await by_turns(
        lambda: box.files.upload(source, "big"),
        lambda: subprocess.run(["docker", "cp", str(source), there], check=True),
        3,
    )
    rows.add(f"{name}: upload of 1 GiB", up.value, up.ratio("docker cp"), "<= 1.5 x")
    down = await by_turns(
        lambda: box.files.download("big", folder / "back"),
        lambda: subprocess.run(["docker", "cp", there, str(folder / "cp")], check=True),
        3,
    )
    rows.add(f"{name}: download of 1 GiB", down.value, down.ratio("docker cp"), "<= 1.5 x")


async def at_once(name: str, box: Sandbox, rows: Table) -> None:
    """Measure the rate of commands with RATED of them always running, beside threads."""
    rates: tuple[list[float], list[float]] = ([], [])
    await asyncio.gather(*(box.run(["true"]) for _ in range(RATED)))
    for _ in range(ROUNDS):
        rates[0].append(await _rate(lambda: box.run(["true"])))
        with ThreadPoolExecutor(RATED) as pool:
            loop = asyncio.get_running_loop()
            rates[1].append(
                await _rate(lambda: loop.run_in_executor(pool, subprocess.run, ["true"]))  # noqa: B023
            )
    ours, theirs = map(statistics.median, rates)
    ratio = f"best {max(rates[0]):.0f} /s; threads with subprocess.run {theirs:.0f} /s"
    rows.add(f"{name}: Sandbox.run, {RATED} at once", f"{ours:.0f} /s", ratio, ">= 900 /s")


async def _rate(work: Callable[[], Awaitable[object]]) -> float:
    done, start = 0, time.perf_counter()

    async def worker() -> None:
        nonlocal done
        while time.perf_counter() - start < ROUND_S:
            await work()
            done += 1

    await asyncio.gather(*(worker() for _ in range(RATED)))
    return done / (time.perf_counter() - start)


async def openings(image: str | None, audit: Path, rows: Table) -> None:
    """Measure a new sandbox up to its first answer, beside the engine's own program."""
    bwrap = "bwrap --unshare-all --ro-bind / / --dev /dev --proc /proc true".split()
    found = await opening(lambda: Sandbox("bubblewrap", audit=audit), bwrap)
    what = "bubblewrap: new sandbox, first answer, p50"
    rows.add(what, found.value, found.ratio("bwrap"), "<= 50 ms")
    if image is None:
        return
    limits = "--memory 4g --memory-swap 4g --cpus 2 --pids-limit 512 --network none".split()
    label = f"kakoi.bench=opening-{os.getpid()}"
    docker = ["docker", "run", "--init", "--label", label, *limits, image, "true"]
    try:
        for disk, what in ((None, "no disk limit"), ("10GiB", "disk limit")):
            found = await opening(
                lambda d=disk: Sandbox("docker", image=image, audit=audit, disk=d),  # type: ignore[misc]
                docker,
            )
            title = f"docker: new sandbox, {what}, first answer, p50"
            rows.add(title, found.value, found.ratio("docker run"), "<= 1.25 x")
    finally:
        await asyncio.to_thread(remove_containers, label)


def remove_containers(label: str) -> None:
    listed = ["docker", "ps", "-aq", "--filter", f"label={label}"]
    left = subprocess.run(listed, capture_output=True, text=True).stdout.split()
    subprocess.run(["docker", "rm", "-f", *left], capture_output=True)


async def opening(make: Callable[[], Sandbox], peer: list[str]) -> Compared:
    """Return the times until a new sandbox has run its first command; closing is not measured."""
    samples: tuple[list[float], list[float]] = ([], [])
    until = time.perf_counter() + 3 * ENOUGH_S
    while len(samples[0]) < OPENINGS and not (len(samples[0]) > 2 and time.perf_counter() > until):
        start = time.perf_counter()
        box = make()
        await box.run(["true"])
        samples[0].append((time.perf_counter() - start) * 1000)
        await box.close()
        start = time.perf_counter()
        await asyncio.to_thread(subprocess.run, peer, check=True, capture_output=True)
        samples[1].append((time.perf_counter() - start) * 1000)
    return Compared(tuple(samples[0]), tuple(samples[1]))


async def memory(image: str | None, audit: Path, rows: Table) -> None:
    """Measure what each further idle sandbox costs on this machine."""
    makers: dict[str, Callable[[], Sandbox]] = {
        "bubblewrap": lambda: Sandbox("bubblewrap", audit=audit)
    }
    if image is not None:
        makers["docker"] = lambda: Sandbox("docker", image=image, audit=audit, disk=None)
    for name, make in makers.items():
        async with contextlib.AsyncExitStack() as stack:
            await (await stack.enter_async_context(make())).run("true")
            before = process_mib(os.getpid()), tree_mib(os.getpid())
            for _ in range(IDLE_BOXES):
                await (await stack.enter_async_context(make())).run("true")
            after = process_mib(os.getpid()), tree_mib(os.getpid())
        own, all_of_it = ((b - a) / IDLE_BOXES for a, b in zip(before, after, strict=True))
        what = f"{name}: each further idle sandbox, our side"
        ratio = f"of which this process {own:.1f} MiB"
        rows.add(what, f"{all_of_it:.1f} MiB", ratio, "<= 8 MiB")


async def forks(name: str, box: Sandbox, folder: Path, rows: Table) -> None:
    make = (
        "for d in $(seq 100); do mkdir d$d; for f in $(seq 100); do echo $f > d$d/f$f; done; done"
    )
    await box.run(["bash", "-c", make], check=True)
    folder.mkdir()  # noqa: ASYNC240 - nothing else runs meanwhile
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
    what = f"{name}: fork(8) of 10,000 files"
    rows.add(what, f"{took:.0f} ms", f"{took / base:.3f} x eight cp -a", "<= 0.2 x")


def importing(rows: Table) -> None:
    argv = [sys.executable, "-c"]
    ours, bare = [], []
    for _ in range(40):
        ours.append(plain(lambda: subprocess.run([*argv, "from kakoi import Sandbox"]), 1))
        bare.append(plain(lambda: subprocess.run([*argv, "pass"]), 1))
    p50, base = statistics.median(ours), statistics.median(bare)
    rows.add("from kakoi import Sandbox", f"{p50:.0f} ms", f"{p50 / base:.2f} x python -c pass")


async def measure_object(image: str | None, rows: Table) -> None:
    importing(rows)
    with tempfile.TemporaryDirectory() as folder:
        audit = Path(folder, "audit.jsonl")
        await openings(image, audit, rows)
        async with Sandbox("bubblewrap", audit=audit) as box:
            await calls("bubblewrap", box, rows)
            await at_once("bubblewrap", box, rows)
        if image is not None:
            async with Sandbox("docker", image=image, audit=audit) as box:
                await calls("docker", box, rows)
                await at_once("docker", box, rows)
        await memory(image, audit, rows)
        await asyncio.to_thread(blocking, "bubblewrap", audit, rows)
        async with Sandbox("bubblewrap", policy="open", audit=audit) as box:
            await forks("bubblewrap", box, Path(folder, "bubblewrap"), rows)
        if image is not None:
            await object_in_docker(image, Path(folder), audit, rows)


async def object_in_docker(image: str, folder: Path, audit: Path, rows: Table) -> None:
    """Measure forks and transfers, with the default limits and, as `docker cp`, without a disk."""
    limits: tuple[tuple[str, str | None], ...] = (("docker", "10GiB"), ("docker, no disk", None))
    with plain_container(image) as container:
        for name, disk in limits:
            async with Sandbox("docker", image=image, policy="open", audit=audit, disk=disk) as box:
                await forks(name, box, folder / f"forks of {name}", rows)
                await transfers(name, box, container, folder, rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", default="kakoi-test:python")
    parser.add_argument("--object", action="store_true")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    image = options.image if image_is_there(options.image) else None
    rows = Table()
    if image is None:
        rows.add("docker", "not measured", f"no engine answers that has the image {options.image}")
    asyncio.run(measure_object(image, rows))
    if not options.object:
        measure_all(image, rows)
    if options.save:
        save("sandbox", rows)


if __name__ == "__main__":
    main()
