"""The checkpoints of a container's workspace: archives of its files, on this machine.

They are made and unpacked inside, by `tar`, as the user that commands have. Here they are only
stored, in a directory that nobody else can read.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from kakoi._support.files import remove_tree
from kakoi.backends.docker.container import Container
from kakoi.backends.docker.fork import (
    CHUNK_BYTES,
    COPY_S,
    RECEIVE,
    SEND,
    Launcher,
    check_copied,
    start_program,
)
from kakoi.backends.locked_folders import LockedFolder, sweep
from kakoi.errors import ConfigurationError, SandboxError

_PREFIX: Final = "kakoi-checkpoints-"
# What the runner keeps there is not part of the workspace. A command may have shut directories.
_CLEAR: Final = """
cd "$1" || exit
chmod -R u+rwX . 2>/dev/null
for each in ./* ./.[!.]* ./..?*; do
    case $each in ./.kakoi-*) continue ;; esac
    if [ -e "$each" ] || [ -L "$each" ]; then rm -rf -- "$each" || exit; fi
done
"""


class Checkpoints:
    """The checkpoints of one container, the oldest first. `workspace`: its path inside."""

    def __init__(self, workspace: str) -> None:
        self._workspace = workspace
        self._folder: LockedFolder | None = None
        self._files: dict[str, Path] = {}
        self._count = 0

    @property
    def names(self) -> list[str]:
        """Their names."""
        return list(self._files)

    def check_new(self, name: str) -> None:
        """Raise if there cannot be a new checkpoint of this name."""
        from kakoi.overlay.store import MOST_CHECKPOINTS, check_checkpoint_name

        check_checkpoint_name(name)
        if name in self._files:
            raise ConfigurationError(
                f"checkpoint `{name}` already exists", hint="choose another name"
            )
        if len(self._files) >= MOST_CHECKPOINTS:
            raise SandboxError(
                f"there are already {MOST_CHECKPOINTS} checkpoints, which is the maximum",
                hint="`rollback` removes the later ones",
            )

    def check_known(self, name: str) -> None:
        """Raise if there is no checkpoint of this name."""
        if name not in self._files:
            raise ConfigurationError(
                f"checkpoint {str(name)[:80]!r} not found",
                hint=f"known checkpoints: {', '.join(self._files) or 'none'}",
            )

    async def save(self, name: str, container: Container, launcher: Launcher) -> None:
        """Save the files of the workspace. One that is written to meanwhile may be saved in part.

        Raises SandboxError if a file cannot be read.
        """
        path = await asyncio.to_thread(self._new_file)
        try:
            async with contextlib.AsyncExitStack() as stack, _in_time():
                argv = ["sh", "-c", SEND, "sh", "", self._workspace]
                stream = start_program(stack, launcher(container, argv))
                file = stack.enter_context(await asyncio.to_thread(path.open, "wb"))
                loop = asyncio.get_running_loop()
                while data := await loop.sock_recv(stream.socket, CHUNK_BYTES):
                    await asyncio.to_thread(file.write, data)
                await check_copied(stream, container, "read")
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        self._files[name] = path

    async def restore(self, name: str, container: Container, launcher: Launcher) -> None:
        """Give the workspace the files of a checkpoint, and forget later ones.

        Nothing in the container may write to it meanwhile.
        """
        async with contextlib.AsyncExitStack() as stack, _in_time():
            argv = ["sh", "-c", _CLEAR, "sh", self._workspace]
            clearing = start_program(stack, launcher(container, argv))
            await check_copied(clearing, container, "removed")
            path = self._files[name]
            if path.stat().st_size:
                stream = start_program(stack, launcher(container, ["sh", "-c", RECEIVE]))
                file = stack.enter_context(await asyncio.to_thread(path.open, "rb"))
                loop = asyncio.get_running_loop()
                with contextlib.suppress(ConnectionError):  # It has exited; below we learn why.
                    while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
                        await loop.sock_sendall(stream.socket, data)
                    stream.socket.shutdown(socket.SHUT_WR)
                await check_copied(stream, container, "written")
        for later in self.names[self.names.index(name) + 1 :]:
            self._files.pop(later).unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove all of them."""
        folder, self._folder = self._folder, None
        self._files.clear()
        if folder is not None:
            with contextlib.suppress(OSError):
                remove_tree(Path(folder.path))
            folder.release()

    def _new_file(self) -> Path:
        if self._folder is None:
            sweep(_PREFIX, remove_tree)
            self._folder = LockedFolder(_PREFIX)
        self._count += 1
        return Path(self._folder.path) / f"{self._count}.tar"


@contextlib.asynccontextmanager
async def _in_time() -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(COPY_S):
            yield
    except TimeoutError:
        raise SandboxError(f"the files were not copied within {COPY_S:g} s") from None
