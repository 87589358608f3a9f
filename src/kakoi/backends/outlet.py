"""Proxied network access for a sandbox that has no network of its own.

One of our directories is visible inside. The runner opens sockets on the sandbox's loopback
interface and passes them to us through a socket in that directory. From then on we accept the
connections and answer the name queries ourselves, so no program inside forwards bytes or needs to
be trusted with that.
"""

import array
import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Final, Protocol

from kakoi._support.asyncio import finish
from kakoi._support.late import dataclass
from kakoi.backends.adapter import PROXIED
from kakoi.backends.locked_folders import LockedFolder, is_own_folder, sweep
from kakoi.backends.resolv_conf import RESOLV_CONF, resolv_conf_of
from kakoi.channel.api import Channel
from kakoi.channel.runner_channel import RunnerChannel
from kakoi.errors import ConfigurationError, SandboxError
from kakoi.process.stream import Launch, ProcessStream
from kakoi.runner.outlet import PORT

_PATIENCE_S: Final = 10.0
_PREFIX: Final = "kakoi-way-"
_FOLDER: Final = "way"
_NOTE: Final = "note"
_LOOKS: Final = 64
_MESSAGE_BYTES: Final = 64
_MOST_FDS: Final = 3
_NAME_SOCKETS: Final = str(Path(__file__).parents[1] / "process" / "name_sockets.py")
_log = logging.getLogger(__name__)


class OutletServer(Protocol):
    """Serves a socket until it is closed."""

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Outlet:
    """Serves the connections of a sandbox. `env`: variables that point programs to it.

    `serve_names`: answers its name queries, on a UDP and a listening TCP socket.
    """

    serve: Callable[[socket.socket], OutletServer]
    env: Mapping[str, str] = field(default_factory=dict)
    serve_names: Callable[[socket.socket, socket.socket], OutletServer] | None = None


class _Servers:
    """Several servers that are closed together."""

    def __init__(self) -> None:
        self._servers: list[OutletServer] = []

    def add(self, server: OutletServer) -> None:
        self._servers.append(server)

    async def close(self) -> None:
        while self._servers:
            await self._servers.pop().close()


def require_outlet(network: str | None, outlet: Outlet | None) -> Outlet | None:
    """Return the outlet if the network needs one; raises ConfigurationError if it is missing."""
    if network not in PROXIED:
        return None
    if outlet is None:
        raise ConfigurationError(
            f"network is `{network}`, which needs an outlet",
            hint="open the sandbox with `kakoi.sandbox.from_settings`, or pass an `outlet`",
        )
    return outlet


class HandoverFolder:
    """The directory through which the runner hands its socket to us.

    `folder`: the part that the sandbox sees. No other user on this machine can enter it.

    It is locked while we live; the next process removes what a killed one left behind. `keep` makes
    it last as long as its container, for a process that attaches to the container later (`adopt`).
    """

    def __init__(self) -> None:
        sweep(_PREFIX, _remove, is_kept=_has_note)
        self._own: LockedFolder | None = LockedFolder(_PREFIX)
        self._private = self._own.path
        self.folder = os.path.join(self._private, _FOLDER)
        os.mkdir(self.folder)
        # Commands can run as a different user than we do.
        os.chmod(self.folder, 0o755)  # noqa: S103 - its parent directory is private
        resolv_conf = Path(resolv_conf_of(self.folder))
        resolv_conf.write_bytes(RESOLV_CONF)
        resolv_conf.chmod(0o644)

    @classmethod
    def adopt(cls, folder: str) -> "HandoverFolder":
        """Use the directory of a container that another process created and kept.

        `folder`: the path that was mounted there. Raises SandboxError if it is gone.
        """
        private, name = os.path.split(folder)
        if name != _FOLDER or not is_own_folder(private, _PREFIX) or not os.path.isdir(folder):
            raise SandboxError(
                "this container has lost its network: its directory on this machine is gone",
                details={"directory": folder},
                hint="create a new container; for a task, prepare it again",
            )
        found = cls.__new__(cls)
        found._private, found._own, found.folder = private, None, folder
        return found

    @property
    def note(self) -> str:
        """The note for a process that attaches later; empty if there is none."""
        try:
            return Path(self._private, _NOTE).read_text("utf-8")
        except FileNotFoundError:
            return ""

    def keep(self, note: str) -> None:
        """Keep the directory after we exit, with this note, which the sandbox cannot see."""
        coming = Path(self._private, f"{_NOTE}.{secrets.token_hex(4)}")
        coming.write_text(note, "utf-8")
        coming.replace(Path(self._private, _NOTE))
        self._release()

    async def take(self, channel: Channel, outlet: Outlet, *, inside: str) -> OutletServer:
        """Get the sockets from the runner, and serve them.

        `inside`: the path of `folder` in the sandbox. Raises SandboxError if this fails; the
        sandbox then has no network.
        """
        if not isinstance(channel, RunnerChannel):
            raise SandboxError(
                "the network of this sandbox cannot be limited: there is no python3 in its image",
                hint="use an image with python3, or no network: `none`, for tasks"
                " external_access: false",
            )
        name = secrets.token_hex(4)  # Several sandboxes can see the same directory.
        path = os.path.join(self.folder, name)
        meeting = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            meeting.bind(path)
            os.chmod(path, 0o666)  # noqa: S103 - a directory above it is private
            meeting.setblocking(False)
            fds = await _receive(channel, meeting, f"{inside}/{name}")
            try:
                return await _serve(outlet, fds)
            finally:
                _close(fds)
        except (OSError, TimeoutError) as error:
            raise cannot_limit_network(
                f"its runner cannot reach us: {str(error) or 'no answer'}"
            ) from error
        finally:
            meeting.close()
            with contextlib.suppress(OSError):
                os.unlink(path)

    def close(self) -> None:
        """Remove the directory."""
        _remove(self._private)
        self._release()

    def _release(self) -> None:
        if self._own is not None:
            self._own.release()


