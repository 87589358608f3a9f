"""The only way out of a sandbox without a network, and how it comes into our hands.

A directory of ours is seen inside. The runner opens a socket on the loopback of the sandbox, and
hands it over at a socket in that directory; from then on we accept there ourselves. So no program
inside passes bytes on, and none needs to be trusted with that.
"""

import array
import asyncio
import contextlib
import os
import secrets
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Protocol

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.runner.channel import RunnerChannel
from kakoi.runner.commands import Channel
from kakoi.sandbox.adapter import PROXIED
from kakoi.sandbox.own_folders import OwnFolder, is_ours, sweep

_PATIENCE_S: Final = 10.0
_PREFIX: Final = "kakoi-way-"
_FOLDER: Final = "way"
_NOTE: Final = "note"
_LOOKS: Final = 64
_MESSAGE_BYTES: Final = 64


class Served(Protocol):
    """A socket that is served until it is closed."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Outlet:
    """Who serves what comes out of a sandbox, and the variables that tell programs of it."""

    serve: Callable[[socket.socket], Served]
    env: Mapping[str, str] = field(default_factory=dict)


def checked_outlet(network: str | None, outlet: Outlet | None) -> Outlet | None:
    """The outlet that a network needs; ConfigurationError if there is none."""
    if network not in PROXIED:
        return None
    if outlet is None:
        raise ConfigurationError(
            f"network is `{network}`, and nobody is there to serve it",
            hint="open the sandbox by its settings (kakoi.config.opening), or give it an `outlet`",
        )
    return outlet


class Handover:
    """The directory. `folder` is what the sandbox is to see; nobody else here can enter it.

    It is ours while we live: what one that was killed has left is swept by the next. `keep` has it
    stay for as long as its container does, for whoever attaches to that (`adopt`).
    """

    def __init__(self) -> None:
        sweep(_PREFIX, _remove, is_kept=_has_note)
        self._own: OwnFolder | None = OwnFolder(_PREFIX)
        self._private = self._own.path
        self.folder = os.path.join(self._private, _FOLDER)
        os.mkdir(self.folder)
        # Commands may be another user than we are.
        os.chmod(self.folder, 0o755)  # noqa: S103 - what is above it is private

    @classmethod
    def adopt(cls, folder: str) -> "Handover":
        """The one of a container that somebody else has made and kept; SandboxError if it is gone.

        `folder`: as it was mounted there.
        """
        private, name = os.path.split(folder)
        if name != _FOLDER or not is_ours(private, _PREFIX) or not os.path.isdir(folder):
            raise SandboxError(
                "the way out of this container is lost: its directory on this machine is gone",
                details={"directory": folder},
                hint="make the container anew; for a task, prepare it again",
            )
        found = cls.__new__(cls)
        found._private, found._own, found.folder = private, None, folder
        return found

    @property
    def note(self) -> str:
        """What was written down for whoever attaches; empty if nothing was."""
        try:
            return Path(self._private, _NOTE).read_text("utf-8")
        except FileNotFoundError:
            return ""

    def keep(self, note: str) -> None:
        """From now on it stays when we go, with this note, which the sandbox does not see."""
        coming = Path(self._private, f"{_NOTE}.{secrets.token_hex(4)}")
        coming.write_text(note, "utf-8")
        coming.replace(Path(self._private, _NOTE))
        self._let_go()

    async def take(self, channel: Channel, outlet: Outlet, *, inside: str) -> Served:
        """Have the runner hand its socket over, and have it served.

        `inside`: where it sees `folder`. SandboxError: it can't, and there is no way out.
        """
        if not isinstance(channel, RunnerChannel):
            raise SandboxError(
                "the network of this sandbox cannot be limited: there is no python3 in its image",
                hint="use an image with python3, or no network: `none`, for tasks"
                " external_access: false",
            )
        name = secrets.token_hex(4)  # Several sandboxes may see the same directory.
        path = os.path.join(self.folder, name)
        meeting = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            meeting.bind(path)
            os.chmod(path, 0o666)  # noqa: S103 - what is above it is private
            meeting.setblocking(False)
            listener = await _receive(channel, meeting, f"{inside}/{name}")
            try:
                return outlet.serve(listener)
            except BaseException:
                listener.close()
                raise
        except (OSError, TimeoutError) as error:
            raise unreachable(
                f"its runner does not reach us: {str(error) or 'no answer'}"
            ) from error
        finally:
            meeting.close()
            with contextlib.suppress(OSError):
                os.unlink(path)

    def close(self) -> None:
        """Take the directory away."""
        _remove(self._private)
        self._let_go()

    def _let_go(self) -> None:
        if self._own is not None:
            self._own.let_go()


def discard_kept(folder: str) -> None:
    """Take away the directory that a container has left which is gone."""
    private, name = os.path.split(folder)
    if name == _FOLDER and is_ours(private, _PREFIX):
        _remove(private)


def _remove(private: str) -> None:
    shutil.rmtree(private, ignore_errors=True)


def _has_note(private: str) -> bool:
    return os.path.exists(os.path.join(private, _NOTE))


def unreachable(why: str) -> SandboxError:
    """The error for a sandbox that cannot hand its socket over."""
    return SandboxError(
        f"the network of this sandbox cannot be limited from this machine ({why})",
        hint="does the engine run elsewhere (DOCKER_HOST, a context)? Use one on this machine, or"
        " no network: `none`, for tasks external_access: false",
    )


async def _receive(channel: RunnerChannel, meeting: socket.socket, path: str) -> socket.socket:
    """The socket that comes from the runner, whatever else commands throw at that door."""
    token = secrets.token_hex(16)  # Commands see the path, but not what the runner is told.
    loop = asyncio.get_running_loop()
    coming: asyncio.Future[socket.socket] = loop.create_future()

    def look() -> None:
        # A limit, for who is flooded: the loop has others to serve.
        for _ in range(_LOOKS):
            try:
                message, fds = _next_message(meeting)
            except BlockingIOError:
                return
            if message == token.encode() and len(fds) == 1 and not coming.done():
                with contextlib.suppress(OSError):  # Not even a socket.
                    coming.set_result(socket.socket(fileno=fds[0]))
                    return
            for each in fds:
                os.close(each)

    loop.add_reader(meeting, look)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await channel.ask({"op": "hand_over", "path": path, "token": token})
            return await coming
    except BaseException:
        if coming.done() and not coming.cancelled():
            coming.result().close()
        raise
    finally:
        loop.remove_reader(meeting)


def _next_message(meeting: socket.socket) -> tuple[bytes, list[int]]:
    """What was said, and the descriptors that came with it, now ours to close."""
    fds = array.array("i")
    room = socket.CMSG_SPACE(fds.itemsize)
    message, extra, _, _ = meeting.recvmsg(_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds)
