"""Copies the files of one container to new ones.

The engine can make an image of what a container wrote to its own layer. It cannot do so with what
is mounted there: directories in memory, disks of limited size and volumes. Their files are sent
from container to container, by `tar` on both sides, as the user that commands have.
"""

import asyncio
import contextlib
import json
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar, cast

from kakoi._support.asyncio import finish
from kakoi.backends.docker.arguments import OUTLET_FOLDER, RESOLV_CONF_PATH, exec_args
from kakoi.backends.docker.checks import parse_mounts, read_text
from kakoi.backends.docker.container import Container
from kakoi.backends.docker.disk import volume_path
from kakoi.backends.docker.engine import Engine, Image
from kakoi.backends.docker.errors import explain
from kakoi.backends.docker.mounts import copy_path
from kakoi.channel.api import Channel
from kakoi.errors import KakoiError, SandboxError, UnsupportedError
from kakoi.process.stream import Launch, ProcessStream

FORK_LABEL: Final = "kakoi.fork"
_T = TypeVar("_T")
_AT_ONCE: Final = 8
_LOG = logging.getLogger(__name__)
_COMMIT_S: Final = 600.0
COPY_S: Final = 1800.0
CHUNK_BYTES: Final = 256 * 1024
_NO_TAR: Final = 120
_HAS_CHILDREN: Final = "dependent child images"
_MOUNTS: Final = "/proc/self/mountinfo"
# What the engine itself mounts in every container.
_OF_THE_ENGINE: Final = ("/etc/hosts", "/etc/hostname", RESOLV_CONF_PATH, "/proc", "/sys", "/dev")
# A directory of another user cannot get its mode again, so its entries are sent and not itself.
# What the runner keeps in a temporary directory is not sent: it belongs to the runner there. The
# first argument is a path that is not sent either, with the directories that the engine made above.
SEND: Final = f"""
command -v tar >/dev/null || exit {_NO_TAR}
cd / || exit
skipped=$1
shift
count=$#
for top; do
    [ -w "$top" ] || continue
    mine=; [ -O "$top" ] && mine=yes
    case $skipped in "$top"/*) mine= ;; esac
    for each in "$top"/.kakoi-*; do [ -e "$each" ] && mine=; done
    if [ "$mine" ]; then set -- "$@" ".$top"; continue; fi
    for each in "$top"/* "$top"/.[!.]* "$top"/..?*; do
        case $each in "$top"/.kakoi-*) continue ;; esac
        case $skipped/ in "$each"/*) continue ;; esac
        if [ -e "$each" ] || [ -L "$each" ]; then set -- "$@" ".$each"; fi
    done
done
shift "$count"
[ $# = 0 ] && exit
tar -cf - "$@"
status=$?
# With GNU tar, 1 means that a file changed meanwhile.
[ $status = 1 ] && tar --version 2>/dev/null | grep -q GNU && status=0
exit $status
"""
RECEIVE: Final = "cd / && exec tar -xpf -"
_FORGET: Final = "rm -rf /tmp/.kakoi-* /var/tmp/.kakoi-* /dev/shm/.kakoi-* /run/.kakoi-*; exit 0"

Launcher = Callable[[Container, Sequence[str]], Launch]


class ForkImage:
    """An image that forks share. It is removed with the last of them. `users`: how many there are.

    `id`: empty until it was made.
    """

    def __init__(self, engine: Engine, *, users: int) -> None:
        self.id = ""
        self._engine = engine
        self._users = users

    async def make(self, container: Container, image: Image) -> None:
        """Make it of what a container of `image` wrote to its own layer; freezes it meanwhile."""
        # Otherwise the image would have the user of the container's first process.
        changes = [f"USER {image.user or '0'}", f"LABEL {FORK_LABEL}=yes"]
        words = [word for change in changes for word in ("--change", change)]
        args, doing = ["commit", *words, container.name], "making an image of a container"
        result = await self._engine.call(args, doing=doing, timeout_s=_COMMIT_S)
        if result.exit_code != 0:
            program = self._engine.program
            raise explain(result.stderr, program=program, doing=doing, about=container.name)
        self.id = result.stdout.strip()

    async def release(self) -> None:
        """One fork is gone."""
        self._users -= 1
        if self._users == 0:
            await self.remove()

    async def remove(self) -> None:
        """Remove it, if it was made. Failures are logged, never raised."""
        if self.id:
            try:
                await remove_image(self._engine, self.id)
            except KakoiError as error:
                # Docker removes it with the last image that was made of it: a fork of a fork.
                if _HAS_CHILDREN not in str(error):
                    _LOG.warning("the image %s could not be removed: %s", self.id, error)


async def remove_image(engine: Engine, id: str) -> None:
    """Remove an image of forks; raises SandboxError if that fails, such as while it is in use."""
    # Podman fails if it cannot also remove the image that this one was made of.
    only = ["--no-prune"] if engine.program == "podman" else []
    await engine.must(["image", "rm", *only, id], doing="removing an image", about=id)


