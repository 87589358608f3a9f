"""Commands in real containers."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kakoi.backends.adapter import ExecuteOptions, Limits
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings, Lifetime, Tag
from kakoi.backends.docker.engine import Engine
from kakoi.channel.api import MIB, Command
from kakoi.errors import ExecutionTimeoutError, ImagePullError, SandboxError, SecurityError
from kakoi.gate import Gate
from kakoi.policy.profiles import load_policy
from kakoi.process import ProcessExecutor
from kakoi.results import Reason
from tests.engine import containers

pytestmark = pytest.mark.anyio

PYTHON = "kakoi-test:python"
BUSYBOX = "kakoi-test:busybox"  # Neither Python nor bash.
WAIT_S = 60.0


def docker(*args: str) -> str:
    done = subprocess.run(["docker", *args], capture_output=True, text=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module", autouse=True)
def engine() -> None:
    try:
        docker("image", "inspect", PYTHON, BUSYBOX)
    except (OSError, AssertionError) as error:
        if "docker" in os.environ.get("KAKOI_REQUIRE", ""):
            raise
        pytest.skip(f"no docker engine with test images; scripts/engine start: {error}")


@pytest.fixture
def owner() -> Iterator[str]:
    """A name for all containers of one test; none of them is left at its end."""
    name = f"test-{uuid.uuid4()}"
    yield name
    left = containers(name)
    for each in left:
        docker("rm", "-f", "-v", each)
    assert left == []


def wait_until(true: Callable[[], object]) -> None:
    limit = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < limit, "it did not happen"
        time.sleep(0.1)


Make = Callable[..., DockerAdapter]


@pytest.fixture
async def make(owner: str) -> AsyncIterator[Make]:
    made: list[DockerAdapter] = []

    def make(*, lifetime: Lifetime = "command", task: str = "", **settings: Any) -> DockerAdapter:
        config = DockerSettings(**{"image": PYTHON, **settings})
        tag = Tag(owner=owner, task=task)
        made.append(DockerAdapter(config, lifetime=lifetime, tag=tag, clock=lambda: 1.7e9))
        return made[-1]

    yield make
    for each in made:
        await each.cleanup()


@pytest.fixture(params=["command", "sandbox"])
def lifetime(request: pytest.FixtureRequest) -> Lifetime:
    chosen: Lifetime = request.param
    return chosen


@pytest.fixture(params=["sandbox", "client"])
def shared(request: pytest.FixtureRequest) -> Lifetime:
    """The lifetimes of a container that all commands share."""
    chosen: Lifetime = request.param
    return chosen


@pytest.fixture(params=[PYTHON, BUSYBOX])
def image(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


REPEATED = pytest.mark.extended("repetition: each value is tried once, with one of the other")
STAYS = pytest.mark.extended("repetition: tests/attacks tries it in containers that stay")
both = pytest.mark.parametrize(
    ("lifetime", "image"),
    [
        ("command", BUSYBOX),
        ("sandbox", PYTHON),
        pytest.param("command", PYTHON, marks=REPEATED),
        pytest.param("sandbox", BUSYBOX, marks=REPEATED),
    ],
)
most_often_for_a_command = pytest.mark.parametrize(
    "lifetime", ["command", pytest.param("sandbox", marks=STAYS)]
)

# --- What a command sees and gives -----------------------------------------------------------


@pytest.mark.requirement("B-013", "B-023")
@both
async def test_output_errors_and_status_come_back_apart(
    make: Make, lifetime: Lifetime, image: str
) -> None:
    result = await make(lifetime=lifetime, image=image).execute("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exitCode) == ("out\n", "err\n", 3)
    assert result.reason is Reason.EXITED


async def test_a_text_is_judged_for_the_shell_that_the_image_has(make: Make, image: str) -> None:
    sandbox = make(image=image)
    has_bash = await sandbox.shell() == "bash"
    assert has_bash == (image == PYTHON)
    gate = Gate(load_policy("coding-agent"), sandbox)
    # To bash a sum, to the other a command in two pairs of parentheses.
    if has_bash:
        assert (await gate.run(Command(command="((mount))"))).reason is Reason.EXITED
    else:
        with pytest.raises(SecurityError, match="mount"):
            await gate.run(Command(command="((mount))"))
    assert (await gate.run(Command(command="if [ -d / ]; then echo yes; fi"))).stdout == "yes\n"


@pytest.mark.requirement("B-012")
async def test_directory_variables_and_input_reach_the_command(
    make: Make, lifetime: Lifetime
) -> None:
    sandbox = make(lifetime=lifetime, env={"BASE": "b"})
    options = ExecuteOptions(cwd="/tmp", env={"SECRET_TOKEN": "s"}, timeout=60_000)
    result = await sandbox.execute("pwd; echo $BASE $SECRET_TOKEN", options)
    assert result.stdout == "/tmp\nb s\n"
    echo = await sandbox.run(Command(command=["cat"], stdin=b"in \xff"))
    assert echo.stdout == "in �"


@pytest.mark.requirement("A-020", "A-027")
@both
async def test_a_command_is_nobody_without_capabilities_for_ever(
    make: Make, lifetime: Lifetime, image: str
) -> None:
    result = await make(lifetime=lifetime, image=image).execute("id -u; cat /proc/self/status")
    assert int(result.stdout.split()[0]) == 65533
    status = dict(line.split(":", 1) for line in result.stdout.splitlines() if ":" in line)
    assert status["NoNewPrivs"].strip() == "1"
    assert status["Seccomp"].strip() == "2"
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[name], 16) == 0


@both
async def test_it_has_a_home_and_a_directory_to_work_in(
    make: Make, lifetime: Lifetime, image: str
) -> None:
    sandbox = make(lifetime=lifetime, image=image, directories=["/workspace/tmp", "/data"])
    script = (
        "pwd; echo $HOME; for d in . ~ /workspace/tmp /data; do touch $d/f && stat -c %u $d; done"
    )
    result = await sandbox.execute(script)
    assert result.stdout.split() == ["/workspace", "/home/agent", *["65533"] * 4]
    program = "printf '#!/bin/sh\\necho ran\\n' > p; chmod +x p; ./p"
    assert (await sandbox.execute(program)).stdout == "ran\n"


@pytest.mark.requirement("A-022", "A-023")
async def test_labels_and_limits_are_as_the_engine_reports_them(make: Make, owner: str) -> None:
    sandbox = make(lifetime="sandbox", task="t-7", network="bridge")
    await sandbox.channel()
    (found,) = json.loads(docker("container", "inspect", str(sandbox.container)))
    labels = found["Config"]["Labels"]
    assert labels["kakoi.owner"] == owner
    assert labels["kakoi.task"] == "t-7"
    assert labels["kakoi.created"] == "2023-11-14T22:13:20+00:00"
    assert labels["kakoi.expires"] == "2023-11-15T22:13:20+00:00"
    host = found["HostConfig"]
    assert host["Memory"] == host["MemorySwap"] == 4 * 1024 * MIB
    assert host["NanoCpus"] == min(2, os.cpu_count() or 2) * 10**9
    assert host["PidsLimit"] == 512
    assert host["Privileged"] is False
    assert host["NetworkMode"] == "bridge"
    assert host["LogConfig"]["Type"] == "none"


# --- Limits ----------------------------------------------------------------------------------

BOMB = """
import os, time
count = 0
try:
    while count < 300:
        if os.fork() == 0:
            time.sleep(60)
            os._exit(0)
        count += 1
