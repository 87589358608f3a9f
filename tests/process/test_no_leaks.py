"""Spawns leave nothing behind in our own process: no descriptor, no child, no zombie."""

import asyncio
import gc
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kakoi.errors import ExecutionError
from kakoi.process import ProcessExecutor, ProcessResult, SpawnOptions
from tests.children import children_of_ours
from tests.process.trees import PATIENCE_S, Witness, client_environment, tree_argv

pytestmark = pytest.mark.anyio


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


async def one_of_each(executor: ProcessExecutor) -> list[object]:
    """Every way out at once; results and errors alike."""
    cancelled = asyncio.create_task(executor.spawn("sleep", ["600"], SpawnOptions(stdin="x")))
    asyncio.get_running_loop().call_later(0.03, cancelled.cancel)
    return await asyncio.gather(
        executor.spawn("true"),
        executor.spawn("cat", [], SpawnOptions(stdin=bytes(100_000))),
        executor.spawn("sh", ["-c", "sleep 600 & echo hi"]),
        executor.spawn("true", [], SpawnOptions(stdin=bytes(500_000), stdout="inherit")),
        executor.spawn("no-such-program"),
        executor.spawn("true", [], SpawnOptions(cwd="/no/such")),
        executor.spawn("true", ["\0"]),
        executor.spawn("sleep", ["600"], SpawnOptions(timeout=30)),
        executor.spawn("sh", ["-c", "kill -9 $PPID"]),
        cancelled,
        return_exceptions=True,
    )


async def test_two_hundred_spawns_of_every_kind_leak_no_descriptor_and_no_process(
    executor: ProcessExecutor,
) -> None:
    await one_of_each(executor)
    before = open_descriptors()
    for _ in range(20):
        outcomes = await one_of_each(executor)
        assert sum(isinstance(outcome, ProcessResult) for outcome in outcomes) == 4
    assert open_descriptors() == before
    assert children_of_ours() == []


async def test_many_spawns_at_once_do_not_get_into_each_others_way(
    executor: ProcessExecutor,
) -> None:
    results = await asyncio.gather(
        *(executor.spawn("sh", ["-c", f"echo {n}; exit {n}"]) for n in range(48))
    )
    assert [(result.stdout, result.exit_code) for result in results] == [
        (f"{n}\n", n) for n in range(48)
    ]


@contextmanager
def few_descriptors(spare: int) -> Iterator[None]:
    """Let only so many more descriptors be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(map(int, os.listdir("/proc/self/fd")))
    filling = [os.open(os.devnull, os.O_RDONLY)]
    while filling[-1] < highest:
        filling.append(os.dup(filling[0]))
    resource.setrlimit(resource.RLIMIT_NOFILE, (filling[-1] + 1 + spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in filling:
            os.close(fd)


async def test_running_out_of_descriptors_is_reported_and_loses_none(
    executor: ProcessExecutor,
) -> None:
    await executor.spawn("true")
    before = open_descriptors()
    outcomes: list[str] = []
    for spare in range(16):
        with few_descriptors(spare):
            try:
                outcomes.append((await executor.spawn("cat", [], SpawnOptions(stdin="x"))).stdout)
            except ExecutionError as error:
                outcomes.append(str(error))
    assert outcomes[0] == "cannot start a keeper: Too many open files"
    assert outcomes[-1] == "x"
    assert set(outcomes) == {outcomes[0], outcomes[-1]}
    assert open_descriptors() == before
    assert children_of_ours() == []


def test_a_spawn_works_on_a_loop_in_any_thread(executor: ProcessExecutor) -> None:
    async def twice() -> list[str]:
        return [(await executor.spawn("echo", [str(n)])).stdout for n in range(2)]

    async def both() -> list[list[str]]:
        threads = (asyncio.to_thread(asyncio.run, twice()) for _ in range(4))
        return await asyncio.gather(*threads)

    assert asyncio.run(both()) == [["0\n", "1\n"]] * 4


# The collector may see the keeper's Popen before it sees us, and warn; it is right to.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_spawn_that_is_thrown_away_lets_go_of_everything_and_its_tree_dies(
    executor: ProcessExecutor, witness: Witness
) -> None:
    """As after `loop.stop()`: nobody will ever await it again."""
    before = open_descriptors()
    threads = threading.enumerate()
    program, *args = tree_argv("daemons", witness.pipe, then="stay()")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # "Task was destroyed": it was, on purpose.
    task = loop.create_task(executor.spawn(program, args))
    loop.run_until_complete(asyncio.wait([task], timeout=0.01))
    witness.wait_until_announced(21)
    loop.close()
    del task
    gc.collect()
    witness.wait_until_nobody_is_alive()
    for thread in threading.enumerate():
        if thread not in threads:
            thread.join(PATIENCE_S)
    assert open_descriptors() == before
    assert children_of_ours() == []


SCRIPT = """
import asyncio, os, signal, sys
from kakoi.process import ProcessExecutor, SpawnOptions, run_filter
{first}
async def main():
    result = await ProcessExecutor().spawn("cat", ["-", "/no/such"], SpawnOptions(stdin="in"))
    return result.stdout + " " + result.stderr.partition(":")[0]
said = asyncio.run(main())
{then}
with open(sys.argv[1], "w") as file:
    file.write(said)
"""
FILTER = """
said += run_filter(["/bin/cat"], b" filtered", timeout_s=60, max_output_bytes=99).stdout.decode()
"""


@pytest.mark.parametrize(
    ("first", "then", "said"),
    [
        ("for fd in range(3): os.close(fd)", FILTER, "in cat filtered"),
        ("os.close(0)", FILTER, "in cat filtered"),
        ("os.close(1)", FILTER, "in cat filtered"),
        ("signal.signal(signal.SIGCHLD, signal.SIG_IGN)", "", "in cat"),
        ("os.chdir(sys.argv[2]); os.rmdir(sys.argv[2])", FILTER, "in cat filtered"),
        ("os.environ.clear()", FILTER, "in cat filtered"),
    ],
)
def test_a_process_in_an_unusual_state_can_spawn(
    tmp_path: Path, first: str, then: str, said: str
) -> None:
    """Standard streams closed, children reaped by the kernel, the working directory gone."""
    (tmp_path / "folder").mkdir()
    program = SCRIPT.format(first=first, then=then)
    arguments = [str(tmp_path / "said"), str(tmp_path / "folder")]
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env=client_environment(),
        stdin=subprocess.DEVNULL,
        timeout=PATIENCE_S,
        check=False,
    )
    assert done.returncode == 0
    assert (tmp_path / "said").read_text() == said
