"""Many writers at once, and writers that are killed: one chain, and nothing that was said is lost."""

import subprocess
import threading
from pathlib import Path

import pytest

from kakoi.audit import Event, read, verify
from tests.audit.logs import PATIENCE_S, log_at, run_python, start_writer, started


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def wait_for(writers: list[subprocess.Popen[str]]) -> set[str]:
    """The ids of all records that the writers say they wrote."""
    said: set[str] = set()
    for writer in writers:
        output, _ = writer.communicate(timeout=PATIENCE_S)
        assert writer.returncode == 0
        said.update(output.split())
    return said


def assert_one_chain(path: Path, said: set[str]) -> None:
    answer = verify(path)
    assert (answer.problems, answer.torn, answer.first_seq) == ((), (), 1)
    records = list(read(path))
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    own = [record.id for record in records if record.event is Event.STARTED]
    assert len(own) == len(set(own))
    assert set(own) == said


def test_eight_processes_write_one_chain(path: Path) -> None:
    said = wait_for([start_writer(path, 200, name=f"{n}") for n in range(8)])
    assert len(said) == 1600
    assert_one_chain(path, said)


def test_processes_that_rotate_under_each_other_write_one_chain(path: Path) -> None:
    writers = [start_writer(path, 150, name=f"{n}", max_bytes=2000, keep=500) for n in range(4)]
    said = wait_for(writers)
    assert_one_chain(path, said)
    assert verify(path).files > 50


def test_the_log_is_whole_whenever_somebody_looks_while_files_are_dropped(path: Path) -> None:
    writers = [start_writer(path, 150, name=f"{n}", max_bytes=2000, keep=2) for n in range(3)]
    looks = 0
    while any(writer.poll() is None for writer in writers):
        assert verify(path).problems == ()
        looks += 1
    wait_for(writers)
    assert looks > 1
    assert verify(path).ok


def test_threads_write_one_chain_through_one_log(path: Path) -> None:
    log = log_at(path, max_bytes=5000, keep=500)
    said: set[str] = set()

    def write(thread: int) -> None:
        for number in range(100):
            entry = started(1000 * thread + number)
            said.add((log.append_now(entry) or log.append(entry)).id)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert len(said) == 600
    assert_one_chain(path, said)


FORKS = """
import os, sys
from pathlib import Path
from tests.audit.logs import log_at, started
log = log_at(Path(sys.argv[1]))
log.append(started(0))
child = os.fork()
for number in range(100):
    entry = started(number + (1000 if child else 2000))
    log.append_now(entry) or log.append(entry)
if child:
    os.waitpid(child, 0)
"""


def test_a_log_goes_on_in_a_forked_child_and_in_its_parent(path: Path) -> None:
    run_python(FORKS, str(path))
    answer = verify(path)
    assert (answer.ok, answer.records) == (True, 201)


@pytest.mark.parametrize("max_bytes", [1_000_000, 1500])
def test_killed_writers_lose_nothing_that_they_reported_as_written(
    path: Path, max_bytes: int
) -> None:
    said: set[str] = set()
    for turn in range(8):
        writer = start_writer(path, 300, name=f"{turn}", max_bytes=max_bytes, keep=2000)
        bystander = start_writer(path, 20, name=f"b{turn}", max_bytes=max_bytes, keep=2000)
        assert writer.stdout is not None
        said.update(writer.stdout.readline().strip() for _ in range(20 + 7 * turn))
        writer.kill()
        said.update(writer.stdout.read().split())
        writer.communicate(timeout=PATIENCE_S)
        said |= wait_for([bystander])
        assert verify(path).problems == ()
    log_at(path, max_bytes=max_bytes, keep=2000).append(started(0))
    assert verify(path).ok
    records = list(read(path))
    assert [record.seq for record in records] == list(range(1, len(records) + 1))
    # A writer may be killed between writing a record and saying so, never the other way round.
    unsaid = {record.id for record in records if record.event is Event.STARTED} - said
    assert said <= {record.id for record in records}
    assert len(unsaid - {"0000"}) <= 8