except OSError as error:
    print(count, error.strerror)
"""


@pytest.mark.requirement("A-026")
@most_often_for_a_command
async def test_a_fork_bomb_stops_at_the_limit_and_leaves_nothing(
    make: Make, lifetime: Lifetime
) -> None:
    sandbox = make(lifetime=lifetime, limits=Limits(processes=50))
    result = await sandbox.execute(["python3", "-c", BOMB])
    count, _, why = result.stdout.strip().partition(" ")
    assert 20 < int(count) < 50
    assert why == "Resource temporarily unavailable"
    assert result.leftovers_ended == int(count)


@most_often_for_a_command
async def test_a_command_that_takes_too_much_memory_is_reported_as_that(
    make: Make, lifetime: Lifetime
) -> None:
    sandbox = make(lifetime=lifetime, limits=Limits(memory_bytes=96 * MIB))
    hog = "x = bytearray(); [x.extend(bytes(2**20)) for _ in range(500)]"
    result = await sandbox.execute(["python3", "-c", hog])
    assert result.reason is Reason.OUT_OF_MEMORY
    assert result.exit_code == 137
    assert (await sandbox.execute("echo fine")).stdout == "fine\n"


@pytest.mark.requirement("A-029")
@most_often_for_a_command
async def test_without_a_network_there_is_none(make: Make, lifetime: Lifetime) -> None:
    connect = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    result = await make(lifetime=lifetime).execute(["python3", "-c", connect])
    assert result.exit_code == 1
    assert "Network is unreachable" in result.stderr
    listed = await make(lifetime=lifetime).execute("tail -n +3 /proc/net/dev")
    assert [line.split(":")[0].strip() for line in listed.stdout.splitlines()] == ["lo"]


# --- The workspace ---------------------------------------------------------------------------


def owners(folder: Path) -> set[tuple[int, int]]:
    return {(path.stat().st_uid, path.stat().st_gid) for path in folder.rglob("*")}


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


@pytest.mark.requirement("B-022", "X-20")
@pytest.mark.parametrize(
    ("lifetime", "owner_id"),
    [
        ("command", 1234),
        ("sandbox", 0),
        pytest.param("command", 0, marks=REPEATED),
        pytest.param("sandbox", 1234, marks=REPEATED),
    ],
)
@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
async def test_what_is_written_in_the_workspace_belongs_to_its_owner(
    make: Make, tmp_path: Path, lifetime: Lifetime, owner_id: int
) -> None:
    (tmp_path / "before").write_text("b")
    for path in (tmp_path, tmp_path / "before"):
        os.chown(path, owner_id, owner_id)
    sandbox = make(lifetime=lifetime, workspace=str(tmp_path))
    result = await sandbox.execute(
        "id -u; pwd; cat before; echo a > after; echo c >> before; git init -q ."
    )
    assert result.stdout == f"{owner_id or 65533}\n/workspace\nb"
    assert (result.stderr, result.exit_code) == ("", 0)
    assert (tmp_path / "after").read_text() == "a\n"
    assert owners(tmp_path) == {(owner_id, owner_id)}


@pytest.mark.parametrize("name", ["with space", "co:lon", "com,ma", 'co:lon,comma and "quote"'])
async def test_a_workspace_may_have_any_name(make: Make, tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    result = await make(workspace=str(folder)).execute("echo hello > f; stat -c %u f")
    assert result.exit_code == 0, result.stderr
    assert (folder / "f").read_text() == "hello\n"


@pytest.mark.parametrize(
    ("lifetime", "inside"),
    [
        ("command", "/root/deep/down"),
        ("sandbox", "/srv/co:lon"),
        pytest.param("command", "/srv/co:lon", marks=REPEATED),
        pytest.param("sandbox", "/root/deep/down", marks=REPEATED),
    ],
)
async def test_a_workspace_may_be_seen_anywhere(
    make: Make, tmp_path: Path, lifetime: Lifetime, inside: str
) -> None:
    sandbox = make(lifetime=lifetime, workspace=str(tmp_path), inside=inside)
    result = await sandbox.execute("pwd; touch f")
    assert (result.stdout, result.stderr) == (f"{inside}\n", "")
    assert (tmp_path / "f").exists()


async def test_kakoi_itself_cannot_be_changed_in_a_workspace_that_holds_it(
    make: Make, tmp_path: Path, lifetime: Lifetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "deep" / "venv"
    place.mkdir(parents=True)
    (place / "pyvenv.cfg").write_text("before")
    monkeypatch.setattr(sys, "prefix", str(place))
    sandbox = make(lifetime=lifetime, workspace=str(tmp_path))
    script = (
        "echo x > deep/f; echo x > deep/venv/pyvenv.cfg; mv deep/venv v; mv deep d; rm -rf deep"
    )
    result = await sandbox.execute(script)
    assert result.exit_code != 0
    assert (tmp_path / "deep" / "venv" / "pyvenv.cfg").read_text() == "before"
    assert "Read-only file system" in result.stderr
    assert (tmp_path / "deep" / "f").exists() is False  # `rm` went as far as it could.


async def test_no_view_of_a_workspace_stays_mounted(make: Make, tmp_path: Path) -> None:
    sandbox = make(workspace=str(tmp_path), lifetime="sandbox")
    await sandbox.execute("true")
    assert str(sandbox.container) not in mounts()
    assert str(sandbox.container) not in os.listdir("/run/kakoi/views")


# --- The end ---------------------------------------------------------------------------------


@pytest.mark.requirement("B-015", "B-023")
async def test_a_command_out_of_time_is_gone_with_its_container(
    make: Make, owner: str, image: str
) -> None:
    with pytest.raises(ExecutionTimeoutError) as caught:
        await make(image=image).execute("echo part; sleep 300", ExecuteOptions(timeout=2000))
    assert caught.value.details["stdout"] == "part\n"
    assert containers(owner) == []


async def test_a_command_that_is_cancelled_is_gone_with_its_container(
    make: Make, owner: str, tmp_path: Path, image: str
) -> None:
    sandbox = make(image=image, workspace=str(tmp_path))
    task = asyncio.ensure_future(sandbox.execute("touch started; sleep 300"))
    await asyncio.to_thread(wait_until, lambda: (tmp_path / "started").exists())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert containers(owner) == []


async def test_nothing_of_a_command_is_left_for_the_next(make: Make, owner: str) -> None:
    sandbox = make()
    await sandbox.execute("touch /tmp/mine; setsid sleep 300 & echo up")
    assert containers(owner) == []
    assert (await sandbox.execute("ls /tmp")).stdout == ""


CHILD = """
import asyncio, sys
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings, Tag
from kakoi.channel.api import Command
from kakoi.errors import SandboxError