def discard_kept(folder: str) -> None:
    """Remove the directory that a removed container left behind."""
    private, name = os.path.split(folder)
    if name == _FOLDER and is_own_folder(private, _PREFIX):
        _remove(private)


def _remove(private: str) -> None:
    shutil.rmtree(private, ignore_errors=True)


def _has_note(private: str) -> bool:
    return os.path.exists(os.path.join(private, _NOTE))


def cannot_limit_network(why: str) -> SandboxError:
    """The error for a sandbox that cannot hand its socket over."""
    return SandboxError(
        f"the network of this sandbox cannot be limited from this machine ({why})",
        hint="does the engine run elsewhere (DOCKER_HOST, a context)? Use one on this machine, or"
        " no network: `none`, for tasks external_access: false",
    )


async def _serve(outlet: Outlet, fds: list[int]) -> OutletServer:
    """Serve the sockets, and take those that are served out of `fds`."""
    servers = _Servers()
    try:
        servers.add(_serve_first(outlet.serve, fds, 1))
        if outlet.serve_names is not None:
            if len(fds) == 1:
                await _exchange_namespace(fds)
            if len(fds) == 2:
                servers.add(_serve_first(outlet.serve_names, fds, 2))
    except BaseException:
        await finish(servers.close())
        raise
    return servers


def _serve_first(serve: Callable[..., OutletServer], fds: list[int], count: int) -> OutletServer:
    sockets: list[socket.socket] = []
    try:
        while len(sockets) < count:
            sockets.append(socket.socket(fileno=fds[0]))
            del fds[0]
        return serve(*sockets)
    except BaseException:
        for each in sockets:
            each.close()
        raise


async def _exchange_namespace(fds: list[int]) -> None:
    """Replace the descriptor of a network namespace by sockets for a name server in it.

    If they cannot be opened, `fds` stays as it is: the proxy works without them.
    """
    argv = [sys.executable, "-I", "-S", _NAME_SOCKETS, str(fds[0])]
    stream = ProcessStream(Launch(argv=argv, env={}, descriptors=fds))
    found: list[int] = []
    try:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                await stream.wait()
        with contextlib.suppress(BlockingIOError):
            found = _next_message(stream.socket)[1]
    finally:
        await stream.end()
    if len(found) == 2:
        _close(fds)
        fds += found
    else:
        _close(found)
        why = stream.stderr.strip() or "no answer"
        _log.warning("names cannot be resolved in this sandbox, only by its proxy: %s", why)


def _close(fds: list[int]) -> None:
    while fds:
        os.close(fds.pop())


async def _receive(channel: RunnerChannel, meeting: socket.socket, path: str) -> list[int]:
    """Receive the runner's descriptors; ignore whatever commands send to the same address."""
    token = secrets.token_hex(16)  # Commands see the path, but not the token.
    loop = asyncio.get_running_loop()
    coming: asyncio.Future[list[int]] = loop.create_future()

    def look() -> None:
        # Limited, because a flood must not block the event loop.
        for _ in range(_LOOKS):
            try:
                message, fds = _next_message(meeting)
            except BlockingIOError:
                return
            if message == token.encode() and fds and not coming.done():
                coming.set_result(fds)
                return
            _close(fds)

    loop.add_reader(meeting, look)
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await channel.ask({"op": "hand_over", "path": path, "token": token})
            return await coming
    except BaseException:
        if coming.done() and not coming.cancelled():
            _close(coming.result())
        raise
    finally:
        loop.remove_reader(meeting)


def _next_message(meeting: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a message and its descriptors, which we must close."""
    fds = array.array("i")
    room = socket.CMSG_SPACE(_MOST_FDS * fds.itemsize)
    message, extra, _, _ = meeting.recvmsg(_MESSAGE_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds.frombytes(data[: len(data) - len(data) % fds.itemsize])
    return message, list(fds)


_HOST: Final = "127.0.0.1"
_URL: Final = f"http://{_HOST}:{PORT}"
_OWN: Final = "localhost,127.0.0.1,::1"
# Not JAVA_TOOL_OPTIONS: every Java program would announce on stderr that it read it.
_JAVA: Final = " ".join(
    f"-D{scheme}.proxyHost={_HOST} -D{scheme}.proxyPort={PORT}" for scheme in ("http", "https")
)


def proxy_variables() -> Mapping[str, str]:
    """Return the variables for curl, wget, git, pip, go, node, npm, yarn, cargo, maven, gradle."""
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    url = {each: _URL for name in names for each in (name, name.lower())}
    own = {"NO_PROXY": _OWN, "no_proxy": _OWN}
    npm = {"npm_config_proxy": _URL, "npm_config_https_proxy": _URL, "npm_config_noproxy": _OWN}
    yarn = {"YARN_HTTP_PROXY": _URL, "YARN_HTTPS_PROXY": _URL}
    java = {"MAVEN_OPTS": _JAVA, "GRADLE_OPTS": _JAVA, "SBT_OPTS": _JAVA}
    more = {"CARGO_HTTP_PROXY": _URL, "NODE_USE_ENV_PROXY": "1"}
    return {**url, **own, **npm, **yarn, **java, **more}
