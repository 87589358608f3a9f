"""Runs our helper programs that mount something for a container while it starts."""

import asyncio
import contextlib
import os
import shutil
import socket
import struct
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from kakoi.backends.docker.disk import TEMPORARY, DiskPlan, volume_path
from kakoi.backends.workspace import FileIdentity
from kakoi.errors import SandboxError
from kakoi.process.stream import Launch, ProcessStream

_PROGRAMS = str(Path(__file__).parents[2] / "process")
# Turns a failure into an error: the program's stderr as prefix → rest of each line, and as a whole.
Failure = Callable[[Mapping[str, str], str], SandboxError]


@contextlib.asynccontextmanager
async def run_mount_program(
    program: str, order: Sequence[str], *, timeout_s: float, failure: Failure
) -> AsyncIterator[None]:
    """Run a program of kakoi/process that mounts what `order` says, until the block ends.

    It reads the order, writes one byte once everything is mounted, and unmounts when we close its
    input.
    """
    argv = [sys.executable, "-I", "-S", os.path.join(_PROGRAMS, program)]
    stream = ProcessStream(Launch(argv=argv, env={"LANG": "C.UTF-8"}))
    try:
        if not await _is_mounted(stream, order, timeout_s):
            lines = dict(line.partition(": ")[::2] for line in stream.stderr.splitlines())
            raise failure(lines, stream.stderr)
        yield
    finally:
        await stream.end(grace_s=timeout_s)  # If we killed it, the mount would stay.


async def _is_mounted(stream: ProcessStream, order: Sequence[str], timeout_s: float) -> bool:
    loop = asyncio.get_running_loop()
    spec = os.fsencode("\0".join(order))
    reply = b""
    with contextlib.suppress(TimeoutError, ConnectionError):
        async with asyncio.timeout(timeout_s):
            await loop.sock_sendall(stream.socket, b"%010d" % len(spec) + spec)
            reply = await loop.sock_recv(stream.socket, 1)
            if not reply:
                await stream.wait()
    return bool(reply)


_VIEWS = "/run/kakoi/views"
_VIEW_TIMEOUT_S = 30.0


def view_path(name: str) -> str:
    """Where the view for container `name` is mounted."""
    return f"{_VIEWS}/{name}"


@contextlib.asynccontextmanager
async def lend_workspace(
    seen: FileIdentity, *, name: str, uid: int, gid: int, data_only: bool = False
) -> AsyncIterator[None]:
    """Mount a view of `seen` at `view_path(name)`, in which `uid` and `gid` stand for root.

    `data_only`: no program can be executed from there.

    A container that mounts the view keeps it. Files written there belong to root on the disk, as in
    any directory that root lets others write to: a setuid file created there is root's.
    """
    known = f"{seen.device} {seen.inode} {seen.uid} {seen.gid}"
    access = "data" if data_only else "write"
    order = [str(uid), str(gid), view_path(name), seen.path, known, access]

    def failure(report: Mapping[str, str], stderr: str) -> SandboxError:
        return SandboxError(
            report.get("staging") or f"cannot lend {seen.path} to a container",
            details={"workspace": seen.path, "stderr": stderr},
            hint=f"{report.get('fix') or 'give it to a normal user: chown -R'}; or run without a "
            "workspace",
        )

    async with run_mount_program(
        "idmapped_mount.py", order, timeout_s=_VIEW_TIMEOUT_S, failure=failure
    ):
        yield


_COPIES: Final = "/run/kakoi/copies"


def copy_path(name: str) -> str:
    """Where the copy of a workspace for container `name` is mounted while it starts."""
    return f"{_COPIES}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyMount:
    """A copy of a workspace to mount at `inside` in a container whose commands are `uid`.

    `names`: the directories in `folder`: the kernel's own, then the layers, the top one first.
    `guarded`: paths in the workspace that commands can read but not change.
    """

    workspace: FileIdentity
    folder: FileIdentity
    names: Sequence[str]
    guarded: Sequence[str]
    inside: str
    uid: int
    gid: int
    data_only: bool = False

    @property
    def fields(self) -> list[str]:
        """What overlay_mount.py reads about it."""
        seen = [
            field
            for each in (self.workspace, self.folder)
            for field in (each.path, f"{each.device} {each.inode} {each.uid} {each.gid}")
        ]
        who = [self.inside, str(self.uid), str(self.gid), "data" if self.data_only else "write"]
        return [*who, *seen, " ".join(self.names), "\n".join(self.guarded)]


@contextlib.asynccontextmanager
async def show_copy(copy: CopyMount, *, name: str) -> AsyncIterator[None]:
    """Mount it at `copy_path(name)`. A container that mounts it there keeps it."""
    async with _mounting(["show", copy_path(name), *copy.fields]):
        yield


async def replace_copy(copy: CopyMount, *, pid: int) -> None:
    """Mount it in the container of `pid`, instead of what is there of it."""
    async with _mounting(["replace", str(pid), *copy.fields]):
        pass


async def hide_copy(copy: CopyMount, *, pid: int) -> None:
    """Unmount it in the container of `pid`."""
    async with _mounting(["hide", str(pid), *copy.fields]):
        pass