async def restarted(make):
    for attempt in range(9):
        sandbox = make()
        await sandbox.channel()
        try:
            await sandbox._container.restart()
            return sandbox
        except SandboxError as error:  # Docker before 23 does that now and then.
            if "removed the container" not in str(error):
                raise

async def main(owner, workspace, image, what):
    config = DockerSettings(image=image, workspace=workspace)
    lifetime = {"job that stays": "sandbox", "shared": "client", "restarted": "client"}
    lifetime = lifetime.get(what, "command")
    make = lambda: DockerAdapter(config, tag=Tag(owner=owner), lifetime=lifetime)
    sandbox = await restarted(make) if what == "restarted" else make()
    if what == "command":
        await sandbox.execute("touch started; sleep 300")
    channel = await sandbox.channel()
    await channel.start(Command(command="sleep 3; touch done; sleep 300", id="my-job"))
    await channel.run(Command(command="touch started; sleep 301"))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.fixture
def kill_kakoi(owner: str, tmp_path: Path) -> Callable[[str, str], None]:
    """Have another kakoi run something, and kill it."""

    def kill(image: str, what: str) -> None:
        argv = [sys.executable, "-c", CHILD, owner, str(tmp_path), image, what]
        with subprocess.Popen(argv) as child:
            try:
                wait_until(lambda: (tmp_path / "started").exists())
            finally:
                child.send_signal(signal.SIGKILL)

    return kill


