"""A disk of limited size, mounted while a container is being started that takes it over."""

import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Final

from kakoi.errors import SandboxError
from kakoi.sandbox.disk import TEMPORARY, Disk, volume_path
from kakoi.sandbox.mounting import mounting

# On a disk, as that is what it stands for; /tmp is in memory on many machines.
_FOLDER: Final = "/var/tmp"  # noqa: S108
_TIMEOUT_S: Final = 60.0
# Where volume.py looks.
_PROGRAMS: Final = "/usr/sbin:/sbin:/usr/bin"


def why_not_made() -> str:
    """What this machine lacks for such a disk; empty if nothing."""
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices here"
    return "" if shutil.which("mkfs.ext4", path=_PROGRAMS) else "mkfs.ext4 is not installed"


@contextlib.asynccontextmanager
async def mounted(
    disk: Disk, *, name: str, uid: int, gid: int, data_only: bool = False
) -> AsyncIterator[None]:
    """Have a new disk mounted, while a container is made that takes it over.

    `data_only`: no program is executed from there.
    """
    fields = [
        "\n".join([str(uid), str(gid), "1777" if top in TEMPORARY else "0755", *disk.below[top]])
        for top in disk.tops
    ]
    order = [
        "make",
        volume_path(name),
        str(disk.volume_bytes),
        _FOLDER,
        "noexec" if data_only else "exec",
        *fields,
    ]
    async with mounting("volume.py", order, timeout_s=_TIMEOUT_S, failure=_failure):
        yield


@contextlib.asynccontextmanager
async def held(paths: Sequence[str], *, name: str, pid: int) -> AsyncIterator[None]:
    """Keep the disk of a container, of which `pid` is a process, while that is started anew."""
    order = ["again", volume_path(name), str(pid), *paths]
    async with mounting("volume.py", order, timeout_s=_TIMEOUT_S, failure=_failure):
        yield


def _failure(said: Mapping[str, str], stderr: str) -> SandboxError:
    return SandboxError(
        said.get("staging") or "no disk of limited size could be made",
        details={"stderr": stderr},
        hint=f"{said.get('fix') or 'free a loop device'}; or set `resources.disk_limit: none`",
    )