def _mounting(order: Sequence[str]) -> contextlib.AbstractAsyncContextManager[None]:
    def failure(report: Mapping[str, str], stderr: str) -> SandboxError:
        return SandboxError(
            report.get("staging") or "no copy of the workspace could be mounted",
            details={"stderr": stderr},
            hint=report.get("fix") or "use bubblewrap; or turn copy_on_write off",
        )

    return run_mount_program("overlay_mount.py", order, timeout_s=_VIEW_TIMEOUT_S, failure=failure)


# Limited disks must be on a real disk, and /tmp is in memory on many machines.
DISK_FOLDER: Final = "/var/tmp"  # noqa: S108
_DISK_TIMEOUT_S: Final = 60.0
_SAVE_TIMEOUT_S: Final = 600.0
_DISK_PROGRAM: Final = "limited_disk.py"
# Where limited_disk.py looks for mkfs.ext4.
_SYSTEM_PATH: Final = "/usr/sbin:/sbin:/usr/bin"


def why_no_disk() -> str:
    """What this machine lacks to make a disk of limited size; empty if nothing."""
    if not os.path.exists("/dev/loop-control"):
        return "there are no loop devices here"
    return "" if shutil.which("mkfs.ext4", path=_SYSTEM_PATH) else "mkfs.ext4 is not installed"


@contextlib.asynccontextmanager
async def mount_disk(
    disk: DiskPlan, *, name: str, uid: int, gid: int, data_only: bool = False
) -> AsyncIterator[None]:
    """Mount a new disk while a container starts that takes it over.

    `data_only`: no program can be executed from there.
    """
    fields = [
        "\n".join([str(uid), str(gid), "1777" if top in TEMPORARY else "0755", *disk.below[top]])
        for top in disk.tops
    ]
    order = [
        "make",
        volume_path(name),
        str(disk.volume_bytes),
        DISK_FOLDER,
        "noexec" if data_only else "exec",
        disk.saved,
        *fields,
    ]
    async with run_mount_program(_DISK_PROGRAM, order, timeout_s=_DISK_TIMEOUT_S, failure=_failure):
        yield


@contextlib.asynccontextmanager
async def keep_disk(paths: Sequence[str], *, name: str, pid: int) -> AsyncIterator[None]:
    """Keep a container's disk while the container restarts. `pid`: one of its processes."""
    order = ["again", volume_path(name), str(pid), *paths]
    async with run_mount_program(_DISK_PROGRAM, order, timeout_s=_DISK_TIMEOUT_S, failure=_failure):
        yield


def can_save_disks() -> bool:
    """Whether `save_disk` works on this machine."""
    return shutil.which("e2image", path=_SYSTEM_PATH) is not None


async def save_disk(path: str, *, pid: int, file: IO[bytes]) -> str:
    """Save the disk of a container, in which nothing must run, to a file in `DISK_FOLDER`.

    `path`: a directory on that disk. `pid`: a process of the container. Returns a path for
    `DiskPlan.saved`, which is valid while the file is open.
    """
    saved = f"/proc/{os.getpid()}/fd/{file.fileno()}"
    order = ["save", saved, str(pid), path]
    async with run_mount_program(_DISK_PROGRAM, order, timeout_s=_SAVE_TIMEOUT_S, failure=_failure):
        return saved


def _failure(report: Mapping[str, str], stderr: str) -> SandboxError:
    return SandboxError(
        report.get("staging") or "no disk of limited size could be made",
        details={"stderr": stderr},
        hint=f"{report.get('fix') or 'free a loop device'}; or set `resources.disk_limit: none`",
    )


_CONNECT_S: Final = 2.0
_CREDENTIALS: Final = struct.Struct("3i")


def why_mounts_not_shared(address: str, path: str) -> str:
    """Why the engine at that socket does not see what we mount at `path`; empty if it does.

    Also empty if no engine answers: then there are no containers either.
    """
    pid = _listener(address)
    if pid is None:
        return ""
    if pid == 0:
        return "the engine runs outside of the container that we run in"
    try:
        if os.readlink(f"/proc/{pid}/ns/mnt") == os.readlink("/proc/self/ns/mnt"):
            return ""
        ours, theirs = (Path(f"/proc/{who}/mountinfo").read_text() for who in ("self", str(pid)))
    except OSError:
        return "the engine does not show which mounts it has"
    return "" if gets_our_mounts(ours, theirs, path) else "the engine has mounts of its own"


def gets_our_mounts(ours: str, theirs: str, path: str) -> bool:
    """Whether mounts at `path` here appear there. `ours`, `theirs`: text of each mountinfo."""
    shared = {word for word in _propagation(ours, path) if word.startswith("shared:")}
    there = {word.replace("master:", "shared:") for word in _propagation(theirs, path)}
    return bool(shared & there)


def _propagation(mountinfo: str, path: str) -> list[str]:
    """The propagation fields (`shared:N`, `master:N`) of the mount that contains `path`."""
    best, words = "", []
    for line in mountinfo.splitlines():
        fields = line.partition(" - ")[0].split(" ")
        top = fields[4]
        # If two mounts are at one path, the later one is on top.
        if len(top) >= len(best) and f"{path}/".startswith(f"{top.rstrip('/')}/"):
            best, words = top, fields[6:]
    return words


def _listener(address: str) -> int | None:
    """The pid of the listening process; 0 if we cannot see it from here, None if there is none."""
    try:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(_CONNECT_S)
            line.connect(address)
            peer = line.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    except OSError:
        return None
    return int(_CREDENTIALS.unpack(peer)[0])
