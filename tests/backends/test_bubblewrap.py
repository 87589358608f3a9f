"""BubblewrapAdapter: the place is made, used, lost, taken away, and explained where it fails."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from kakoi.backends.adapter import ExecuteOptions, Limits
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter, explain
from kakoi.backends.bubblewrap.arguments import HostSystem
from kakoi.channel.api import Command
from kakoi.errors import (
    ConfigurationError,
    EnvironmentUnavailableError,
    ExecutionTimeoutError,
    SandboxError,
)
from kakoi.process import ProcessExecutor
from kakoi.process.stream import Launch, ProcessStream
from kakoi.results import Reason
from tests.backends.boxes import (
    AS_USER,
    ROOTS,
    USER,
    WAIT_S,
    Box,
    Kind,
    a_box,
    needs_root,
    require_bubblewrap,
)
from tests.library import readable_library

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", autouse=True)
def bubblewrap() -> None:
    require_bubblewrap()


@pytest.fixture(params=ROOTS or ["a user"])
def box(request: pytest.FixtureRequest) -> Iterator[Box]:
    with a_box(request.param) as box:
        yield box


@asynccontextmanager
async def opened(box: Box, **options: object) -> AsyncIterator[BubblewrapAdapter]:
    adapter = BubblewrapAdapter(box.workspace, **options)  # type: ignore[arg-type]
    try:
        yield adapter
    finally:
        await adapter.cleanup()


# --- Running ----------------------------------------------------------------------------------


async def test_a_command_runs_in_the_workspace_as_somebody_without_power(box: Box) -> None:
    async with opened(box, env={"GREETING": "hello"}) as adapter:
        assert adapter.name == "bubblewrap"
        assert await adapter.is_available()
        result = await adapter.run(Command(command='pwd; id -u; echo "$GREETING"; touch made'))
    assert result.stdout.splitlines() == [str(box.workspace), str(box.uid), "hello"]
    assert (box.workspace / "made").stat().st_uid == box.workspace.stat().st_uid


async def test_execute_has_the_manners_of_spec_b(box: Box) -> None:
    async with opened(box) as adapter:
        result = await adapter.execute(["sh", "-c", "echo out; echo err >&2; exit 3"])
        assert (result.exitCode, result.stdout, result.stderr) == (3, "out\n", "err\n")
        with pytest.raises(ExecutionTimeoutError):
            await adapter.execute("sleep 60", ExecuteOptions(timeout=100))
    async with opened(box, timeout_s=0.1) as adapter:
        with pytest.raises(ExecutionTimeoutError):
            await adapter.execute("sleep 60")


async def test_commands_of_one_sandbox_share_its_private_places_until_it_goes(box: Box) -> None:
    async with opened(box) as adapter:
        await adapter.execute("echo kept > /tmp/file")
        assert (await adapter.execute("cat /tmp/file")).stdout == "kept\n"
    async with opened(box) as adapter:
        assert (await adapter.execute("cat /tmp/file")).exit_code == 1


FORK = """
import os, signal
count = 0
try:
    while count < 200:
        if os.fork() == 0:
            signal.pause()
        count += 1
except BlockingIOError:
    print(count)
"""


async def test_the_number_of_processes_is_limited_for_all_commands_together(box: Box) -> None:
    async with opened(box, limits=Limits(processes=30)) as adapter:
        # The first may leave the second no room to begin.
        command = ["python3", "-c", FORK]
        counts = await asyncio.gather(*(adapter.run(Command(command=command)) for _ in range(2)))
        both = sum(int(result.stdout or 0) for result in counts)
        assert 10 < both < 60
        alone = await adapter.execute(["python3", "-c", FORK])
        assert 20 <= int(alone.stdout) < 30
        raising = await adapter.execute("ulimit -u unlimited || ulimit -Hu 100")
        assert raising.exit_code != 0
    async with opened(box, limits=Limits(processes=None)) as adapter:
        assert (await adapter.execute(["python3", "-c", FORK])).stdout == ""


MEDDLE = """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
ATTACH, SEIZE, PIDFD_GETFD = 16, 0x4206, 438
def send(pid, number):
    try:
        os.kill(pid, number)
    except PermissionError:  # Landlock, where the kernel has it.
        pass
for pid in (1, os.getppid()):
    print(libc.ptrace(ATTACH, pid, None, None), libc.ptrace(SEIZE, pid, None, None))
    print(libc.syscall(PIDFD_GETFD, os.pidfd_open(pid), 3, 0))
    for name in ("mem", "environ", "fd", "maps", "cwd"):
        try:
            os.listdir(f"/proc/{pid}/fd") if name == "fd" else open(f"/proc/{pid}/{name}")
            print("opened", pid, name)
        except PermissionError:
            pass
for number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM, signal.SIGSEGV):
    send(1, number)
