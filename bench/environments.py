"""The cost of task environments: cold and pooled preparation, use, many at once, cleanup.

    python bench/environments.py [--image IMAGE] [--at-once N...] [--save]

Needs a Docker engine and an image with git. Every figure is a ratio to bare `docker` and `git`,
measured by turns: `docker run` plus `git clone` over HTTP from a server in another container. Many
at once have a second ratio: the cost per environment, compared to that of the smallest number. It
stays at 1.0 while the total cost grows linearly. Each row is printed as soon as it is there.
`--save` adds the table to bench/results/.
"""

import argparse
import asyncio
import statistics
import subprocess
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from _results import ENOUGH_S, Compared, Table, save

from kakoi.tasks.environments import EnvironmentOptions, ExecutionEnvironmentManager
from kakoi.tasks.task import Task
from tests.engine import containers
from tests.tasks.hosting import GitServer, docker, start_server

TIMES = 7
COMMANDS = 50


def now() -> datetime:
    return datetime.now(UTC)


def a_task(git: GitServer) -> Task:
    return Task(uuid=f"bench-{uuid.uuid4()}", repository=git.url("open/project"))


async def p50(work: Callable[[], Awaitable[object]], times: int = TIMES) -> float:
    """Return median milliseconds."""
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        await work()
        samples.append((time.perf_counter() - start) * 1000)
    return statistics.median(samples)


async def once(work: Callable[[], Awaitable[object]]) -> float:
    """Return the milliseconds of one run."""
    return await p50(work, 1)


async def bare(*args: str) -> None:
    await asyncio.to_thread(docker, *args)


