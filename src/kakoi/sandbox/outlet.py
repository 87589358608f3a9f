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
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from kakoi.errors import ConfigurationError, SandboxError
from kakoi.runner.channel import RunnerChannel
from kakoi.runner.commands import Channel
from kakoi.sandbox.adapter import PROXIED

_PATIENCE_S: Final = 10.0


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
    """The directory. `folder` is what the sandbox is to see; nobody else here can enter it."""

    def __init__(self) -> None:
        self._private = tempfile.mkdtemp(prefix="kakoi-")
        self.folder = os.path.join(self._private, "way")
        os.mkdir(self.folder)
        # Commands may be another user than we are.
        os.chmod(self.folder, 0o755)  # noqa: S103 - what is above it is private

    async def take(self, channel: Channel, outlet: Outlet, *, inside: str) -> Served:
        """Have the runner hand its socket over, and have it served.

        `inside`: where it sees `folder`. SandboxError: it can't, and there is no way out.
        """
        if not isinstance(channel, RunnerChannel):
            raise SandboxError(
                "the network of this sandbox cannot be limited: there is no python3 in its image",
                hint="use an image with python3, or the network `none`",
            )
        name = secrets.token_hex(4)  # Several sandboxes may see the same directory.
        path = os.path.join(self.folder, name)
        meeting = socket.socket(socket.AF_UNIX)
        try:
            meeting.bind(path)
            os.chmod(path, 0o666)  # noqa: S103 - what is above it is private
            meeting.listen(1)
            meeting.setblocking(False)
            listener = await _receive(channel, meeting, f"{inside}/{name}")
            try:
                return outlet.serve(listener)
            except BaseException:
                listener.close()
                raise
        except (OSError, TimeoutError) as error:
            raise SandboxError(
                f"the network of this sandbox cannot be limited: its runner does not reach "
                f"this machine ({str(error) or 'no answer'})",
                hint="does the engine run elsewhere? Use one on this machine, or `none`",
            ) from error
        finally:
            meeting.close()
            with contextlib.suppress(OSError):
                os.unlink(path)

    def close(self) -> None:
        """Take the directory away."""
        shutil.rmtree(self._private, ignore_errors=True)


async def _receive(channel: RunnerChannel, meeting: socket.socket, path: str) -> socket.socket:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_PATIENCE_S):
        asked = asyncio.ensure_future(channel.ask({"op": "hand_over", "path": path}))
        came = asyncio.ensure_future(loop.sock_accept(meeting))
        try:
            await asyncio.wait((asked, came), return_when=asyncio.FIRST_COMPLETED)
            if asked.done() and asked.exception() is not None:
                await asked
            line, _ = await came
        finally:
            came.cancel()
            if not asked.done():
                await asyncio.wait((asked,), timeout=_PATIENCE_S)
            asked.cancel()
    with line:
        line.settimeout(_PATIENCE_S)
        return await asyncio.to_thread(_take_socket, line)


def _take_socket(line: socket.socket) -> socket.socket:
    room = socket.CMSG_SPACE(array.array("i").itemsize)
    _, extra, _, _ = line.recvmsg(1, room)
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds = array.array("i")
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
            for other in fds[1:]:
                os.close(other)
            if fds:
                return socket.socket(fileno=fds[0])
    raise OSError("it handed nothing over")
