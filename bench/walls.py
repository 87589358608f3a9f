"""What each wall costs: a command with it, as a ratio to the same command without it.

    python bench/walls.py [--save]

Both places are open at once and take turns, so that whatever else the machine does hits both. A
wall is one entry of `WALLS`: a name, and the two places. `--save` adds the table to bench/results/.
"""

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace

from _saving import save

from kakoi.policy.profiles import load_policy
from kakoi.runner.channel import open_channel
from kakoi.runner.commands import Channel, Command
from kakoi.runner.delivery import RunnerSettings, python_argv
from kakoi.sandbox.adapter import Limits, SandboxAdapter
from kakoi.sandbox.bubblewrap import BubblewrapAdapter
from kakoi.sandbox.bubblewrap_launch import Settings, build_launch, look_at_system
from kakoi.sandbox.host import HostAdapter
from kakoi.sandbox.workspace import look_at_workspace

TIMES = 150
STARTS = 6
Place = Callable[[str], contextlib.AbstractAsyncContextManager[Channel]]
# A short one; one that opens many files; one that starts many programs.
COMMANDS = {
    "true": Command(command=["true"]),
    "python3 -c 'import json'": Command(command=["python3", "-I", "-c", "import json"]),
    "sh: 20 programs": Command(command="for i in 1 2 3 4 5 6 7 8 9 10; do ls /usr | wc -l; done"),
}
# How often the longer ones are run, as a part of `TIMES`.
PART = 6


def listed() -> list[str]:
    return sorted(load_policy().runnable_programs() or ())


def adapter(make: Callable[[str], SandboxAdapter]) -> Place:
    @contextlib.asynccontextmanager
    async def opened(workspace: str) -> AsyncIterator[Channel]:
        sandbox = make(workspace)
        try:
            yield await sandbox.channel()
        finally:
            await sandbox.cleanup()

    return opened


@contextlib.asynccontextmanager
async def bubblewrap_without_landlock(workspace: str) -> AsyncIterator[Channel]:
    """As the adapter starts it, but for the walls."""
    system = look_at_system()
    assert system is not None
    settings = Settings(workspace=look_at_workspace(workspace))
    launch = build_launch(settings, system, python_argv(system.python))
    channel = await open_channel(launch, RunnerSettings())
    try:
        yield channel
    finally:
        await channel.close()


NO_LIMITS = Limits(memory_bytes=None, cpus=None, processes=None)
BUBBLEWRAP = adapter(lambda workspace: BubblewrapAdapter(workspace, limits=NO_LIMITS))
HOST = adapter(lambda workspace: HostAdapter(workspace, warn_on_start=False))
# Name → the place without the wall, and the one with it.
WALLS: dict[str, tuple[Place, Place]] = {
    "Landlock (bubblewrap)": (bubblewrap_without_landlock, BUBBLEWRAP),
    "Landlock and seccomp (host)": (
        HOST,
        adapter(lambda workspace: HostAdapter(workspace, confine=True)),
    ),
    "kernel allowlist (bubblewrap)": (
        BUBBLEWRAP,
        adapter(
            lambda workspace: BubblewrapAdapter(workspace, limits=NO_LIMITS, programs=listed())
        ),
    ),
}


async def timed(channel: Channel, command: Command) -> float:
    began = time.perf_counter()
    await channel.run(replace(command, id=os.urandom(8).hex()))
    return time.perf_counter() - began


async def cost(
    places: tuple[Place, Place], command: Command, workspace: str
) -> tuple[float, float]:
    """Median milliseconds without and with the wall."""
    samples: list[list[float]] = [[], []]
    async with places[0](workspace) as without, places[1](workspace) as walled:
        for _ in range(TIMES if command is COMMANDS["true"] else TIMES // PART):
            for kept, channel in zip(samples, (without, walled), strict=True):
                kept.append(await timed(channel, command))
    return statistics.median(samples[0]) * 1000, statistics.median(samples[1]) * 1000


async def start_cost(places: tuple[Place, Place], workspace: str) -> tuple[float, float]:
    """The same for opening a place and its first command."""
    samples: list[list[float]] = [[], []]
    for _ in range(STARTS):
        for kept, place in zip(samples, places, strict=True):
            began = time.perf_counter()
            async with place(workspace) as channel:
                await channel.run(Command(command=["true"]))
                kept.append(time.perf_counter() - began)
    return statistics.median(samples[0]) * 1000, statistics.median(samples[1]) * 1000


def plain_ms() -> float:
    samples = []
    for _ in range(TIMES):
        began = time.perf_counter()
        subprocess.run(["true"], check=True)
        samples.append((time.perf_counter() - began) * 1000)
    return statistics.median(samples)


async def measure(workspace: str) -> list[str]:
    base = plain_ms()
    lines = [f"{'wall':32} {'what':28} {'without':>9} {'with':>9} {'ratio':>6}  to subprocess.run"]
    for name, places in WALLS.items():
        found = {what: await cost(places, each, workspace) for what, each in COMMANDS.items()}
        found["open it, first command"] = await start_cost(places, workspace)
        for what, (without, walled) in found.items():
            times = f"{without:7.2f}ms {walled:7.2f}ms {walled / without:6.2f}"
            again = f"{walled / base:8.2f}" if what == "true" else ""
            lines.append(f"{name:32} {what:28} {times}  {again}".rstrip())
    return lines


def main() -> None:
    """Measure, print, and save if asked to."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="keep the table in bench/results/")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kakoi-bench-") as workspace:
        os.chmod(workspace, 0o755)  # noqa: S103 - commands are another user
        lines = asyncio.run(measure(workspace))
    table = "\n".join(lines)
    print(table)
    if arguments.save:
        save("walls", table)


if __name__ == "__main__":
    main()