class Bench:
    def __init__(self, image: str, owner: str, git: GitServer) -> None:
        self.image = image
        self.owner = owner
        self.git = git
        self.rows = Table()

    def manager(self, pool_size: int = 0) -> ExecutionEnvironmentManager:
        options = EnvironmentOptions(
            image=self.image,
            network="bridge",  # The git server is on this network.
            pool_size=pool_size,
            install_dependencies=False,
        )
        return ExecutionEnvironmentManager(options, clock=now, owner=self.owner)

    def row(
        self, what: str, value_ms: float, base_ms: float | None = None, of: str = "", more: str = ""
    ) -> None:
        ratio = "" if base_ms is None else f"{value_ms / base_ms:.2f} x {of}"
        self.rows.add(what, f"{value_ms:.0f} ms", ", ".join(filter(None, (ratio, more))))

    async def bare_run(self, name: str) -> None:
        label = f"kakoi.owner={self.owner}"
        limits = ["--memory", "4g", "--cpus", "2", "--pids-limit", "512", "--init"]
        await bare(
            "run", "-d", "--name", name, "--label", label, *limits, self.image, "sleep", "600"
        )
        url = self.git.url("open/project")
        await bare("exec", name, "git", "clone", "-q", "--depth", "1", url, "/tmp/project")

    async def preparing(self) -> None:
        """Measure environments made cold, from the pool, and bare ones, by turns."""
        managers = {"cold": self.manager(0), "from the pool": self.manager(1)}
        kinds = ["bare", *managers]
        made: dict[str, list[float]] = {kind: [] for kind in kinds}
        ended: dict[str, list[float]] = {kind: [] for kind in kinds}
        until = time.perf_counter() + 5 * ENOUGH_S
        while len(made["bare"]) < TIMES:
            if len(made["bare"]) > 2 and time.perf_counter() > until:
                break
            name = f"bench-{uuid.uuid4()}"
            made["bare"].append(await once(lambda n=name: self.bare_run(n)))  # type: ignore[misc]
            ended["bare"].append(await once(lambda n=name: bare("rm", "-f", "-v", n)))  # type: ignore[misc]
            for kind, manager in managers.items():
                await manager.warm()  # Fill the pool, so that nothing is created while measuring.
                task = a_task(self.git)
                work = once(lambda m=manager, t=task: m.prepare(t))  # type: ignore[misc]
                made[kind].append(await work)
                await manager.warm()  # What is created after the task was not measured, either.
                work = once(lambda m=manager, t=task: m.cleanup(t.uuid))  # type: ignore[misc]
                ended[kind].append(await work)
        for manager in managers.values():
            await manager.close()
        self.row("bare: docker run + git clone", statistics.median(made["bare"]))
        for kind, bar in (("cold", "<= 1.2 x"), ("from the pool", "<= 0.1 x")):
            found = Compared(tuple(made[kind]), tuple(made["bare"]))
            self.rows.add(f"prepare, {kind}", found.value, found.ratio("bare"), bar)
            found = Compared(tuple(ended[kind]), tuple(ended["bare"]))
            self.rows.add(f"cleanup, {kind}", found.value, found.ratio("docker rm -f"))

    async def executing(self) -> None:
        manager = self.manager()
        task = a_task(self.git)
        info = await manager.prepare(task)
        ours, theirs = [], []
        for _ in range(5):
            theirs.append(await p50(lambda: bare("exec", info.name, "true"), 3))
            ours.append(
                await p50(lambda: manager.execute(info.container_id, "true"), COMMANDS // 5)
            )
        p50_ours, p50_theirs = statistics.median(ours), statistics.median(theirs)
        ratio = f"docker exec takes {p50_theirs / p50_ours:.0f} x ({p50_theirs:.0f} ms)"
        self.rows.add("execute `true`", f"{p50_ours:.1f} ms", ratio)
        await manager.cleanup(task.uuid)

    async def at_once(self, counts: Sequence[int]) -> None:
        """Measure each number of environments at once, first bare and then kakoi's."""
        first: Costs | None = None
        for count in counts:
            costs = Costs(count, await self.bare_at_once(count), *await self.ours_at_once(count))
            first = first or costs
            bare_growth = growth(first, costs, "bare")
            self.row(f"bare: {count} at once", costs.bare, more=bare_growth)
            more = growth(first, costs, "prepare")
            self.row(f"prepare {count} at once", costs.prepare, costs.bare, "bare", more)
            self.row(
                f"clean {count} up at once", costs.cleanup, more=growth(first, costs, "cleanup")
            )

    async def bare_at_once(self, count: int) -> float:
        names = [f"bench-{uuid.uuid4()}" for _ in range(count)]
        taken = await once(lambda: asyncio.gather(*(self.bare_run(name) for name in names)))
        await asyncio.gather(*(bare("rm", "-f", "-v", name) for name in names))
        return taken

    async def ours_at_once(self, count: int) -> tuple[float, float]:
        manager = self.manager()
        tasks = [a_task(self.git) for _ in range(count)]
        prepared = await once(lambda: asyncio.gather(*(manager.prepare(task) for task in tasks)))
        cleaned = await once(
            lambda: asyncio.gather(*(manager.cleanup(task.uuid) for task in tasks))
        )
        await manager.close()
        return prepared, cleaned


@dataclass(frozen=True)
class Costs:
    """Milliseconds for a number of environments at once."""

    count: int
    bare: float
    prepare: float
    cleanup: float

    def of_one(self, what: str) -> float:
        taken: float = getattr(self, what)
        return taken / self.count


def growth(first: Costs, costs: Costs, what: str) -> str:
    """Return how the cost per environment has grown since the smallest number."""
    if costs.count == first.count:
        return ""
    times = costs.of_one(what) / first.of_one(what)
    return f"each {times:.2f} x one of {first.count}"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--image", default="kakoi-test:python")
    parser.add_argument("--at-once", type=int, nargs="+", default=[10, 25, 50])
    parser.add_argument("--save", action="store_true")
    options = parser.parse_args()
    try:
        subprocess.run(
            ["docker", "image", "inspect", options.image], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        print(f"no docker engine with {options.image}: nothing is measured")
        return
    owner = f"bench-{uuid.uuid4()}"
    try:
        bench = Bench(options.image, owner, start_server(owner))
        asyncio.run(run(bench, sorted(options.at_once)))
    finally:
        for each in containers(owner):
            docker("rm", "-f", "-v", each)
    if options.save:
        save("environments", bench.rows)


async def run(bench: Bench, counts: Sequence[int]) -> None:
    await bench.preparing()
    await bench.executing()
    await bench.at_once(counts)


if __name__ == "__main__":
    main()
