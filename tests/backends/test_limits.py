"""Control groups: made as the machine has them, kept by the kernel, and never left behind."""

import asyncio
import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kakoi.backends.adapter import Limits
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter
from kakoi.backends.control_groups import make_and_hold
from kakoi.backends.limits import ControlGroup, _write, make_group, make_job_groups
from kakoi.channel.api import MIB, Command
from kakoi.results import Reason
from tests.backends.boxes import needs_root, require_bubblewrap, skip_without_groups

LIMITS = Limits(memory_bytes=96 * MIB, cpus=0.5, processes=40)


# --- On machines of paper ----------------------------------------------------------------------


def paper_machine(root: Path, *, own: str, mounts: str, files: dict[str, str]) -> Path:
    """A machine that is only files; what the kernel would make in a new group is made by hand."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(own)
    (root / "proc/self/mounts").write_text(mounts)
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_version_one_has_a_directory_for_each_controller(tmp_path: Path) -> None:
    root = paper_machine(
        tmp_path,
        own="4:memory:/mine\n3:cpu,cpuacct:/\n2:pids:/mine\n0::/\n",
        mounts="cgroup /cg/memory cgroup rw,memory 0 0\ncgroup /cg/cpu cgroup rw,cpu,cpuacct 0 0\n"
        "cgroup /cg/pids cgroup rw,pids 0 0\n",
        files={"cg/memory/mine/x": "", "cg/cpu/x": "", "cg/pids/mine/x": ""},
    )
    group = make_group(LIMITS, root=root)
    assert group is not None
    assert group.kept == {"memory_bytes", "cpus", "processes"}
    memory, cpu, pids = sorted(group.folders, key=lambda folder: "memory" not in folder.parts)
    assert memory.parent == root / "cg/memory/mine"
    assert (memory / "memory.limit_in_bytes").read_text() == str(96 * MIB)
    found = {path.name: path.read_text() for folder in (cpu, pids) for path in folder.iterdir()}
    assert found == {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000", "pids.max": "40"}
    assert group.oom_counter == str(memory / "memory.oom_control")


def test_version_two_has_one_directory_beside_our_own(tmp_path: Path) -> None:
    root = paper_machine(
        tmp_path,
        own="0::/app.slice/ours.scope\n",
        mounts="cgroup2 /cg cgroup2 rw 0 0\n",
        files={
            "cg/app.slice/cgroup.controllers": "cpu memory pids",
            "cg/app.slice/cgroup.subtree_control": "memory pids",
            "cg/app.slice/ours.scope/cgroup.procs": "1",
        },
    )
    group = make_group(LIMITS, root=root)
    assert group is not None
    (folder,) = group.folders
    assert folder.parent == root / "cg/app.slice"
    assert group.kept == {"memory_bytes", "processes"}
    assert (folder / "memory.max").read_text() == str(96 * MIB)
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == "40"


def test_a_value_that_the_kernel_has_raised_does_not_count_as_a_limit() -> None:
    """Of the files that a test may write to, this one turns a zero into its default."""
    file = Path("/proc/self/timerslack_ns")
    _write(file, "60000", is_needed=True)
    assert file.read_text() == "60000\n"
    with pytest.raises(OSError, match="the kernel did not accept it"):
        _write(file, "0", is_needed=True)
    _write(file, "0", is_needed=False)


@pytest.mark.parametrize(("answer", "is_kept"), [("39", True), ("40", True), ("41", False)])
def test_a_limit_may_be_rounded_down_but_not_up(
    tmp_path: Path, answer: str, *, is_kept: bool
) -> None:
    """A pipe answers in place of the kernel, whose files round by amounts of their own."""
    file = tmp_path / "pids.max"
    os.mkfifo(file)

    def kernel() -> None:
        assert file.read_text() == "40"
        file.write_text(f"{answer}\n")

    with ThreadPoolExecutor(1) as pool:
        answered = pool.submit(kernel)
        with contextlib.nullcontext() if is_kept else pytest.raises(OSError, match="not accept"):
            _write(file, "40", is_needed=True)
        answered.result(60)


@pytest.mark.parametrize("mounts", ["", "cgroup /gone cgroup rw,memory,pids,cpu 0 0\n"])
def test_where_nothing_can_be_made_there_is_no_group(tmp_path: Path, mounts: str) -> None:
    root = paper_machine(tmp_path, own="1:memory,pids,cpu:/a\n", mounts=mounts, files={})
    assert make_group(LIMITS, root=root) is None


def test_what_is_not_limited_needs_no_group(tmp_path: Path) -> None:
    root = paper_machine(
        tmp_path,
        own="1:memory:/\n",
        mounts="cgroup /cg cgroup rw,memory 0 0\n",
        files={"cg/x": ""},
    )
    no_limits = Limits(memory_bytes=None, cpus=None, processes=None)
    assert make_group(no_limits, root=root) is None
    assert os.listdir(root / "cg") == ["x"]


KERNEL_FILES = {
    1: ("cgroup.procs", "memory.oom_control", "memory.usage_in_bytes"),
    2: ("cgroup.procs", "memory.events", "memory.current", "memory.max", "cgroup.subtree_control"),
}


@pytest.mark.parametrize("version", [1, 2])
def test_commands_get_groups_of_their_own_beside_the_runner(tmp_path: Path, version: int) -> None:
    def mkdir(folder: Path) -> None:
        folder.mkdir()
        for name in KERNEL_FILES[version]:
            (folder / name).touch()

    outer = tmp_path / "outer"
    mkdir(outer)
    made = make_job_groups(outer, 96 * MIB, 8 * MIB, mkdir=mkdir, kernel=(6, 1))
    assert made is not None
    made.close()
    limit = "memory.max" if version == 2 else "memory.limit_in_bytes"
    # The runner, and what it writes, has room beside all commands, and each leaves some to others.
    found = [int((folder / limit).read_text()) for folder in (outer / "jobs/0", outer / "jobs")]
    assert found == [96 * MIB, 112 * MIB]
    assert int((outer / limit).read_text()) == (112 + 64 + 8) * MIB
    if version == 1:
        assert made.entrance == outer
    else:  # A group with processes in it cannot have limited ones inside.
        assert made.entrance == outer / "runner"
        assert (outer / "cgroup.subtree_control").read_text() == "+memory"
        assert (outer / "jobs/cgroup.subtree_control").read_text() == "+memory"
        assert make_job_groups(outer, MIB, 0, mkdir=mkdir, kernel=(5, 15)) is None


# --- On this one -------------------------------------------------------------------------------


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[BubblewrapAdapter]:
    await asyncio.to_thread(require_bubblewrap)
    await asyncio.to_thread(tmp_path.chmod, 0o755)
    adapter = BubblewrapAdapter(tmp_path, limits=LIMITS)
    await adapter.channel()
    if adapter.limit_report.enforced["memory_bytes"] != "control group":
        await adapter.cleanup()
        skip_without_groups("memory")
    try:
        yield adapter
    finally:
        await adapter.cleanup()


def group_of(adapter: BubblewrapAdapter) -> ControlGroup:
    assert adapter._group is not None
    return adapter._group


@needs_root
@pytest.mark.anyio
async def test_a_memory_hog_is_ended_and_the_sandbox_lives_on(sandbox: BubblewrapAdapter) -> None:
    hog = "b = []\nwhile True: b.append(bytearray(8 << 20))"
    result = await sandbox.run(Command(command=["python3", "-c", hog], timeout_s=60))
    assert (result.reason, result.exit_code) == (Reason.OUT_OF_MEMORY, 137)
    shell = await sandbox.run(Command(command="tail /dev/zero; exit 3", timeout_s=60))
    assert shell.exit_code in (3, 137)
    assert (await sandbox.run(Command(command="echo alive"))).stdout == "alive\n"


@needs_root
@pytest.mark.anyio
async def test_private_directories_leave_memory_to_commands(sandbox: BubblewrapAdapter) -> None:
    """They are in memory, and a disk of 10 GiB was asked for beside memory of 96 MiB."""
    text = 'df --block-size=1 --output=size /tmp "$HOME" /var/tmp /dev/shm /run'
    result = await sandbox.run(Command(command=text, timeout_s=60))
    sizes = [int(size) for size in result.stdout.split()[1:]]
    assert len(sizes) == 5
    assert sum(sizes) <= 72 * MIB


@needs_root
@pytest.mark.anyio
async def test_a_fork_bomb_stays_in_its_box(sandbox: BubblewrapAdapter) -> None:
    bomb = "bomb() { bomb | bomb & }; bomb; sleep 60"
    result = await sandbox.run(Command(command=bomb, timeout_s=2))
    assert result.reason in (Reason.TIMED_OUT, Reason.EXITED)
    assert (await sandbox.run(Command(command="echo alive"))).stdout == "alive\n"


@needs_root
@pytest.mark.anyio
async def test_processor_time_is_shared_out(sandbox: BubblewrapAdapter) -> None:
    burn = "import time\nend = time.time() + 1\nwhile time.time() < end: pass"
    result = await sandbox.run(Command(command=["python3", "-c", burn], timeout_s=60))
    assert result.cpu_ms < 800


@needs_root
@pytest.mark.anyio
async def test_no_command_can_leave_or_change_its_group(sandbox: BubblewrapAdapter) -> None:
    folders = " ".join(str(folder) for folder in group_of(sandbox).folders)
    result = await sandbox.run(
        Command(
            command=f"for f in {folders} /sys/fs/cgroup; do"
            " echo 0 > $f/cgroup.procs; echo 1 > $f/memory.limit_in_bytes; mkdir $f/x; done;"
            " ls /sys/fs/cgroup 2>&1; ls -A /sys"
        )
    )
    assert "cgroup.procs" not in result.stdout
    assert result.stderr.count("\n") >= 9
    assert group_of(sandbox).kept == {"memory_bytes", "cpus", "processes"}


@needs_root
@pytest.mark.anyio
async def test_the_group_goes_with_the_sandbox(sandbox: BubblewrapAdapter) -> None:
    folders = group_of(sandbox).folders
    assert all([await asyncio.to_thread(folder.is_dir) for folder in folders])
    await sandbox.run(Command(command="setsid sleep 300 & setsid sleep 300 & echo started"))
    await sandbox.cleanup()
    assert not any([await asyncio.to_thread(folder.exists) for folder in folders])


MAKE_AND_REMOVE = """
from kakoi.backends.adapter import Limits
from kakoi.backends.limits import make_group
for _ in range(20):
    make_group(Limits()).remove()
