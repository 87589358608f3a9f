"""What the keeper sees in /proc, and that it runs where it must."""

import ast
import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi.errors import ExecutionError
from kakoi.process import ProcessExecutor
from kakoi.process import keeper_client as keeping
from kakoi.process.keeper_client import KeeperRecord
from kakoi.runner import keeper
from tests.process.trees import TREES, Witness, tree_argv

pytestmark = pytest.mark.anyio

SOURCE = Path(keeper.__file__)


def test_the_keeper_is_written_for_python_3_8() -> None:
    ast.parse(SOURCE.read_text(encoding="utf-8"), feature_version=(3, 8))


@pytest.fixture
def copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A keeper of its own for the test, and what is known of its byte code."""
    path = Path(shutil.copy(SOURCE, tmp_path))
    monkeypatch.setattr(keeping, "_KEEPER", str(path))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    keeping._compiled.cache_clear()
    yield path
    keeping._compiled.cache_clear()


async def test_the_keeper_is_started_from_byte_code_while_there_is_some(copied: Path) -> None:
    compiled = Path(keeping.keeper_argv()[3])
    assert compiled.parent == copied.parent / "__pycache__"
    assert (await ProcessExecutor().spawn("true", [])).exit_code == 0
    compiled.unlink()  # noqa: ASYNC240
    assert keeping.keeper_argv()[3] == str(copied)
    assert (await ProcessExecutor().spawn("true", [])).exit_code == 0


def test_byte_code_of_another_source_is_not_used(
    copied: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert keeping.keeper_argv()[3] != str(copied)
    keeping._compiled.cache_clear()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # As where nobody may write.
    copied.write_text(SOURCE.read_text("utf-8") + "# changed\n", "utf-8")
    assert keeping.keeper_argv()[3] == str(copied)


def test_the_keeper_needs_the_standard_library_only() -> None:
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= sys.stdlib_module_names


@pytest.mark.parametrize("name", ["sh", "a b", "a) R 1 (b", "))", "日本", "\n"])
def test_a_process_is_read_whatever_it_calls_itself(name: str) -> None:
    stat = f"42 ({name}) S 7 42 42 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 99887 0 0".encode()
    process = keeper.Process(42, stat)
    assert (process.parent, process.born, process.alive) == (7, 99887, True)


@pytest.mark.parametrize(
    ("state", "threads", "alive"),
    [
        ("R", 1, True),
        ("T", 1, True),
        ("D", 1, True),
        ("Z", 1, False),
        ("X", 0, False),
        ("Z", 2, True),
    ],
)
def test_a_zombie_with_threads_is_not_dead(state: str, threads: int, alive: bool) -> None:
    stat = f"42 (x) {state} 7 42 42 0 -1 0 0 0 0 0 0 0 0 0 20 0 {threads} 0 99887 0 0".encode()
    assert keeper.Process(42, stat).alive is alive


@pytest.fixture(params=["children lists", "no children lists"])
def lister(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to find children; the second is for kernels without CONFIG_PROC_CHILDREN."""
    if request.param == "no children lists":
        monkeypatch.setattr(keeper, "children_lister", keeper.scan_for_children)


@pytest.fixture
def tree(witness: Witness) -> Iterator[subprocess.Popen[bytes]]:
    """A deep chain of processes, outside of any keeper."""
    process = subprocess.Popen(tree_argv("a deep chain", witness.pipe, then="stay()"))
    witness.wait_until_announced(TREES["a deep chain"][0] + 1)
    yield process
    for pid in witness.announced if witness.anybody_alive() else ():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()
    witness.wait_until_nobody_is_alive()


@pytest.mark.usefixtures("lister")
def test_every_descendant_is_found_and_nobody_else(
    tree: subprocess.Popen[bytes], witness: Witness
) -> None:
    found = [process.pid for process in keeper.below(tree.pid)]
    assert sorted([tree.pid, *found]) == sorted(witness.announced)


@pytest.mark.usefixtures("lister")
def test_every_descendant_can_be_killed_from_outside(
    tree: subprocess.Popen[bytes], witness: Witness
) -> None:
    killed = keeper.kill_below(tree.pid)
    assert killed == set(witness.announced) - {tree.pid}
    tree.kill()
    witness.wait_until_nobody_is_alive()


def test_a_namesake_is_never_signalled(tree: subprocess.Popen[bytes]) -> None:
    """A process number that was given to another process since we looked."""
    process = keeper.look(tree.pid)
    assert process is not None
    process.born -= 1
    assert not keeper.send_to(process, 9)
    assert tree.poll() is None


def test_a_process_that_is_gone_is_not_an_error() -> None:
    process = subprocess.Popen(["true"])
    seen = keeper.look(process.pid)
    process.wait()
    assert seen is None or not keeper.send_to(seen, 9)
    assert keeper.look(process.pid) is None
    assert list(keeper.below(process.pid)) == []
    keeper.end_from_outside(process.pid)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\n",
        b"exited",
        b"exited 0",
        b"exited 0 0 0 0 0 0 0 0\n",
        b"exited a 0 0 0 0 0\n",
        b"\xff",
    ],
)
def test_a_record_that_is_not_whole_is_none(line: bytes) -> None:
    assert KeeperRecord.parse(line) is None


def test_a_record_is_read() -> None:
    assert KeeperRecord.parse(b"exited 3 12 4 1024 2 0\n") == KeeperRecord(
        "exited", 3, 12, 4, 1024, 2, 0
    )


@pytest.mark.parametrize("argument", ["0", "1"])
def test_a_keeper_whose_asker_is_gone_before_it_asked_starts_nothing(argument: str) -> None:
    """Cancelled while Python was starting: the line ends before, or within, the request."""
    command = [sys.executable, "-I", "-S", str(SOURCE), "0"]
    done = subprocess.run(
        command,
        input=b"0000000099half" * int(argument),
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert (done.stdout, done.stderr) == (b"", b"")


async def test_nobody_may_look_into_a_keeper(executor: ProcessExecutor) -> None:
    """The command must neither read our environment there nor take the line over."""
    code = """
import os
for pid in (os.getppid(),):
    with open(f"/proc/{pid}/status") as file:
        print([line for line in file if line.startswith("Uid")][0].split()[1] == str(os.getuid()))
    print(os.stat(f"/proc/{pid}/environ").st_uid)
"""
    result = await executor.spawn(sys.executable, ["-I", "-S", "-c", code])
    # Files of a process that may not be looked into belong to root.
    assert result.stdout == "True\n0\n"


async def test_a_keeper_that_cannot_even_start_says_why(
    executor: ProcessExecutor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ExecutionError, match="keeper"):
        await executor.spawn("true")
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho no libraries >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(broken))
    with pytest.raises(ExecutionError, match="keeper") as failure:
        await executor.spawn("true")
    assert failure.value.details["stderr"] == "no libraries\n"