async def check_forkable(engine: Engine, container: Container) -> None:
    """Raise UnsupportedError if a directory of this machine can be written to in there."""
    args = ["container", "inspect", "--format", "{{json .Mounts}}", container.name]
    answer = await engine.must(args, doing="looking at a container", about=container.name)
    for mount in json.loads(answer) or ():
        source, target = str(mount.get("Source")), str(mount.get("Destination"))
        ours = (volume_path(""), copy_path(""))
        is_ours = target in (OUTLET_FOLDER, RESOLV_CONF_PATH) or source.startswith(ours)
        if mount.get("Type") == "bind" and not is_ours:
            raise UnsupportedError(
                f"{engine.program} cannot fork this sandbox: {target} is a directory of this "
                "machine, which the forks would share",
                hint="open it without `workspace`, or with copy_on_write=True",
            )


async def mounted_directories(channel: Channel) -> tuple[list[str], bool]:
    """The directories in a container that no image of it would include, without those below others.

    The second value says whether its own layer can be written to.
    """
    mounts = parse_mounts(await read_text(channel, _MOUNTS) or "")
    found: list[str] = []
    for path, mount in sorted(mounts.items()):
        inside = [path == top or path.startswith(f"{top}/") for top in (*_OF_THE_ENGINE, *found)]
        is_shared_memory = path == "/dev/shm"  # noqa: S108 - it is the container's own
        if path == "/" or path == OUTLET_FOLDER or mount.read_only:
            continue
        if is_shared_memory or not any(inside):
            found.append(path)
    root = mounts.get("/")
    return found, root is None or not root.read_only


async def forget_runner(engine: Engine, container: Container) -> None:
    """Remove what the runner of another container left in the image of this one."""
    args = exec_args(container.name, container.user, ["sh", "-c", _FORGET])
    await engine.must(args, doing="preparing a container", about=container.name)


async def copy_directories(
    source: Container,
    targets: Sequence[Container],
    paths: Sequence[str],
    launcher: Launcher,
    *,
    skipped: str = "",
) -> None:
    """Copy these directories, each to its own path, as far as commands can write to them.

    `skipped`: the path of a copied workspace, which the targets have already.

    A file that a command writes to at this time may arrive in part. Raises SandboxError if a file
    cannot be read or written.
    """
    paths = [path for path in paths if path != skipped]
    if not paths:
        return
    async with contextlib.AsyncExitStack() as stack:
        sending = start_program(stack, launcher(source, ["sh", "-c", SEND, "sh", skipped, *paths]))
        receiving: list[ProcessStream] = []
        try:
            async with asyncio.timeout(COPY_S):
                loop = asyncio.get_running_loop()
                while data := await loop.sock_recv(sending.socket, CHUNK_BYTES):
                    if not receiving:
                        argv = ["sh", "-c", RECEIVE]
                        receiving = [start_program(stack, launcher(each, argv)) for each in targets]
                    await asyncio.gather(*(_send(each, data) for each in receiving))
                await check_copied(sending, source, "read")
                for stream, target in zip(receiving, targets, strict=bool(receiving)):
                    stream.socket.shutdown(socket.SHUT_WR)
                    await check_copied(stream, target, "written")
        except TimeoutError:
            raise SandboxError(f"the files were not copied within {COPY_S:g} s") from None


def start_program(stack: contextlib.AsyncExitStack, launch: Launch) -> ProcessStream:
    """Start a program that copies files; it ends with the stack at the latest."""
    stream = ProcessStream(launch)
    stack.push_async_callback(_end, stream)
    return stream


async def _end(stream: ProcessStream) -> None:
    await finish(stream.end(grace_s=0))


async def _send(stream: ProcessStream, data: bytes) -> None:
    with contextlib.suppress(ConnectionError):  # It has exited, and `check_copied` says why.
        await asyncio.get_running_loop().sock_sendall(stream.socket, data)


async def check_copied(stream: ProcessStream, container: Container, doing: str) -> None:
    """Wait for such a program. Raises SandboxError if it failed."""
    status = await stream.wait()
    if status == _NO_TAR:
        raise UnsupportedError(
            "the files of this sandbox cannot be copied: its image has no `tar`",
            hint="use an image with tar; or turn off the disk limit, so that nothing is mounted",
        )
    if status != 0:
        last = (stream.stderr.strip().splitlines() or ["no output"])[0]
        raise SandboxError(
            f"the files of the sandbox could not be {doing}: {last}",
            details={"container": container.name, "stderr": stream.stderr},
            hint="every file must be readable for the user of the sandbox",
        )


async def all_of(calls: Iterable[Awaitable[_T]]) -> list[_T]:
    """Await all calls, a few at a time and each to its end; raises the first error."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def one(call: Awaitable[_T]) -> _T:
        async with turns:
            return await call

    done = await asyncio.gather(*map(one, calls), return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException):
            raise each
    return cast("list[_T]", done)
