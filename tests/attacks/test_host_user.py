"""The unconfined host of a normal user: it keeps no walls, but it ends what it started, passes nothing
of ours on, and bounds what it is told. Commands do what they can against that."""

import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kakoi.channel.api import MIB
from tests.attacks.driving import python_for_everyone
from tests.backends.boxes import AS_USER, GROUP, IS_ROOT, USER
from tests.library import readable_library

PATIENCE_S = 60.0
SECRET = "kakoi-secret-of-the-user"
# Each of its processes, and whatever they start, holds the same lock, `held`.
STUBBORN = """
import ctypes, fcntl, os, resource, signal, sys, time
held = os.open("held", os.O_RDWR | os.O_CREAT)
fcntl.flock(held, fcntl.LOCK_SH)
os.set_inheritable(held, True)
def child(work):
    if os.fork() == 0:
        try:
            work()
        finally:
            os._exit(0)
def deaf():
    for number in range(1, signal.NSIG):
        if number not in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.chdir("/")
    time.sleep(600)
def daemon():
    os.setsid()
    child(deaf)
def stopped():
    os.setsid()
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(600)
def hopping():
    # A new number every few milliseconds, and never one parent for long.
    while os.fork() == 0:
        os.setsid()
        time.sleep(0.005)
def subreaper():
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER
    child(daemon)
    time.sleep(600)
def emptied():
    os.execve("/bin/sleep", ["", "600"], {})
def walled():
    # Its processes have numbers of their own there, if this machine lets a user do that.
    os.execvp("unshare", ["unshare", "-U", "-p", "-f", "sleep", "600"])
def low():
    # Whoever would look at it finds its file, name and rights changed.
    resource.setrlimit(resource.RLIMIT_NOFILE, (held + 1, held + 1))
    ctypes.CDLL(None).prctl(4, 0)  # PR_SET_DUMPABLE
    os.nice(19)
    time.sleep(600)
for work in (deaf, daemon, stopped, hopping, subreaper, emptied, walled, low):
    child(work)
print("up", flush=True)
if sys.argv[1] == "stay":
    time.sleep(600)
if sys.argv[1] == "stop its keeper":
    os.kill(os.getppid(), signal.SIGSTOP)
    time.sleep(600)
"""
DRIVER = """
import asyncio, dataclasses, json, os, sys
from kakoi.channel.api import Command
from kakoi.backends.host.adapter import HostAdapter
async def main():
    host = HostAdapter(sys.argv[1], warn_on_start=False)
    for words in json.loads(sys.argv[2]):
        result = await host.run(Command(**words))
        print(json.dumps(dataclasses.asdict(result)), flush=True)
        if sys.stdin.readline() == "":
            break
    await host.cleanup()
asyncio.run(main())
"""


@pytest.fixture
def own() -> Iterator[Path]:
    """A folder of a normal user's."""
    folder = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    folder.chmod(0o755)
    (folder / "own").mkdir()
    if IS_ROOT:
        os.chown(folder / "own", USER, GROUP)
    yield folder / "own"
    shutil.rmtree(folder)


def start(own: Path, *commands: dict[str, Any], more_fds: tuple[int, ...] = ()) -> Any:
    """Somebody's program, who is not root, that runs these commands; each waits for a line."""
    return subprocess.Popen(
        [*AS_USER, python_for_everyone(), "-c", DRIVER, str(own), json.dumps(commands)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(readable_library()), "SECRET": SECRET},
        cwd=own,
        pass_fds=more_fds,
    )


def nobody_holds(lock: Path) -> bool:
    with lock.open("r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def stubborn(how: str, **more: Any) -> dict[str, Any]:
    return {"command": ["python3", "-c", STUBBORN, how], **more}


@pytest.mark.slow("waits for limits of time")
def test_nothing_that_a_normal_user_started_outlives_its_command(own: Path) -> None:
    """After its own end, a limit of time or of silence, and a keeper that it has stopped."""
    commands = (
        stubborn("end", timeout_s=PATIENCE_S),
        stubborn("stay", timeout_s=2.0),
        stubborn("stay", idle_timeout_s=1.0),
        stubborn("stop its keeper", timeout_s=2.0),
    )
    reasons = []
    with start(own, *commands) as driver:
        for _ in commands:
            result = json.loads(driver.stdout.readline())
            reasons.append(result["reason"])
            assert result["stdout"] == "up\n", result
            assert nobody_holds(own / "held"), result
            driver.stdin.write("go on\n")
            driver.stdin.flush()
        assert driver.wait(PATIENCE_S) == 0
    assert reasons == ["exited", "timed_out", "idle_timeout", "timed_out"]


def test_nothing_of_a_normal_user_outlives_us(own: Path) -> None:
    with start(own, stubborn("stay", timeout_s=PATIENCE_S)) as driver:
        limit = time.monotonic() + PATIENCE_S
        while not (own / "held").exists() or nobody_holds(own / "held"):
            assert time.monotonic() < limit
            time.sleep(0.02)
        driver.kill()
        while not nobody_holds(own / "held"):
            assert time.monotonic() < limit
            time.sleep(0.02)


def test_a_command_of_a_normal_user_has_nothing_of_ours_and_fills_no_memory_of_ours(
    own: Path,
) -> None:
    inherited, other = os.pipe()
    os.set_inheritable(inherited, True)
    commands = (
        {"command": "ls /proc/self/fd | wc -l; env", "timeout_s": PATIENCE_S},
        {"command": "yes | head -c 20000000; yes >&2", "timeout_s": 1.5, "max_output_bytes": MIB},
    )
    try:
        with start(own, *commands, more_fds=(inherited,)) as driver:
            said, _ = driver.communicate("go on\n" * len(commands), timeout=PATIENCE_S)
    finally:
        os.close(inherited)
        os.close(other)
    looked, flooded = (json.loads(line) for line in said.splitlines())
    count, *variables = looked["stdout"].splitlines()
    assert int(count) == 4  # Three, and that of the folder itself.
    assert not [each for each in variables if SECRET in each or each.startswith("PYTHON")]
    assert flooded["reason"] == "timed_out"
    assert [len(flooded[name]) for name in ("stdout", "stderr")] == [MIB, MIB]
    assert flooded["stdout_truncated"]
    assert flooded["stdout_bytes"] == 20_000_000
