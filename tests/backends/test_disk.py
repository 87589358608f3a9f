"""Disks of limited size: gone with their container, whoever is killed; kept when it is restarted."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kakoi.backends.adapter import Limits
from kakoi.backends.docker import mounts as mounting
from kakoi.backends.docker.adapter import DockerAdapter
from kakoi.backends.docker.arguments import DockerSettings, Tag
from kakoi.backends.docker.checks import MountInfo, parse_mounts
from kakoi.backends.docker.disk import DiskPlan, volume_path
from kakoi.backends.docker.mounts import gets_our_mounts, mount_disk, why_mounts_not_shared
from kakoi.channel.api import MIB, Command
from kakoi.errors import SandboxError
from kakoi.process.stream import ProcessStream
from tests.backends.boxes import loops, needs_root
from tests.cli.conftest import has_image, need
from tests.tasks.hosting import wait_until

pytestmark = [pytest.mark.anyio, needs_root]
IMAGE = "kakoi-test:base"
LIMITS = Limits(disk_bytes=32 * MIB)
SMALL = DiskPlan(volume_bytes=8 * MIB, tops=("/tmp", "/w"), below={"/tmp": [], "/w": ["a", "a/b"]})


def mounts() -> str:
    return Path("/proc/self/mountinfo").read_text()


def is_there(path: str) -> bool:
    return Path(path).exists()


async def until_gone(device: str, file: str) -> None:
    await asyncio.to_thread(wait_until, lambda: loops().get(device) != file)


@pytest.fixture
async def sandbox() -> AsyncIterator[DockerAdapter]:
    need("docker", is_there=await asyncio.to_thread(has_image, IMAGE))
    adapter = DockerAdapter(DockerSettings(image=IMAGE, limits=LIMITS), lifetime="sandbox")
    try:
        yield adapter
    finally:
        await adapter.cleanup()


async def device_of(sandbox: DockerAdapter) -> tuple[str, str]:
    """The loop device of a sandbox, and its file."""
    said = await sandbox.run(Command(command="df -P /workspace | tail -n 1"))
    found = re.match(r"/dev/(loop\d+) ", said.stdout)
    assert found is not None
    return found[1], loops()[found[1]]


# --- Who sees it -------------------------------------------------------------------------------

ROOT_SHARED = "21 1 8:1 / / rw shared:1 - ext4 /dev/sda rw"
RUN_SHARED = "22 21 0:5 / /run rw shared:9 - tmpfs tmpfs rw"


@pytest.mark.parametrize(
    ("theirs", "is_seen"),
    [
        ([ROOT_SHARED, RUN_SHARED], True),
        (
            ["31 1 8:1 / / rw master:1 - ext4 x rw", "32 31 0:5 / /run rw master:9 - tmpfs x rw"],
            True,
        ),
        (["31 1 8:1 / / rw master:1 - ext4 x rw", "32 31 0:5 / /run rw - tmpfs x rw"], False),
        (["31 1 8:1 / / rw - ext4 x rw"], False),
        # Another one at the same place, above the one that would get it.
        ([ROOT_SHARED, RUN_SHARED, "33 21 0:6 / /run rw shared:77 - tmpfs x rw"], False),
        # What begins alike is another place.
        ([ROOT_SHARED, RUN_SHARED, "33 22 0:6 / /run/kak rw shared:77 - tmpfs x rw"], True),
    ],
)
def test_what_we_mount_is_seen_where_mounts_are_shared(theirs: list[str], *, is_seen: bool) -> None:
    ours = "\n".join([ROOT_SHARED, RUN_SHARED])
    assert gets_our_mounts(ours, "\n".join(theirs), "/run/kakoi/volumes") is is_seen


def test_an_engine_beside_us_sees_what_we_mount(tmp_path: Path) -> None:
    address = str(tmp_path / "socket")
    assert why_mounts_not_shared(address, "/run") == ""  # Nobody is there.
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(address)
        line.listen()
        assert why_mounts_not_shared(address, "/run") == ""  # We are there ourselves.


# --- Mounted for a moment ----------------------------------------------------------------------


async def test_a_disk_is_there_while_it_is_needed_and_has_no_name() -> None:
    async with mount_disk(SMALL, name="test-there", uid=65533, gid=65533):
        place = Path(volume_path("test-there"))
        device = parse_mounts(mounts())[str(place)].loop
        file = loops()[device]
        assert file.endswith("(deleted)")
        assert (place / "1/a/b").stat().st_uid == 65533
        assert (place / "0").stat().st_mode & 0o7777 == 0o1777
        assert os.statvfs(place).f_blocks * os.statvfs(place).f_frsize <= 8 * MIB
        assert place.parent.stat().st_mode & 0o077 == 0
    assert "test-there" not in mounts()
    assert not is_there(str(place))
    await until_gone(device, file)


async def test_a_disk_is_removed_with_its_owner() -> None:
    code = (
        "import asyncio; from tests.backends.test_disk import *\n"
        "async def main():\n"
        "    async with mount_disk(SMALL, name='test-killed', uid=1, gid=1):\n"
        "        print('up', flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]
    )
    assert child.stdout is not None
    async with asyncio.timeout(60):
        assert await child.stdout.readline() == b"up\n"
    device = parse_mounts(mounts())[volume_path("test-killed")].loop
    file = loops()[device]
    child.send_signal(signal.SIGKILL)
    await child.wait()
    await until_gone(device, file)
    assert "test-killed" not in mounts()


async def test_what_a_killed_helper_leaves_goes_with_the_next_disk(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams: list[ProcessStream] = []

    class Remembered(ProcessStream):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type]
            streams.append(self)

    monkeypatch.setattr(mounting, "ProcessStream", Remembered)
    async with mount_disk(SMALL, name="test-left", uid=1, gid=1):
        device = parse_mounts(mounts())[volume_path("test-left")].loop
        file = loops()[device]
        os.kill(streams[0].pid, signal.SIGKILL)
    assert "test-left" in mounts()
    async with mount_disk(SMALL, name="test-next", uid=1, gid=1):
        assert "test-left" not in mounts()
    await until_gone(device, file)


async def test_a_disk_that_cannot_be_made_says_why_and_leaves_nothing() -> None:
    # ext4 cannot be so small.
    tiny = DiskPlan(volume_bytes=4096, tops=("/tmp",), below={"/tmp": []})
    with pytest.raises(
        SandboxError, match=r"no disk of limited size can be created: .*mkfs"
    ) as caught:
        async with mount_disk(tiny, name="test-tiny", uid=1, gid=1):
            raise AssertionError
    assert "disk_limit: none" in caught.value.hint
    assert "test-tiny" not in mounts()
    assert not is_there(volume_path("test-tiny"))


# --- In a container ------------------------------------------------------------------------------


async def test_the_disk_goes_with_its_container(sandbox: DockerAdapter) -> None:
    device, file = await device_of(sandbox)
    name = sandbox.container
    assert name is not None
    assert name not in mounts()
    await sandbox.cleanup()
    await until_gone(device, file)


async def test_what_the_image_has_in_its_home_is_there_and_can_be_changed(
    sandbox: DockerAdapter,
) -> None:
    said = await sandbox.run(Command(command="cat ~/.profile && echo more >> ~/.profile && pwd"))
    assert said.ok, said
    assert said.stdout.endswith("/workspace\n")
    assert len(said.stdout) > 100


async def test_a_restart_keeps_the_files_and_the_limit(sandbox: DockerAdapter) -> None:
    await sandbox.run(Command(command="echo kept > /workspace/file; echo home > ~/file"))
    before = await device_of(sandbox)
    assert sandbox._container is not None
    await sandbox._container.restart()
    await sandbox.close()
    said = await sandbox.run(Command(command="cat /workspace/file ~/file"))
    assert said.stdout == "kept\nhome\n"
    assert await device_of(sandbox) == before
    full = await sandbox.run(Command(command="head -c 40000000 /dev/zero > /workspace/fill"))
    assert (full.exit_code, full.disk_full) == (1, "/workspace")
    name = sandbox.container
    assert name is not None
    assert name not in mounts()


async def test_the_volumes_of_an_image_are_on_the_disk_too() -> None:
    need("docker", is_there=await asyncio.to_thread(has_image, IMAGE))
    image = f"kakoi-test-volume-{os.getpid()}"
    make = f"docker create --name {image} {IMAGE} true && docker commit -c 'VOLUME /srv' {image} {image}"
    await asyncio.to_thread(subprocess.run, ["sh", "-ec", make], check=True, capture_output=True)
    adapter = DockerAdapter(DockerSettings(image=image, limits=LIMITS), lifetime="sandbox")
    try:
        said = await adapter.run(Command(command="df -P /srv | tail -n 1"))
        assert said.stdout.startswith("/dev/loop")
    finally:
        await adapter.cleanup()
        gone = f"docker rm {image}; docker rmi {image}"
        await asyncio.to_thread(subprocess.run, ["sh", "-c", gone], capture_output=True)


async def test_a_container_that_stopped_is_not_promised_back() -> None:
    need("docker", is_there=await asyncio.to_thread(has_image, IMAGE))
    tag = Tag(name=f"kakoi-test-stopped-{os.getpid()}")
    adapter = DockerAdapter(DockerSettings(image=IMAGE, limits=LIMITS), lifetime="sandbox", tag=tag)
    try:
        await adapter.channel()
        stop = ["docker", "kill", tag.name]
        await asyncio.to_thread(subprocess.run, stop, check=True, capture_output=True)
        with pytest.raises(SandboxError, match="is no longer running") as caught:
            await adapter.channel()
        assert caught.value.hint == "its files are lost; create a new sandbox"
    finally:
        await adapter.cleanup()


# --- What a container says ---------------------------------------------------------------------


def test_mounts_are_read_with_their_sizes_and_the_upper_one_counts() -> None:
    text = (
        "1 0 0:1 / / ro,relatime - overlay overlay rw,lowerdir=/l\n"
        "2 1 0:2 / /tmp rw,nosuid - tmpfs tmpfs rw,size=1024k,nr_inodes=9\n"
        "3 1 7:0 /1 /a\\040b rw - ext4 /dev/loop3 rw\n"
        "4 1 0:4 / /b rw - tmpfs tmpfs rw\n"
        "5 4 0:5 / /b rw master:1 - tmpfs tmpfs rw,size=4k\n"
    )
    assert parse_mounts(text) == {
        "/": MountInfo(read_only=True),
        "/tmp": MountInfo(tmpfs_bytes=MIB),
        "/a b": MountInfo(loop="loop3"),
        "/b": MountInfo(tmpfs_bytes=4096),
    }
