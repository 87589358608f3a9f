"""The unconfined host keeps no walls, but it ends what it started, also after every keeper is dead."""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from kakoi.backends.host.adapter import HostAdapter
from kakoi.backends.host.control_group import HostGroup, make_host_group
from kakoi.channel.api import Command
from kakoi.results import Reason
from tests.attacks.driving import python_for_everyone
from tests.backends.boxes import (
    AS_USER,
    GROUP,
    IS_ROOT,
    USER,
    needs_root,
    skip_without_groups,
)
from tests.library import readable_library

pytestmark = pytest.mark.anyio
PATIENCE_S = 60.0

# Leaves a daemon, and kills everybody between itself and us, who is named by its argument.
KILL_ALL_KEEPERS = """
import os, signal, sys, time
def above(pid):
    return int(open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()[1])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        with open("daemon.half", "w") as file:
            file.write(str(os.getpid()))
        os.rename("daemon.half", "daemon")
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(null, stream)
        time.sleep(600)
    os._exit(0)
while not os.path.exists("daemon"):
    time.sleep(0.01)
keepers = [os.getppid()]
while keepers[-1] != int(sys.argv[1]):
    keepers.append(above(keepers[-1]))
for number in (signal.SIGSTOP, signal.SIGKILL):
    for pid in keepers[:-1][::-1]:
        os.kill(pid, number)
"""


def is_alive(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


def a_group(hierarchy: str | None = None) -> HostGroup:
    group = make_host_group() if hierarchy is None else make_host_group([hierarchy])
    if group is None:
        skip_without_groups(*(["", "freezer"] if hierarchy is None else [hierarchy]))
    return group


@needs_root
async def test_who_kills_every_keeper_leaves_nothing_behind(tmp_path: Path) -> None:
    group = a_group()
    group.remove()
    host = HostAdapter(tmp_path, warn_on_start=False)
    try:
        argv = ["python3", "-c", KILL_ALL_KEEPERS, str(os.getpid())]
        result = await host.run(Command(command=argv, timeout_s=PATIENCE_S))
        assert result.reason is Reason.SANDBOX_LOST
        assert not is_alive(int((tmp_path / "daemon").read_text()))
        assert (await host.run(Command(command="echo alive"))).stdout == "alive\n"
    finally:
        await host.cleanup()


@needs_root
@pytest.mark.parametrize("hierarchy", ["", "freezer", "pids"])
def test_a_group_of_each_version_is_ended_with_all_that_is_in_it(hierarchy: str) -> None:
    group = a_group(hierarchy)
    forks = "while :; do sleep 600 & sleep 0.02; [ $((i += 1)) -gt 40 ] && break; done; wait"
    text = f'echo 0 > "$1" && echo up && {forks}'
    with subprocess.Popen(["bash", "-c", text, "x", group.entry], stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        assert shell.stdout.readline() == b"up\n"
        asyncio.run(group.end())
        assert shell.wait(PATIENCE_S) == -9
        assert Path(group.entry).read_text() == ""
    group.remove()
    assert not group.folder.exists()


@needs_root
async def test_a_host_that_is_killed_with_its_keepers_is_ended_by_the_next(tmp_path: Path) -> None:
    group = a_group()
    group.remove()
    text = """
    import asyncio, os, signal, sys
    from kakoi.channel.api import Command
    from kakoi.backends.host.adapter import HostAdapter
    async def main():
        host = HostAdapter(sys.argv[1], warn_on_start=False)
        argv = ["python3", "-c", sys.argv[2], str(os.getpid())]
        await (await host.channel()).run(Command(command=argv))
    asyncio.run(main())
    """
    # Its last victim is the process that we start.
    whole = KILL_ALL_KEEPERS.replace("keepers[:-1]", "keepers")
    argv = [sys.executable, "-c", textwrap.dedent(text), str(tmp_path), whole]
    done = await asyncio.to_thread(subprocess.run, argv, timeout=PATIENCE_S)
    assert done.returncode == -9
    daemon = int((tmp_path / "daemon").read_text())
    assert is_alive(daemon)
    host = HostAdapter(tmp_path, warn_on_start=False)
    try:
        assert (await host.run(Command(command="echo alive"))).stdout == "alive\n"
        assert not is_alive(daemon)
    finally:
        await host.cleanup()


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Path]:
    """A folder of a normal user's."""
    folder = Path(tempfile.mkdtemp(prefix="kakoi-test-"))
    folder.chmod(0o755)
    (folder / "own").mkdir()
    if IS_ROOT:
        os.chown(folder / "own", USER, GROUP)
    yield folder
    shutil.rmtree(folder)


LOSE_THE_HOST = """
import asyncio, os, sys
from kakoi.channel.api import Command
from kakoi.backends.host.adapter import HostAdapter
async def main():
    host = HostAdapter(sys.argv[1], warn_on_start=False)
    argv = ["python3", "-c", sys.argv[2], str(os.getpid())]
    result = await host.run(Command(command=argv, timeout_s=60))
    print(result.reason, result.error)
    await host.cleanup()
asyncio.run(main())
"""
ASK_THE_DOCTOR = """
import asyncio
from kakoi.backends.diagnosis import check_held
print(asyncio.run(check_held("inside host")).status)
"""


def said_by_a_user(shared: Path, *words: str) -> str:
    done = subprocess.run(
        [*AS_USER, python_for_everyone(), "-c", *words],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(readable_library())},
        cwd=shared / "own",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_where_no_group_can_be_made_the_result_and_the_doctor_say_so(shared: Path) -> None:
    own = shared / "own"
    said = said_by_a_user(shared, LOSE_THE_HOST, str(own), KILL_ALL_KEEPERS)
    daemon = int((own / "daemon").read_text())
    is_held = not is_alive(daemon)
    if not is_held:
        os.kill(daemon, 9)
    assert said.startswith("sandbox_lost ")
    assert ("may still be running" in said) is not is_held
    assert said_by_a_user(shared, ASK_THE_DOCTOR) == ("ok\n" if is_held else "not enforced\n")