@pytest.mark.parametrize("what", ["command", "job", "shared", "restarted"])
def test_when_kakoi_is_killed_a_container_that_goes_with_it_goes(
    kill_kakoi: Callable[[str, str], None], owner: str, image: str, what: str
) -> None:
    kill_kakoi(image, what)
    wait_until(lambda: containers(owner) == [])


async def test_when_kakoi_is_killed_a_container_that_stays_keeps_its_jobs(
    kill_kakoi: Callable[[str, str], None], owner: str, tmp_path: Path, image: str
) -> None:
    await asyncio.to_thread(kill_kakoi, image, "job that stays")
    (name,) = containers(owner)
    wait_until(lambda: "sleep 301" not in docker("top", name, "-eo", "pid,args"))
    sandbox = await DockerAdapter.attach(name, owner=owner)
    channel = await sandbox.channel()
    (job,) = [each for each in await channel.list_jobs() if each.running]
    assert job.id == "my-job"
    wait_until(lambda: (tmp_path / "done").exists())
    result = await channel.stop_job("my-job")
    assert result.reason is Reason.CANCELLED
    await sandbox.cleanup()
    assert containers(owner) == []


# --- A container that stays ------------------------------------------------------------------


async def test_files_of_a_container_that_stays_are_there_for_the_next_command(
    make: Make, image: str, shared: Lifetime
) -> None:
    sandbox = make(lifetime=shared, image=image)
    await sandbox.execute("echo kept > ~/f")
    assert (await sandbox.execute("cat ~/f")).stdout == "kept\n"
    await sandbox.close()
    assert (await sandbox.execute("cat ~/f")).stdout == "kept\n"


