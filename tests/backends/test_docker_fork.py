"""A fork of a container begins with its files, and is independent from then on."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kakoi.backends.adapter import CanFork, Limits, SandboxAdapter
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings, Lifetime, Tag
from kakoi.backends.docker.engine import Engine
from kakoi.channel.api import Command, new_id
from kakoi.conformance.sandbox_commands import wait_until
from kakoi.errors import ConfigurationError, KakoiError, SandboxError, UnsupportedError
from kakoi.process import ProcessExecutor
from kakoi.tasks.containers import OwnedContainers
from tests.cli.conftest import has_image, need
from tests.engine import containers, images

pytestmark = pytest.mark.anyio
PYTHON = "kakoi-test:python"
BUSYBOX = "kakoi-test:busybox"
NO_DISK = Limits(disk_bytes=None)


@pytest.fixture
def owner() -> Iterator[str]:
    """A name for everything of one test; nothing of it is left at the end."""
    need("docker", is_there=has_image(PYTHON) and has_image(BUSYBOX))
    name = f"test-{new_id()}"
    yield name
    left = [containers(name), images(name)]
    for kind, names in zip(("container", "image"), left, strict=True):
        for each in names:
            subprocess.run(["docker", kind, "rm", "-f", each], check=True, capture_output=True)
    assert left == [[], []]


Make = Callable[..., DockerAdapter]


@pytest.fixture
async def make(owner: str) -> AsyncIterator[Make]:
    made: list[DockerAdapter] = []

    def make(*, lifetime: Lifetime = "client", **settings: Any) -> DockerAdapter:
        config = DockerSettings(**{"image": PYTHON, **settings})
        made.append(DockerAdapter(config, lifetime=lifetime, tag=Tag(owner=owner)))
        return made[-1]

    yield make
    for each in made:
        await each.cleanup()


async def forks_of(sandbox: DockerAdapter, count: int) -> list[SandboxAdapter]:
    assert isinstance(sandbox, CanFork)
    return await asyncio.wait_for(sandbox.fork(count), 120)


async def clean_up(forks: list[SandboxAdapter]) -> None:
    await asyncio.gather(*(fork.cleanup() for fork in forks))


async def output(sandbox: SandboxAdapter, command: str) -> str:
    result = await sandbox.run(Command(command=command, timeout_s=60))
    assert result.exit_code == 0, result
    return result.stdout


FILL = r"""
mkdir -p d/e ~/.config; echo one >f; echo two >d/e/g; echo three >.hidden; ln -s /etc/passwd link
printf x >"$(printf 'a\nb \\ $(touch c) *')"; : >-rf; printf 'a\0b' >binary
chmod 750 d; chmod 600 f; touch -t 202001020304 f
echo home >~/.config/h; echo temporary >/tmp/t; echo shared >/dev/shm/s; mkdir /tmp/empty
"""
LOOK = r"""
cat f d/e/g .hidden ~/.config/h /tmp/t /dev/shm/s; readlink link; ls -la . | wc -l; ls -d /tmp/empty
ls -ld --full-time d f 2>/dev/null | cut -c 1-10; ls -ln f | cut -d' ' -f 3,4
cksum binary "$(printf 'a\nb \\ $(touch c) *')" ./-rf; ls -A /tmp | grep -v kakoi; id -u; env | grep MY_
"""


DISKS = {"limited disk": Limits(), "own layer": NO_DISK}
AGAIN = pytest.mark.extended("repetition: each two of these values are tried together")


@pytest.mark.parametrize(
    ("disk", "image", "lifetime"),
    [
        ("limited disk", PYTHON, "client"),
        ("limited disk", BUSYBOX, "sandbox"),
        ("own layer", PYTHON, "sandbox"),
        ("own layer", BUSYBOX, "client"),
        pytest.param("limited disk", PYTHON, "sandbox", marks=AGAIN),
        pytest.param("limited disk", BUSYBOX, "client", marks=AGAIN),
        pytest.param("own layer", PYTHON, "client", marks=AGAIN),
        pytest.param("own layer", BUSYBOX, "sandbox", marks=AGAIN),
    ],
)
async def test_forks_begin_with_all_files_and_are_independent(
    make: Make, owner: str, disk: str, image: str, lifetime: Lifetime
) -> None:
    env = {"MY_SETTING": "kept"}
    sandbox = make(image=image, limits=DISKS[disk], lifetime=lifetime, env=env)
    await output(sandbox, FILL)
    before = await output(sandbox, LOOK)
    assert before.startswith("one\ntwo\nthree\nhome\ntemporary\nshared\n/etc/passwd\n")
    forks = await forks_of(sandbox, 3)
    try:
        assert len(containers(owner)) == 4
        assert [await output(fork, LOOK) for fork in forks] == [before] * 3
        await output(forks[0], "echo changed >f; rm -r d; echo more >~/new")
        assert [await output(each, "cat f; ls -d d") for each in (sandbox, forks[1])] == [
            "one\nd\n"
        ] * 2
        await output(sandbox, "echo original >f")
        assert await output(forks[2], "cat f") == "one\n"
        await sandbox.cleanup()  # Forks do not need the one they came from.
        assert await output(forks[0], "cat f ~/new") == "changed\nmore\n"
    finally:
        await clean_up(forks)
    assert containers(owner) == []
    assert images(owner) == []


@pytest.mark.parametrize("disk", DISKS)
async def test_a_fork_can_be_forked(
    make: Make, owner: str, disk: str, caplog: pytest.LogCaptureFixture
) -> None:
    sandbox = make(limits=DISKS[disk])
    await output(sandbox, "echo 1 >f")
    (child,) = await forks_of(sandbox, 1)
    assert isinstance(child, DockerAdapter)
    await output(child, "echo 2 >>f")
    (grandchild,) = await forks_of(child, 1)
    await child.cleanup()
    assert await output(grandchild, "cat f") == "1\n2\n"
    await clean_up([grandchild])
    assert (images(owner), caplog.messages) == ([], [])


async def test_a_fork_has_the_limits_and_the_network_of_its_origin(make: Make) -> None:
    sandbox = make(limits=Limits(memory_bytes=128 * 2**20, processes=60))
    look = "cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/memory/memory.limit_in_bytes"
    look += " /sys/fs/cgroup/pids.max /sys/fs/cgroup/pids/pids.max 2>/dev/null; ls /sys/class/net"
    (fork,) = await forks_of(sandbox, 1)
    try:
        assert await output(fork, look) == await output(sandbox, look)
        assert fork.limit_report == sandbox.limit_report
    finally:
        await clean_up([fork])


async def test_a_list_of_programs_holds_in_a_fork(make: Make) -> None:
    sandbox = make(programs=("sh", "cat", "echo"), limits=NO_DISK)
    await output(sandbox, "echo 1 >f")
    try:
        (fork,) = await forks_of(sandbox, 1)
    except UnsupportedError as error:
        pytest.fail(str(error))
    try:
        assert await output(fork, "cat f") == "1\n"
        refused = await fork.run(Command(command="ls"))
        assert refused.exit_code == 126
    finally:
        await clean_up([fork])


# --- What cannot be forked -------------------------------------------------------------------


async def test_a_directory_of_this_machine_cannot_be_forked(make: Make, tmp_path: Path) -> None:
    sandbox = make(workspace=str(tmp_path))
    with pytest.raises(UnsupportedError, match="is a directory of this machine") as caught:
        await sandbox.fork(2)
    assert "workspace" in caught.value.hint


async def test_containers_of_one_command_cannot_be_forked(make: Make) -> None:
    with pytest.raises(UnsupportedError, match="last for one command"):
        await make(lifetime="command").fork(1)


@pytest.mark.parametrize("count", [0, -1, True, 1.5, "2"])
async def test_a_number_of_forks_is_at_least_one(make: Make, count: int) -> None:
    with pytest.raises(ConfigurationError, match="count"):
        await make().fork(count)


@pytest.mark.parametrize("image", [PYTHON, BUSYBOX])
async def test_a_file_that_cannot_be_read_is_an_error_and_nothing_is_left(
    make: Make, owner: str, image: str
) -> None:
    sandbox = make(image=image)
    await output(sandbox, "echo secret >/dev/shm/f; chmod 0 /dev/shm/f")
    with pytest.raises(SandboxError, match=r"could not be read: tar: .*f") as caught:
        await sandbox.fork(2)
    assert "readable" in caught.value.hint
    assert containers(owner) == [sandbox.container]
    assert images(owner) == []


async def test_a_limited_disk_is_copied_as_it_is_now_while_a_job_uses_it(make: Make) -> None:
    """In-place writes between two forks, a file that nobody can read, sparse and removed ones."""
    sandbox = make()
    await output(sandbox, "printf 'old %4096s' x >f; echo secret >g; chmod 0 g; echo 1 >gone")
    channel = await sandbox.channel()
    job = await channel.start(Command(command="while :; do echo line; sleep 0.01; done >>log"))
    for text in ("one", "two"):
        await output(sandbox, f"printf {text} | dd of=f conv=notrunc status=none; rm -f gone")
        (fork,) = await forks_of(sandbox, 1)
        try:
            assert await output(fork, "head -c 3 f; stat -c ' %s %a' f g; ls") == (
                f"{text} 4100 644\n 7 0\nf\ng\nlog\n"
            )
            assert await output(fork, "chmod 600 g; cat g; sort -u log") == "secret\nline\n"
        finally:
            await fork.cleanup()
    assert await channel.wait_job(job, wait_s=0) is None
    await channel.stop_job(job)


async def test_a_fork_that_is_given_up_leaves_nothing(make: Make, owner: str) -> None:
    sandbox = make(limits=NO_DISK)
    await output(sandbox, "echo 1 >f")
    forking = asyncio.ensure_future(sandbox.fork(2))
    while len(await asyncio.to_thread(containers, owner)) < 2:
        assert not forking.done()
    forking.cancel()
    with pytest.raises((asyncio.CancelledError, KakoiError)):
        await forking
    assert await asyncio.to_thread(containers, owner) == [sandbox.container]
    assert await asyncio.to_thread(images, owner) == []
    assert await output(sandbox, "cat f") == "1\n"


CHILD = """
import asyncio, sys
from kakoi.backends.adapter import Limits
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings, Tag
from kakoi.channel.api import Command

