"""The cost of each wall: a command with it, as a ratio to the same command without it.

    python bench/walls.py [--save]

Both sandboxes are open at once and alternate with a bare `true`, so that noise affects all of them
equally. A wall is one entry of `WALLS`: a name, and the two sandboxes. `--save` adds the table to
bench/results/.
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

from _results import save

from kakoi.backends.adapter import Limits, SandboxAdapter
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.bubblewrap.arguments import BubblewrapSettings, build_launch, inspect_system
from kakoi.backends.host.adapter import HostAdapter
from kakoi.backends.workspace import identify_workspace
from kakoi.channel.api import Channel, Command
from kakoi.channel.delivery import RunnerSettings, python_argv
from kakoi.channel.runner_channel import open_channel
from kakoi.policy.profiles import load_policy
from kakoi.process.stream import Launch

TIMES = 150
STARTS = 6
OpenSandbox = Callable[[str], contextlib.AbstractAsyncContextManager[Channel]]
# A short command, one that opens many files, one that only makes system calls, and one that
# starts many programs.
COMMANDS = {
    "true": Command(command=["true"]),
    "python3 -c 'import json'": Command(command=["python3", "-I", "-c", "import json"]),
    "100,000 system calls": Command(
        command=["python3", "-I", "-S", "-c", "import os\nfor _ in range(100000): os.getppid()"]
    ),
    "sh: 20 programs": Command(command="for i in 1 2 3 4 5 6 7 8 9 10; do ls /usr | wc -l; done"),
}
# The longer commands run `TIMES` divided by this.
PART = 6


def listed() -> list[str]:
    return sorted(load_policy().runnable_programs() or ())


def adapter(make: Callable[[str], SandboxAdapter]) -> OpenSandbox:
    @contextlib.asynccontextmanager
    async def opened(workspace: str) -> AsyncIterator[Channel]:
        sandbox = make(workspace)
        try:
            yield await sandbox.channel()
        finally:
            await sandbox.cleanup()

    return opened


def bare_bubblewrap(*, seccomp: bool) -> OpenSandbox:
    """Start it as the adapter does, but without Landlock. Only `seccomp` keeps the filter."""

    @contextlib.asynccontextmanager
    async def opened(workspace: str) -> AsyncIterator[Channel]:
        system = inspect_system()
        assert system is not None
        settings = BubblewrapSettings(workspace=identify_workspace(workspace))
        launch = build_launch(settings, system, python_argv(system.python))
        channel = await open_channel(launch if seccomp else unfiltered(launch), RunnerSettings())
        try:
            yield channel
        finally:
            await channel.close()

    return opened


def unfiltered(launch: Launch) -> Launch:
    """Return the launch without `--seccomp` and without the filter program passed for it."""
    at = launch.argv.index("--seccomp")
    files = {name: data for name, data in launch.files.items() if name != launch.argv[at + 1]}
    return replace(launch, argv=[*launch.argv[:at], *launch.argv[at + 2 :]], files=files)


NO_LIMITS = Limits(memory_bytes=None, cpus=None, processes=None)
BUBBLEWRAP = adapter(lambda workspace: BubblewrapAdapter(workspace, limits=NO_LIMITS))
HOST = adapter(lambda workspace: HostAdapter(workspace, warn_on_start=False))
# Maps a name to the sandbox without the wall and the sandbox with it.
WALLS: dict[str, tuple[OpenSandbox, OpenSandbox]] = {
    "seccomp (bubblewrap)": (bare_bubblewrap(seccomp=False), bare_bubblewrap(seccomp=True)),
    "Landlock (bubblewrap)": (bare_bubblewrap(seccomp=True), BUBBLEWRAP),
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
    sandboxes: tuple[OpenSandbox, OpenSandbox], command: Command, workspace: str
) -> tuple[float, float, float]:
    """Return median milliseconds without the wall, with it, and of a bare `true` in between."""
    samples: list[list[float]] = [[], [], []]
    async with sandboxes[0](workspace) as without, sandboxes[1](workspace) as walled:
        for _ in range(TIMES if command is COMMANDS["true"] else TIMES // PART):
            for kept, channel in zip(samples, (without, walled), strict=False):
                kept.append(await timed(channel, command))
            samples[2].append(plain())
    without_ms, walled_ms, bare_ms = (statistics.median(each) * 1000 for each in samples)
    return without_ms, walled_ms, bare_ms


async def start_cost(
    sandboxes: tuple[OpenSandbox, OpenSandbox], workspace: str
) -> tuple[float, float]:
    """Return median milliseconds for opening each sandbox and running its first command."""
    samples: list[list[float]] = [[], []]
    for _ in range(STARTS):
        for kept, sandbox in zip(samples, sandboxes, strict=True):
            began = time.perf_counter()
            async with sandbox(workspace) as channel:
                await channel.run(Command(command=["true"]))
                kept.append(time.perf_counter() - began)
    return statistics.median(samples[0]) * 1000, statistics.median(samples[1]) * 1000


def plain() -> float:
    """Return the seconds of a bare `true`, measured between the others as the machine is noisy."""
    began = time.perf_counter()
    subprocess.run(["true"], check=True)
    return time.perf_counter() - began


async def measure(workspace: str) -> list[str]:
    lines = [f"{'wall':32} {'what':28} {'without':>9} {'with':>9} {'ratio':>6}  to subprocess.run"]
    for name, sandboxes in WALLS.items():
        for what, command in COMMANDS.items():
            without, walled, bare = await cost(sandboxes, command, workspace)
            again = f"{walled / bare:8.2f}" if what == "true" else ""
            lines.append(line(name, what, without, walled, again))
        lines.append(line(name, "open it, first command", *await start_cost(sandboxes, workspace)))
    return lines


def line(name: str, what: str, without: float, walled: float, again: str = "") -> str:
    times = f"{without:7.2f}ms {walled:7.2f}ms {walled / without:6.2f}"
    return f"{name:32} {what:28} {times}  {again}".rstrip()


def main() -> None:
    """Measure and print the table, and save it if `--save` is given."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--save", action="store_true", help="keep the table in bench/results/")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kakoi-bench-") as workspace:
        os.chmod(workspace, 0o755)  # noqa: S103 - commands run as another user
        lines = asyncio.run(measure(workspace))
    table = "\n".join(lines)
    print(table)
    if arguments.save:
        save("walls", table)


if __name__ == "__main__":
    main()