@pytest.mark.slow("waits for the limits of its attacks")
async def test_commands_cannot_end_the_container_they_run_in(make: Make, image: str) -> None:
    sandbox = make(lifetime="sandbox", image=image)
    with pytest.raises(SandboxError, match=r"lost|killed its keeper"):
        # Only as the user of a container, should a broken adapter run it elsewhere.
        await sandbox.execute("echo kept > ~/f; [ $(id -u) = 65533 ] && kill -9 -1; sleep 5")
    name = sandbox.container
    assert (await sandbox.execute("cat ~/f")).stdout == "kept\n"
    assert sandbox.container == name


ORPHANS = """
[ $(id -u) = 65533 ] || exit 1
setsid -f sleep 4321
for p in /proc/[0-9]*; do
    if grep -q python3 $p/cmdline 2>/dev/null; then kill -9 ${p#/proc/}; fi
done
sleep 5
"""


async def test_what_a_killed_runner_leaves_behind_is_ended_before_the_result(
    make: Make, shared: Lifetime
) -> None:
    sandbox = make(lifetime=shared)
    result = await sandbox.run(Command(command=ORPHANS))
    assert result.reason is Reason.SANDBOX_LOST
    assert "sleep 4321" not in docker("top", str(sandbox.container), "-eo", "pid,args")
    assert (await sandbox.execute("echo next")).stdout == "next\n"


FULL = """
import os, signal, time
assert os.getuid() == 65533
if os.fork():
    time.sleep(60)
me = os.getpid()
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        if int(pid) != me and b"python3" in open(f"/proc/{pid}/cmdline", "rb").read():
            os.kill(int(pid), signal.SIGKILL)
    except OSError:
        pass
while True:
    try:
        if os.fork() == 0:
            time.sleep(300)
            os._exit(0)
    except OSError:
        time.sleep(0.01)
"""


async def test_a_container_full_of_orphans_is_emptied_and_keeps_its_files(
    make: Make, tmp_path: Path, shared: Lifetime
) -> None:
    sandbox = make(lifetime=shared, workspace=str(tmp_path), limits=Limits(processes=40))
    await sandbox.execute("echo kept > ~/f")
    result = await sandbox.run(Command(command=["python3", "-c", FULL]))
    assert result.reason is Reason.SANDBOX_LOST
    after = await sandbox.execute("cat ~/f; touch here")
    assert after.stdout == "kept\n"
    assert (tmp_path / "here").exists()


@pytest.mark.requirement("A-015")
async def test_a_container_that_was_killed_is_named_with_its_state(make: Make) -> None:
    sandbox = make(lifetime="sandbox")
    running = asyncio.ensure_future(sandbox.run(Command(command="sleep 300")))
    name = await asyncio.to_thread(_running_name, sandbox)
    docker("kill", name)
    result = await running
    assert result.reason is Reason.SANDBOX_LOST
    assert "exited with status 137" in result.error
    with pytest.raises(SandboxError, match=f"{name}` is no longer running: exited"):
        await sandbox.execute("true")
    docker("rm", "-f", name)
    with pytest.raises(SandboxError, match="is no longer running: gone"):
        await sandbox.execute("true")


def _running_name(sandbox: DockerAdapter) -> str:
    wait_until(lambda: sandbox.container)
    name = str(sandbox.container)
    wait_until(lambda: "sleep 300" in docker("top", name, "-eo", "pid,args"))
    return name


async def test_a_cleanup_ends_the_command_that_runs_and_nothing_comes_back(
    make: Make, owner: str, shared: Lifetime
) -> None:
    sandbox = make(lifetime=shared)
    running = asyncio.ensure_future(sandbox.run(Command(command="sleep 300")))
    await asyncio.to_thread(_running_name, sandbox)
    await sandbox.cleanup()
    assert containers(owner) == []
    assert (await running).reason is Reason.SANDBOX_LOST
    assert containers(owner) == []


async def test_a_channel_of_a_container_that_goes_can_be_had_again(
    make: Make, owner: str, image: str
) -> None:
    sandbox = make(image=image)
    channel = await sandbox.channel()
    await channel.write_file("/workspace/f", b"data")
    assert (await channel.run(Command(command="cat f"))).stdout == "data"
    await sandbox.close()
    assert containers(owner) == []
    again = await (await sandbox.channel()).run(Command(command="ls"))
    assert again.stdout == ""


