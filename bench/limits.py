"""The cost of resource limits: a command in a sandbox with each limit, and without any.

    python bench/limits.py [--image IMAGE] [--save]

Run with `make bench`. All sandboxes are open at the same time and take turns, so that noise affects
all of them equally. Docker's start is measured if the image exists. `--save` adds the table to
bench/results/.
"""

import argparse
import asyncio
import contextlib
import statistics
import subprocess
import tempfile
import time

from _results import save

from kakoi.backends.adapter import Limits
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings
from kakoi.channel.api import Command

ROUNDS, TIMES, STARTS = 10, 40, 5
NONE = Limits(
    memory_bytes=None, cpus=None, processes=None, open_files=None, file_bytes=None, disk_bytes=None
)
KINDS = {
    "no limit": NONE,
    "rlimits": Limits(memory_bytes=None, cpus=None, processes=None, disk_bytes=None),
    "a control group": Limits(open_files=None, file_bytes=None, disk_bytes=None),
    "all of them": Limits(),
}
Rows = list[tuple[str, str, str]]


async def each_command(workspace: str) -> Rows:
    """Return median milliseconds of `true` in bubblewrap sandboxes."""
    samples: dict[str, list[float]] = {name: [] for name in KINDS}
    async with contextlib.AsyncExitStack() as stack:
        channels = {}
        for name, limits in KINDS.items():
            sandbox = BubblewrapAdapter(workspace, limits=limits)
            stack.push_async_callback(sandbox.cleanup)
            channels[name] = await sandbox.channel()
        for _ in range(ROUNDS):
            for name, channel in channels.items():
                for _ in range(TIMES):
                    start = time.perf_counter()
                    await channel.run(Command(command=["true"]))
                    samples[name].append((time.perf_counter() - start) * 1000)
    return _rows("bubblewrap, `true`", samples)


async def each_start(image: str) -> Rows:
    """Return median milliseconds until a container has run its first command."""
    kinds = {"no limit of the disk": Limits(disk_bytes=None), "a disk of its own": Limits()}
    samples: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(STARTS):
        for name, limits in kinds.items():
            settings = DockerSettings(image=image, limits=limits)
            sandbox = DockerAdapter(settings, lifetime="sandbox")
            start = time.perf_counter()
            try:
                await sandbox.run(Command(command=["true"]))
                samples[name].append((time.perf_counter() - start) * 1000)
            finally:
                await sandbox.cleanup()
    return _rows("docker, start", samples)


def _rows(what: str, samples: dict[str, list[float]]) -> Rows:
    medians = {name: statistics.median(each) for name, each in samples.items()}
    first, base = next(iter(medians.items()))
    return [
        (f"{what}: {name}", f"{median:.2f} ms", f"{median / base:.2f} x {first}")
        for name, median in medians.items()
    ]


async def measure(image: str | None, workspace: str) -> Rows:
    rows = await each_command(workspace)
    return rows + (await each_start(image) if image else [])


def image_is_there(image: str) -> bool:
    with contextlib.suppress(OSError):
        asked = ["docker", "image", "inspect", image]
        return subprocess.run(asked, capture_output=True).returncode == 0
    return False


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", default="kakoi-test:python")
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    image = options.image if image_is_there(options.image) else None
    with tempfile.TemporaryDirectory() as workspace:
        rows = asyncio.run(measure(image, workspace))
    table = "\n".join(f"{what:<50} {value:>12}   {ratio}" for what, value, ratio in rows)
    print(table)
    if options.save:
        save("limits", table)


if __name__ == "__main__":
    main()