print("done")
"""


async def test_commands_cannot_meddle_with_the_runner(box: Box) -> None:
    async with opened(box) as adapter:
        result = await adapter.execute(["python3", "-c", MEDDLE])
        assert result.stdout.splitlines() == ["-1 -1", "-1", "-1 -1", "-1", "done"], result.stderr
        assert (await adapter.execute("echo here")).stdout == "here\n"


async def test_it_is_made_again_after_it_was_lost(box: Box) -> None:
    streams: list[ProcessStream] = []

    class Watched(ProcessExecutor):
        def stream(self, launch: Launch) -> ProcessStream:
            streams.append(super().stream(launch))
            return streams[-1]

    async with opened(box, executor=Watched()) as adapter:
        await adapter.execute("true")
        async with asyncio.timeout(WAIT_S):
            running = asyncio.ensure_future(adapter.run(Command(command="sleep 600")))
            await asyncio.sleep(0)
            os.kill(streams[0].pid, 9)
            assert (await running).reason is Reason.SANDBOX_LOST
        assert (await adapter.execute("echo back")).stdout == "back\n"
        assert len(streams) == 2


async def test_after_cleanup_there_is_nothing_to_run_in(box: Box) -> None:
    async with opened(box) as adapter:
        await adapter.execute("true")
        await adapter.cleanup()
        await adapter.cleanup()
        with pytest.raises(SandboxError):
            await adapter.execute("true")


async def test_a_workspace_that_was_made_anew_is_the_new_one(box: Box) -> None:
    async with opened(box) as adapter:
        owner = box.workspace.stat()
        box.workspace.rename(box.workspace.with_name("old"))
        box.workspace.mkdir()
        os.chown(box.workspace, owner.st_uid, owner.st_gid)
        await adapter.execute("touch made")
    assert (box.workspace / "made").exists()


async def test_a_workspace_that_is_gone_is_reported(box: Box) -> None:
    async with opened(box) as adapter:
        box.workspace.rmdir()
        with pytest.raises(ConfigurationError, match="No such file"):
            await adapter.execute("true")
        found = await adapter.availability()
        assert (found.available, "mkdir -p" in found.fix) == (False, True)
        box.workspace.mkdir()


# --- What makes no sense ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"network": "bridge"},
        {"env": {"BASH_ENV": "/tmp/x"}},
        {"env": {"A=B": "x"}},
        {"env": {"A": "\0"}},
        {"timeout_s": 0},
        {"read_only": ["/"]},
        {"read_only": ["/does/not/exist"]},
    ],
)
def test_wrong_settings_are_refused_at_once(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        BubblewrapAdapter(tmp_path, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("workspace", ["/", "/usr", "/etc", "/home", "/root", "/tmp", "/nowhere"])
def test_a_workspace_that_would_give_too_much_away_is_refused_at_once(workspace: str) -> None:
    with pytest.raises(ConfigurationError):
        BubblewrapAdapter(workspace)


# --- Where it does not work ------------------------------------------------------------------

MACHINE = HostSystem(
    bwrap="/usr/bin/bwrap",
    uid=1000,
    gid=1000,
    links=(),
    folders=(),
    files={},
    python="/usr/bin/python3",
    python_home=None,
)
NO_RIGHT = "bwrap: No permissions to create new namespace, likely because the kernel does not allow"


@pytest.mark.parametrize(
    ("said", "sysctls", "reason", "fix"),
    [
        (
            NO_RIGHT,
            {"kernel.unprivileged_userns_clone": "0", "user.max_user_namespaces": "100"},
            "kernel.unprivileged_userns_clone=0",
            "sysctl -w kernel.unprivileged_userns_clone=1",
        ),
        (
            "bwrap: Creating new namespace failed: nesting depth or /proc/sys/user/max_*_namespaces",
            {"user.max_user_namespaces": "0"},
            "user.max_user_namespaces=0",
            "sysctl -w user.max_user_namespaces=15000",
        ),
        (
            "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
            {"kernel.apparmor_restrict_unprivileged_userns": "1"},
            "kernel.apparmor_restrict_unprivileged_userns=1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            "bwrap: setting up uid map: Permission denied",
            {"kernel.apparmor_restrict_unprivileged_userns": "1"},
            "kernel.apparmor_restrict_unprivileged_userns=1",
            "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
        ),
        (
            "bwrap: Can't mount proc on /newroot/proc: Operation not permitted",
            {"user.max_user_namespaces": "100"},
            "is this a container?",
            "run kakoi outside of the container, or use docker",
        ),
        ("bwrap: Unknown option --disable-userns", {}, "older than 0.8", "apt-get install"),
        ("staging: it broke\nfix: mend it\n", {}, "it broke", "mend it"),
        (
            "bwrap: execvp python3: Exec format error",
            {},
            "Exec format error",
            "bwrap --unshare-all",
        ),
        ("", {}, "no output", "bwrap --unshare-all"),
    ],
)
def test_a_failure_is_explained(said: str, sysctls: dict[str, str], reason: str, fix: str) -> None:
    found = explain(said, sysctls, MACHINE)
    assert not found
    assert reason in found.reason
    assert fix in found.fix


PROBE = """
import asyncio, json, sys
from kakoi.errors import KakoiError
from kakoi.backends.bubblewrap.adapter import BubblewrapAdapter