async def test_a_container_is_removed_even_if_the_closing_task_is_cancelled(
    make: Make, owner: str
) -> None:
    sandbox = make()
    await sandbox.channel()
    closing = asyncio.create_task(sandbox.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert await asyncio.to_thread(containers, owner) == []


async def test_a_shared_container_that_goes_is_removed_as_soon_as_it_ends(
    make: Make, owner: str
) -> None:
    sandbox = make(lifetime="client")
    running = asyncio.ensure_future(sandbox.run(Command(command="sleep 300")))
    name = await asyncio.to_thread(_running_name, sandbox)
    docker("kill", name)
    assert (await running).reason is Reason.SANDBOX_LOST
    await asyncio.to_thread(wait_until, lambda: containers(owner) == [])
    with pytest.raises(SandboxError, match="is no longer running: gone"):
        await sandbox.execute("true")


async def test_a_shared_container_is_held_again_after_a_restart(make: Make, owner: str) -> None:
    for _ in range(9):
        sandbox = make(lifetime="client", limits=Limits(disk_bytes=None))
        await sandbox.execute("echo kept > ~/f")
        assert sandbox._container is not None
        try:
            await sandbox._container.restart()
            break
        except SandboxError as error:  # Docker before 23 does that now and then.
            if "removed the container" not in str(error):
                raise
    assert (await (await sandbox.channel()).run(Command(command="cat ~/f"))).stdout == "kept\n"
    await sandbox.cleanup()
    assert containers(owner) == []


async def test_another_owner_cannot_attach(make: Make) -> None:
    sandbox = make(lifetime="sandbox")
    await sandbox.channel()
    with pytest.raises(SandboxError, match="not one of ours"):
        await DockerAdapter.attach(str(sandbox.container), owner="somebody else")


# --- Images and engines ----------------------------------------------------------------------

WITH_USER = f"""
FROM {PYTHON}
RUN echo 'agent:x:1234:1235::/home/somebody:/bin/sh' >> /etc/passwd && \\
    mkdir -p /workspace /home/somebody && chown 1234:1235 /home/somebody
HEALTHCHECK CMD touch /tmp/healthy
USER agent
"""


@pytest.fixture
def image_with_user() -> Iterator[str]:
    name = f"kakoi-test:{uuid.uuid4()}"
    argv = ["docker", "build", "--quiet", "--tag", name, "-"]
    env = {**os.environ, "DOCKER_BUILDKIT": "0"}
    done = subprocess.run(argv, input=WITH_USER, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr
    yield name
    docker("image", "rm", name)


async def test_an_image_with_a_user_keeps_it(
    image_with_user: str, make: Make, lifetime: Lifetime
) -> None:
    sandbox = make(image=image_with_user, lifetime=lifetime)
    result = await sandbox.execute("id -u; pwd; echo $HOME; touch ~/f f; stat -c %u:%g .")
    assert result.stdout.split() == ["1234", "/workspace", "/home/somebody", "1234:1235"]
    assert result.stderr == ""


async def test_nothing_stays_of_a_look_into_an_image_however_often_it_is_cancelled(
    owner: str,
) -> None:
    engine = Engine(ProcessExecutor(), program="docker", owner=owner)
    image = await engine.get_image(PYTHON)
    looking = asyncio.create_task(engine.home_of("nobody", image))
    await asyncio.to_thread(wait_until, lambda: containers(owner) or looking.done())
    while not looking.done():
        looking.cancel()
        await asyncio.wait([looking], timeout=0.01)
    assert await asyncio.to_thread(containers, owner) == []


@pytest.mark.requirement("B-019")
async def test_an_image_that_is_nowhere_cannot_be_pulled(make: Make) -> None:
    with pytest.raises(ImagePullError) as caught:
        await make(image="localhost:9/kakoi/nowhere:1").execute("true")
    assert caught.value.details["image"] == "localhost:9/kakoi/nowhere:1"
    assert caught.value.details["stderr"]
    assert caught.value.hint


@pytest.mark.requirement("X-26")
async def test_it_is_available_after_a_container_has_run(make: Make, owner: str) -> None:
    found = await make().availability()
    assert found
    assert "ran a container" in found.reason
    assert containers(owner) == []


@pytest.mark.requirement("B-024", "X-26")
async def test_an_engine_that_is_not_there_is_not_available() -> None:
    elsewhere = {"DOCKER_HOST": "unix:///nowhere.sock"}
    found = await DockerAdapter(engine_env=elsewhere).availability()
    assert not found
    assert "no docker engine answers" in found.reason
    assert "systemctl start docker" in found.fix
    without = await DockerAdapter(engine_env={"PATH": "/nowhere"}).availability()
    assert not without
    assert "docker.io" in without.fix
