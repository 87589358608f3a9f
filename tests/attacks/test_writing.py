"""Writing where it may not: the system, the kernel's settings, devices, the machine's folders."""

import os
from pathlib import Path

import pytest

from tests.attacks.conftest import Place

pytestmark = pytest.mark.anyio

FOLDERS = """/ /bin /boot /dev /dev/shm /etc /etc/cron.d /home /lib /mnt /opt /root /run /srv /sys
    /tmp /usr/bin /usr/lib /usr/local/bin /var /var/lib /var/spool/cron /var/tmp""".split()

PLANT = """
import os, sys
mark, *folders = sys.argv[1:]
for folder in folders:
    for way in (folder, "/proc/self/root" + folder, "/proc/1/root" + folder, "./../" + folder):
        for make in (
            lambda path: open(path, "w").close(),
            lambda path: os.mkdir(path + ".d"),
            lambda path: os.symlink("/etc/passwd", path + ".l"),
            lambda path: os.mkfifo(path + ".p"),
            lambda path: os.link("/etc/hostname", path + ".h"),
        ):
            try:
                make(f"{way}/{mark}")
            except OSError:
                pass
"""


async def test_nothing_is_planted_on_the_machine(place: Place, mark: str, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o777)  # noqa: S103 - so that modes protect nothing
    folders = [*FOLDERS, str(Path.home()), str(tmp_path), str(place.workspace.parent)]
    await place.python(PLANT, mark, *folders)
    assert [path for folder in folders for path in take_away(folder, mark)] == []


def take_away(folder: str, mark: str) -> list[str]:
    """What has come into the folder; a wall that fails must not cost the machine its order."""
    if not os.path.isdir(folder):
        return []
    paths = [os.path.join(folder, name) for name in os.listdir(folder) if name.startswith(mark)]
    for path in paths:
        (os.rmdir if path.endswith(".d") else os.unlink)(path)
    return paths


SWITCHES = """/proc/sys/kernel/core_pattern /proc/sys/kernel/modprobe /proc/sys/vm/overcommit_memory
    /proc/sys/kernel/hostname /proc/sys/net/ipv4/ip_forward /proc/sysrq-trigger
    /proc/sys/fs/binfmt_misc/register /sys/kernel/uevent_helper /sys/kernel/mm/ksm/run
    /sys/power/state /sys/fs/cgroup/release_agent /sys/fs/cgroup/memory/release_agent
    /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/cgroup.procs
    /proc/1/oom_score_adj /proc/1/mem /proc/acpi/wakeup /proc/irq/0/smp_affinity
    /proc/bus/pci/00/00.0 /dev/mem /dev/kvm /dev/fuse /dev/net/tun /dev/loop-control
    /dev/mapper/control /dev/vda /dev/sda /dev/nvme0n1""".split()


async def test_no_switch_of_the_kernel_and_no_device_opens_for_writing(place: Place) -> None:
    """Opened only: should one open, nothing has happened yet."""
    text = """
    import os, sys
    for path in sys.argv[1:]:
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))
            print(path)
        except OSError:
            pass
    """
    assert await place.python(text, *SWITCHES) == []


async def test_no_device_is_made(place: Place) -> None:
    text = """
    import os, stat
    for folder in (".", "/tmp", os.path.expanduser("~"), "/dev/shm"):
        for name, kind, device in (
            ("disk", stat.S_IFBLK, (254, 0)), ("memory", stat.S_IFCHR, (1, 1)),
            ("loop", stat.S_IFBLK, (7, 0)), ("null", stat.S_IFCHR, (1, 3)),
        ):
            path = f"{folder}/{name}"
            try:
                os.mknod(path, kind | 0o666, os.makedev(*device))
                os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
                print(path)
            except OSError:
                pass
    """
    assert await place.python(text) == []


async def test_a_device_that_is_in_the_workspace_already_does_not_open(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can put one there")
    device = place.workspace / "planted"
    os.mknod(device, 0o666 | 0o020000, os.makedev(1, 3))
    device.chmod(0o666)
    try:
        result = await place.bash(": > ./planted")
    finally:
        device.unlink()
    assert result.exit_code != 0


async def test_what_is_in_the_workspace_stays_its_owners(place: Place) -> None:
    """No file of another owner, no set-user bit that works for somebody else."""
    await place.bash(
        "cp /bin/sh s; chmod 6755 s; chown 0:0 s; chgrp 0 s; setcap cap_net_raw+ep s; touch t"
    )
    ours = place.workspace.stat()
    for name in ("s", "t"):
        found = (place.workspace / name).stat()
        assert found.st_uid == ours.st_uid
    setuid = (place.workspace / "s").stat().st_mode & 0o6000
    assert not (setuid and ours.st_uid == 0)
    assert "security.capability" not in os.listxattr(place.workspace / "s")