async def main(owner, image):
    settings = DockerSettings(image=image, limits=Limits(disk_bytes=None))
    sandbox = DockerAdapter(settings, lifetime="client", tag=Tag(owner=owner))
    await sandbox.run(Command(command="echo 1 >f"))
    forks = await sandbox.fork(2)
    print("forked", flush=True)
    await asyncio.sleep(300)

asyncio.run(main(*sys.argv[1:]))
"""


def kill_while_forked(owner: str) -> None:
    argv = [sys.executable, "-c", CHILD, owner, PYTHON]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        try:
            assert child.stdout.readline() == "forked\n"
        finally:
            child.kill()


async def test_what_a_killed_kakoi_leaves_of_its_forks_is_swept(owner: str) -> None:
    await asyncio.to_thread(kill_while_forked, owner)

    async def no_containers() -> bool:
        return await asyncio.to_thread(containers, owner) == []

    await wait_until(no_containers, "the containers are gone")
    (image,) = images(owner)
    engine = Engine(ProcessExecutor(), program="docker", owner=owner)
    owned = OwnedContainers(engine, owner=owner, clock=lambda: datetime.now(UTC))
    assert await owned.stale_images(timedelta(hours=1)) == []
    assert await owned.sweep(older_than=timedelta(hours=1), keep=()) == []
    assert await owned.stale_images(timedelta(0)) == [image]
    assert await owned.sweep(older_than=timedelta(0), keep=()) == [image]
    assert images(owner) == []


async def test_an_image_in_use_is_not_swept(make: Make, owner: str) -> None:
    (fork,) = await forks_of(make(limits=NO_DISK), 1)
    engine = Engine(ProcessExecutor(), program="docker", owner=owner)
    owned = OwnedContainers(engine, owner=owner, clock=lambda: datetime.now(UTC))
    assert await owned.stale_images(timedelta(0)) == []
    await clean_up([fork])
