"""The Docker engine over its socket, because the `docker` program takes ten times as long.

For short requests only, and only for a socket on this machine: no other address, no context. If
anything goes wrong, we run the `docker` program instead, and report the error in its words.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from kakoi._support.late import dataclass

SOCKET: Final = "/var/run/docker.sock"
# 304: already started, or already stopped. We do not follow redirects.
_OK: Final = frozenset({*range(200, 300), 304})
_MOST_BYTES: Final = 4 * 1024 * 1024
_CHUNK: Final = 256 * 1024
_LOCAL: Final = "unix://"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """A request. `text`: turns the response into what the program would print.

    `body`: a tar file, if the request has one.
    """

    method: str
    path: str
    text: Callable[[Any], str] = lambda _answer: ""
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class EngineReply:
    """What the program would have printed: its output, or its error."""

    is_ok: bool
    text: str


def container_path(name: str, then: str = "") -> str:
    """The path of one container; `then`: the rest of the path after its name."""
    return f"/containers/{quote(name, safe='')}{then}"


def image_path(name: str) -> str:
    """The path of one image. Its name can contain slashes."""
    return f"/images/{quote(name, safe='/:@')}/json"


def find_engine_socket(env: Mapping[str, str]) -> str | None:
    """Return the engine's socket on this machine; None if `env` points to another engine."""
    host = env.get("DOCKER_HOST", "")
    if env.get("DOCKER_CONTEXT") or (host and not host.startswith(_LOCAL)):
        return None
    if host:
        return host.removeprefix(_LOCAL)
    folder = env.get("DOCKER_CONFIG") or f"{env.get('HOME', '')}/.docker"
    return None if _names_a_context(Path(folder, "config.json")) else SOCKET


def _names_a_context(path: Path) -> bool:
    """Whether the program's settings can select another engine; True if they are unreadable."""
    try:
        found = json.loads(path.read_bytes())
        return bool(found.get("currentContext") not in (None, "", "default"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError):
        return True


async def send_request(socket: str, request: EngineRequest) -> EngineReply | None:
    """Send a request and return the engine's reply; None if there is no valid reply."""
    try:
        status, body = await _exchange(socket, request)
        if status in _OK:
            return EngineReply(
                is_ok=True, text=request.text(json.loads(body) if body.strip() else None)
            )
        message = json.loads(body)["message"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return EngineReply(is_ok=False, text=f"Error response from daemon: {message}\n")


async def _exchange(socket: str, request: EngineRequest) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        # HTTP/1.0: the response ends with the stream.
        head = f"{request.method} {request.path} HTTP/1.0\r\nHost: docker\r\n"
        if request.body:
            head += f"Content-Type: application/x-tar\r\nContent-Length: {len(request.body)}\r\n"
        writer.write(f"{head}\r\n".encode("ascii") + request.body)
        data = b""
        while part := await reader.read(_CHUNK):
            data += part
            if len(data) > _MOST_BYTES:
                raise ValueError("the response is too long")
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    head_of_answer, _, body = data.partition(b"\r\n\r\n")
    return int(head_of_answer.split(b" ", 2)[1]), body