"""


@needs_root
def test_a_neighbour_in_a_pid_namespace_of_its_own_leaves_our_groups_alone() -> None:
    """It sees none of our processes, and takes none of our groups for one that was left behind."""
    group = make_group(LIMITS)
    if group is None:
        skip_without_groups("memory")
    try:
        argv = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", MAKE_AND_REMOVE]
        subprocess.run(argv, check=True, timeout=60)
        assert all(folder.is_dir() for folder in group.folders)
        for entry in group.entries:
            # As a launched program does.
            subprocess.run(["sh", "-c", f"echo 0 > {entry}"], check=True, timeout=60)
    finally:
        group.remove()
    assert not any(folder.exists() for folder in group.folders)


@needs_root
def test_groups_that_are_made_at_once_are_all_there() -> None:
    """Each maker looks for groups that were left behind while the others are half-way."""
    with ThreadPoolExecutor(8) as many:
        made = list(many.map(lambda _: make_group(LIMITS), range(80)))
    groups = [group for group in made if group is not None]
    missing = [each for group in groups for each in group.folders if not each.is_dir()]
    for group in groups:
        group.remove()
    assert missing == []
    assert len(groups) in (0, 80)
    assert {group.kept for group in groups} <= {frozenset({"memory_bytes", "cpus", "processes"})}


def test_a_group_that_is_being_removed_is_waited_for_and_made_again(tmp_path: Path) -> None:
    """On a busy machine, the process that removes an abandoned group is slow."""
    folder = tmp_path / "group"
    folder.mkdir()
    removing = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(removing, fcntl.LOCK_EX)
    with ThreadPoolExecutor(1) as one:
        making = one.submit(make_and_hold, folder)
        with pytest.raises(TimeoutError):
            making.result(timeout=0.3)
        folder.rmdir()
        os.close(removing)
        held = making.result(timeout=60)
    assert os.fstat(held).st_ino == folder.stat().st_ino
    other = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    with pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    os.close(held)


@needs_root
def test_what_a_killed_kakoi_leaves_is_removed_by_the_next(tmp_path: Path) -> None:
    code = (
        "import os, signal; from kakoi.backends.limits import make_group;"
        "from kakoi.backends.adapter import Limits; g = make_group(Limits());"
        "print(*g.folders if g else [], flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL
    left = [Path(each) for each in done.stdout.split()]
    if not left:
        skip_without_groups("memory")
    # Another kakoi of this machine may be about to remove it, and the kernel may still end what was
    # in it: then the one after the next does.
    give_up = time.monotonic() + 60
    while time.monotonic() < give_up:
        group = make_group(LIMITS)
        assert group is not None
        group.remove()
        if not any(folder.exists() for folder in (*left, *group.folders)):
            return
    pytest.fail(f"{left} stay")