async def main():
    adapter = BubblewrapAdapter(sys.argv[1])
    found = await adapter.availability()
    said = {"available": found.available, "reason": found.reason, "fix": found.fix}
    try:
        result = await adapter.execute(sys.argv[2])
        said |= {"stdout": result.stdout, "stderr": result.stderr, "exit": result.exit_code}
    except KakoiError as error:
        said |= {"error": type(error).__name__, "message": error.message, "hint": error.hint}
    await adapter.cleanup()
    print(json.dumps(said))

asyncio.run(main())
"""


def probe(
    workspace: Path, before: Sequence[str] = (), *, command: str = "true", python: str = ""
) -> dict[str, object]:
    """Use an adapter in a process of its own, started below `before`."""
    done = subprocess.run(
        [*before, python or sys.executable, "-c", PROBE, str(workspace), command],
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": str(readable_library())},
        cwd="/",
    )
    assert done.returncode == 0, done.stderr
    said: dict[str, object] = json.loads(done.stdout)
    return said


def unavailable(said: dict[str, object]) -> tuple[str, str]:
    """That it said so, both when asked and when used; returns why and the fix."""
    assert said["available"] is False
    assert said["error"] == EnvironmentUnavailableError.__name__
    assert said["message"] == f"bubblewrap cannot be used here: {said['reason']}"
    assert said["hint"] == said["fix"]
    return str(said["reason"]), str(said["fix"])


IN_A_PRIVATE_MOUNT_NAMESPACE = ["unshare", "-m", "--propagation", "private", "bash", "-c"]


@needs_root
def test_without_the_program_it_says_how_to_install_it(box: Box) -> None:
    hide = 'mount --bind /dev/null "$(type -P bwrap)"; exec "$@"'
    said = probe(box.workspace, [*IN_A_PRIVATE_MOUNT_NAMESPACE, hide, "bash"])
    assert unavailable(said) == ("bubblewrap is not installed", "apt-get install bubblewrap")


@needs_root
def test_a_root_without_capabilities_gets_an_error(box: Box) -> None:
    said = probe(box.workspace, ["setpriv", "--bounding-set", "-sys_admin"])
    reason, fix = unavailable(said)
    assert "is this a container?" in reason
    assert "run kakoi outside of the container" in fix


@needs_root
def test_a_workspace_that_cannot_be_lent_is_reported_with_the_fix() -> None:
    with a_box("root's workspace") as box:
        (box.workspace / "sub").mkdir()
        mount = f'mount -t proc none {box.workspace}/sub; exec "$@"'
        said = probe(box.workspace, [*IN_A_PRIVATE_MOUNT_NAMESPACE, mount, "bash"])
    reason, fix = unavailable(said)
    assert "belongs to root" in reason
    assert fix == f"chown -R 65533:65533 {box.workspace}"


# --- As a normal user ------------------------------------------------------------------------


@pytest.fixture
def python() -> str:
    """A Python that everybody on this machine can start."""
    found = shutil.which("python3", path="/usr/bin")
    check = "import sys; sys.exit(sys.version_info < (3, 11))"
    if found is None or subprocess.run([found, "-c", check]).returncode != 0:
        pytest.skip("the system has no python3 >= 3.11 for another user")
    return found


@pytest.fixture
def users() -> Iterator[Box]:
    kind: Kind = "a user"
    with a_box(kind) as box:
        yield box


def test_a_normal_user_can_use_it(users: Box, python: str) -> None:
    said = probe(users.workspace, AS_USER, python=python, command="id -u; touch made; pwd")
    assert said["available"] is True, said
    assert said["stdout"] == f"{USER}\n{users.workspace}\n"
    assert (users.workspace / "made").stat().st_uid == USER


@needs_root
def test_a_normal_user_learns_which_setting_forbids_it(users: Box, python: str) -> None:
    """The setting is one of a user namespace: it is changed in one of our own, not on the host."""
    own = ["unshare", "--user", "--map-current-user", "--keep-caps"]
    forbid = 'echo 0 > /proc/sys/user/max_user_namespaces; exec "$@"'
    powerless = ["setpriv", "--ambient-caps=-all", "--inh-caps=-all"]
    before = [*AS_USER, *own, "bash", "-c", forbid, "bash", *powerless]
    reason, fix = unavailable(probe(users.workspace, before, python=python))
    assert "user.max_user_namespaces=0" in reason
    assert fix == "sysctl -w user.max_user_namespaces=15000"


@needs_root
def test_bubblewrap_that_is_too_old_is_reported(users: Box, python: str) -> None:
    old = users.workspace.parent / "old"
    old.write_text('#!/bin/sh\necho "bwrap: Unknown option $3" >&2\nexit 1\n')
    old.chmod(0o755)
    replaced = f'mount --bind {old} "$(type -P bwrap)"; exec "$@"'
    before = [*IN_A_PRIVATE_MOUNT_NAMESPACE, replaced, "bash", *AS_USER]
    reason, _ = unavailable(probe(users.workspace, before, python=python))
    assert reason == "bubblewrap is older than 0.8"
